// As much of CUDA as the native core uses, on a CPU: its .cu sources compile against this header as
// C++ and run under sanitizers. For tests alone.
//
// Every thread of a grid runs to its end before the next one starts, so there are no barriers and no
// shared memory here; a kernel that uses them does not compile. Of a grid with more than 65536
// blocks only its first and last blocks run, and those around each 64th of it. A stream keeps what it
// is asked for, and does it when somebody waits for it or a test lets it go on (device.h). Memory
// from 64 MiB on is address space without pages, and an access after its end is a fault.
#ifndef HVD_DBS_TESTS_CC_CUDA_ON_CPU_CUDA_RUNTIME_H_
#define HVD_DBS_TESTS_CC_CUDA_ON_CPU_CUDA_RUNTIME_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>

#define __global__
#define __device__
#define __host__
#define __grid_constant__
#define __launch_bounds__(threads)

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorInvalidResourceHandle = 400,
  cudaErrorNotReady = 600,
  cudaErrorLaunchFailure = 719,
};

enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2 };
constexpr unsigned cudaStreamNonBlocking = 1, cudaEventDisableTiming = 2;

struct dim3 {
  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
  unsigned x, y, z;
};

using cudaStream_t = struct CUstream_st*;
using cudaEvent_t = struct CUevent_st*;

struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
};

// Of the thread of a grid that runs on this thread.
inline thread_local dim3 blockIdx, threadIdx;

template <typename Number>
constexpr Number min(Number one, Number other) {
  return other < one ? other : one;
}

const char* cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaMalloc(void** memory, size_t bytes);
cudaError_t cudaFree(void* memory);
cudaError_t cudaMallocHost(void** memory, size_t bytes);
cudaError_t cudaFreeHost(void* memory);
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* all_bytes);
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind);
cudaError_t cudaMemset(void* memory, int value, size_t bytes);
cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t stream);
cudaError_t cudaDeviceSynchronize();
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaEventCreate(cudaEvent_t* event);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end);
cudaError_t cudaEventDestroy(cudaEvent_t event);

template <typename Number>
cudaError_t cudaMalloc(Number** memory, size_t bytes) {
  return cudaMalloc(reinterpret_cast<void**>(memory), bytes);
}

namespace cuda_on_cpu {

// Has the stream run `thread` as each thread of the grid.
cudaError_t Launch(const cudaLaunchConfig_t& grid, size_t parameter_bytes,
                   std::function<void()> thread);

}  // namespace cuda_on_cpu

template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* grid, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  // Copied, as CUDA does: the caller's may be gone when the stream gets here.
  const auto parameters = std::make_shared<const std::tuple<std::decay_t<Parameters>...>>(
      std::forward<Arguments>(arguments)...);
  return cuda_on_cpu::Launch(*grid, (0 + ... + sizeof(Parameters)),
                             [kernel, parameters] { std::apply(kernel, *parameters); });
}

#endif  // HVD_DBS_TESTS_CC_CUDA_ON_CPU_CUDA_RUNTIME_H_
