// HvdDbsPack on CPU and GPU: TensorFlow's tensors to the core's pointers.
#ifdef HVD_DBS_WITH_CUDA
#define EIGEN_USE_GPU
#endif
#define EIGEN_USE_THREADS

#include <mutex>
#include <utility>
#include <vector>

#include "hvd_dbs/ops/cc/core/pack.h"
#include "hvd_dbs/ops/cc/core/step_clock.h"
#include "hvd_dbs/ops/cc/kernels/moment.h"
#include "hvd_dbs/ops/cc/kernels/number_types.h"
#include "hvd_dbs/ops/cc/kernels/worker_threads.h"
#include "tensorflow/core/framework/op_kernel.h"
#ifdef HVD_DBS_WITH_CUDA
#include "hvd_dbs/ops/cc/core/pack_cuda.h"
#endif

namespace hvd_dbs {
namespace {

using ::tensorflow::DataTypeToEnum;
using ::tensorflow::OpInputList;
using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

// Memory for a bucket on a CPU, kept from step to step: fresh pages cost more than the copy.
class KeptBucket {
 public:
  absl::Status Take(OpKernelContext* context, tensorflow::DataType wire, int64_t length,
                    Tensor* bucket) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      std::swap(*bucket, kept_);
    }
    // Nobody else's: not another run's of the same graph, not a reader's of the last step.
    if (bucket->IsInitialized() && bucket->NumElements() == length && bucket->RefCountIsOne()) {
      return absl::OkStatus();
    }
    return context->allocate_temp(wire, TensorShape({length}), bucket);
  }

  void Keep(const Tensor& bucket) {
    const std::lock_guard<std::mutex> lock(mutex_);
    kept_ = bucket;
  }

 private:
  std::mutex mutex_;
  Tensor kept_;
};

template <typename Element, typename Wire>
class PackOp : public OpKernel {
 public:
  explicit PackOp(OpKernelConstruction* context) : OpKernel(context) {
    on_gpu_ = context->device_type() == tensorflow::DEVICE_GPU;
    OP_REQUIRES_OK(context, context->GetAttr("clock", &clock_));
    OP_REQUIRES_OK(context, context->GetAttr("number", &number_));
  }

  void Compute(OpKernelContext* context) override {
    OpInputList inputs;
    OP_REQUIRES_OK(context, context->input_list("tensors", &inputs));
    const double factor = context->input(inputs.size()).scalar<double>()();
    std::vector<const Element*> tensors;
    std::vector<int64_t> counts;
    tensors.reserve(inputs.size());
    counts.reserve(inputs.size());
    for (const Tensor& input : inputs) {
      tensors.push_back(static_cast<const Element*>(input.data()));
      counts.push_back(input.NumElements());
    }
    const BucketLayout layout(std::move(counts), sizeof(Wire));
    constexpr auto kWire = DataTypeToEnum<typename InTensorFlow<Wire>::type>::value;

    Tensor bucket;
    if (on_gpu_) {
      OP_REQUIRES_OK(context,
                     context->allocate_temp(kWire, TensorShape({layout.length()}), &bucket));
    } else {
      OP_REQUIRES_OK(context, kept_.Take(context, kWire, layout.length(), &bucket));
    }
    Wire* data = static_cast<Wire*>(bucket.data());
    if (on_gpu_) {
#ifdef HVD_DBS_WITH_CUDA
      const char* error =
          PackOnGpu(tensors, layout, factor, data, context->eigen_gpu_device().stream());
      OP_REQUIRES(context, error == nullptr,
                  absl::InternalError(std::string("HvdDbsPack: ") + error));
#endif
    } else {
      Pack(tensors, layout, factor, data, WorkerThreads(context));
      kept_.Keep(bucket);
    }
    if (const auto clock = FindStepClock(clock_)) clock->BucketSent(number_, Now(context, on_gpu_));
    context->set_output(0, bucket);
  }

 private:
  bool on_gpu_;
  int64_t clock_, number_;
  KeptBucket kept_;
};

#define HVD_DBS_REGISTER_ON(device, Element, Wire)                           \
  REGISTER_KERNEL_BUILDER(Name("HvdDbsPack")                                 \
                              .Device(device)                    \
                              .TypeConstraint<InTensorFlow<Element>::type>("T") \
                              .TypeConstraint<InTensorFlow<Wire>::type>("Wire") \
                              .HostMemory("factor"),                         \
                          PackOp<Element, Wire>);

#define HVD_DBS_REGISTER(Element, Wire) HVD_DBS_REGISTER_ON(tensorflow::DEVICE_CPU, Element, Wire)
HVD_DBS_FOR_EACH_PAIR(HVD_DBS_REGISTER)
#undef HVD_DBS_REGISTER

#ifdef HVD_DBS_WITH_CUDA
#define HVD_DBS_REGISTER(Element, Wire) HVD_DBS_REGISTER_ON(tensorflow::DEVICE_GPU, Element, Wire)
HVD_DBS_FOR_EACH_PAIR(HVD_DBS_REGISTER)
#undef HVD_DBS_REGISTER
#endif

}  // namespace
}  // namespace hvd_dbs
