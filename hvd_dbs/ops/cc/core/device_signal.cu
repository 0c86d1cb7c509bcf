#include "hvd_dbs/ops/cc/core/device_signal.h"

#include <cuda_runtime.h>

#include "hvd_dbs/ops/cc/core/event_mark.h"

namespace hvd_dbs {
namespace {

__global__ void Write(float signal, float* to) { *to = signal; }

__global__ void RaiseIfAboveZero(const float* signal, int* flag) {
  if (*signal > 0) *flag = 1;
}

cudaLaunchConfig_t OneThread(CUstream_st* stream) {
  cudaLaunchConfig_t grid = {};
  grid.gridDim = dim3(1);
  grid.blockDim = dim3(1);
  grid.stream = stream;
  return grid;
}

const char* Message(cudaError_t error) {
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

class FlagOnHost : public DeviceSignal {
 public:
  FlagOnHost(int* flag, cudaEvent_t event, int device)
      : flag_(flag), event_(event), device_(device) {}
  ~FlagOnHost() override {
    ChooseDevice(device_);
    // A device that stands still may write to it yet, and is not waited for.
    if (cudaEventQuery(event_) != cudaErrorNotReady) cudaFreeHost(flag_);
    cudaEventDestroy(event_);
  }
  FlagOnHost(const FlagOnHost&) = delete;
  FlagOnHost& operator=(const FlagOnHost&) = delete;

  const char* Receive(const float* signal, CUstream_st* stream) override {
    const cudaLaunchConfig_t grid = OneThread(stream);
    if (const cudaError_t error = cudaLaunchKernelEx(&grid, RaiseIfAboveZero, signal, flag_)) {
      return Message(error);
    }
    return Message(cudaEventRecord(event_, stream));
  }

  // A device that has failed raises nothing: its step fails too.
  bool Take() override {
    ChooseDevice(device_);
    if (cudaEventSynchronize(event_) != cudaSuccess) return false;
    volatile int* const flag = flag_;
    const bool is_raised = *flag != 0;
    *flag = 0;
    return is_raised;
  }

 private:
  int* flag_;
  cudaEvent_t event_;
  int device_;
};

}  // namespace

const char* WriteSignal(float signal, float* to, CUstream_st* stream) {
  const cudaLaunchConfig_t grid = OneThread(stream);
  return Message(cudaLaunchKernelEx(&grid, Write, signal, to));
}

std::shared_ptr<DeviceSignal> MakeDeviceSignal() {
  int device = 0;
  int* flag = nullptr;
  cudaEvent_t event;
  if (cudaGetDevice(&device) != cudaSuccess) return nullptr;
  if (cudaMallocHost(reinterpret_cast<void**>(&flag), sizeof(*flag)) != cudaSuccess) return nullptr;
  *flag = 0;
  if (cudaEventCreateWithFlags(&event, cudaEventDisableTiming) != cudaSuccess) {
    cudaFreeHost(flag);
    return nullptr;
  }
  return std::make_shared<FlagOnHost>(flag, event, device);
}

}  // namespace hvd_dbs
