// The clock's operations: of gradients and change signals on CPU and GPU, the others on the host.
#ifdef HVD_DBS_WITH_CUDA
#define EIGEN_USE_GPU
#endif
#define EIGEN_USE_THREADS

#include <memory>
#include <mutex>
#include <string>

#include "hvd_dbs/ops/cc/core/step_clock.h"
#include "hvd_dbs/ops/cc/kernels/moment.h"
#include "tensorflow/core/framework/op_kernel.h"
#ifdef HVD_DBS_WITH_CUDA
#include "hvd_dbs/ops/cc/core/device_signal.h"
#endif

namespace hvd_dbs {
namespace {

using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

class StepClockOp : public OpKernel {
 public:
  explicit StepClockOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("clock", &clock_));
    on_gpu_ = context->device_type() == tensorflow::DEVICE_GPU;
  }

  // Run where the last gradient was made instead of being queued after other work.
  bool IsExpensive() override { return false; }

 protected:
  std::shared_ptr<const TimeMark> Now(OpKernelContext* context) const {
    return hvd_dbs::Now(context, on_gpu_);
  }

  // Null if the clock is gone: its graph may live longer.
  std::shared_ptr<StepClock> Clock() const { return FindStepClock(clock_); }

  bool on_gpu() const { return on_gpu_; }

 private:
  int64_t clock_;
  bool on_gpu_;
};

class StepUnderWayOp : public StepClockOp {
 public:
  using StepClockOp::StepClockOp;

  void Compute(OpKernelContext* context) override {
    Tensor* step;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({}), &step));
    const auto clock = Clock();
    step->scalar<int64_t>()() = clock != nullptr ? clock->step() : -1;
  }
};

class StepFedOp : public StepClockOp {
 public:
  using StepClockOp::StepClockOp;

  void Compute(OpKernelContext*) override {
    if (const auto clock = Clock()) clock->Fed(HostMark());
  }
};

class StepReadyOp : public StepClockOp {
 public:
  using StepClockOp::StepClockOp;

  void Compute(OpKernelContext* context) override {
    if (const auto clock = Clock()) clock->Ready(Now(context));
    Tensor* noted;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({}), &noted));
    noted->scalar<bool>()() = true;
  }
};

class StepBackOp : public StepClockOp {
 public:
  using StepClockOp::StepClockOp;

  void Compute(OpKernelContext* context) override {
    const auto num_samples = static_cast<double>(context->input(1).scalar<int64_t>()());
    if (const auto clock = Clock()) clock->Back(Now(context), num_samples);
  }
};

class StepSignalOp : public StepClockOp {
 public:
  using StepClockOp::StepClockOp;

  void Compute(OpKernelContext* context) override {
    Tensor* signal;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({}), &signal));
    const auto clock = Clock();
    const float value = clock != nullptr && clock->has_changed() ? 1 : 0;
    float* const to = signal->flat<float>().data();
#ifdef HVD_DBS_WITH_CUDA
    if (on_gpu()) {
      const char* error = WriteSignal(value, to, context->eigen_gpu_device().stream());
      OP_REQUIRES(context, error == nullptr,
                  absl::InternalError(std::string("HvdDbsStepSignal: ") + error));
      return;
    }
#endif
    *to = value;
  }
};

class StepReceiveSignalOp : public StepClockOp {
 public:
  using StepClockOp::StepClockOp;

  void Compute(OpKernelContext* context) override {
    const auto clock = Clock();
    if (clock == nullptr) return;
    const float* const signal = context->input(0).flat<float>().data();
#ifdef HVD_DBS_WITH_CUDA
    if (on_gpu()) {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (received_ == nullptr) received_ = MakeDeviceSignal();
      // Not to be passed over: the ranks would no longer agree.
      OP_REQUIRES(context, received_ != nullptr,
                  absl::ResourceExhaustedError("HvdDbsStepReceiveSignal: no memory or event left"));
      const char* error = received_->Receive(signal, context->eigen_gpu_device().stream());
      OP_REQUIRES(context, error == nullptr,
                  absl::InternalError(std::string("HvdDbsStepReceiveSignal: ") + error));
      clock->ReceiveSignal(received_);
      return;
    }
#endif
    if (*signal > 0) clock->ReceiveSignal();
  }

#ifdef HVD_DBS_WITH_CUDA
 private:
  std::mutex mutex_;
  std::shared_ptr<DeviceSignal> received_;
#endif
};

REGISTER_KERNEL_BUILDER(Name("HvdDbsStepUnderWay").Device(tensorflow::DEVICE_CPU), StepUnderWayOp);
REGISTER_KERNEL_BUILDER(Name("HvdDbsStepSignal").Device(tensorflow::DEVICE_CPU), StepSignalOp);
REGISTER_KERNEL_BUILDER(Name("HvdDbsStepReceiveSignal").Device(tensorflow::DEVICE_CPU), StepReceiveSignalOp);
REGISTER_KERNEL_BUILDER(Name("HvdDbsStepFed").Device(tensorflow::DEVICE_CPU), StepFedOp);
REGISTER_KERNEL_BUILDER(Name("HvdDbsStepReady").Device(tensorflow::DEVICE_CPU), StepReadyOp);
REGISTER_KERNEL_BUILDER(Name("HvdDbsStepBack").Device(tensorflow::DEVICE_CPU), StepBackOp);
#ifdef HVD_DBS_WITH_CUDA
REGISTER_KERNEL_BUILDER(
    Name("HvdDbsStepReady").Device(tensorflow::DEVICE_GPU).HostMemory("noted"), StepReadyOp);
REGISTER_KERNEL_BUILDER(Name("HvdDbsStepBack")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("noted")
                            .HostMemory("num_samples"),
                        StepBackOp);
REGISTER_KERNEL_BUILDER(Name("HvdDbsStepSignal").Device(tensorflow::DEVICE_GPU), StepSignalOp);
REGISTER_KERNEL_BUILDER(Name("HvdDbsStepReceiveSignal").Device(tensorflow::DEVICE_GPU), StepReceiveSignalOp);
#endif

}  // namespace
}  // namespace hvd_dbs
