// What the calls of cuda_runtime.h that are about memory share with the others.
#ifndef HVD_DBS_TESTS_CC_CUDA_ON_CPU_CALLS_H_
#define HVD_DBS_TESTS_CC_CUDA_ON_CPU_CALLS_H_

#include <cuda_runtime.h>

#include <functional>

namespace cuda_on_cpu {

// Of a call that needs the thread's device: the error that it fails with.
cudaError_t Use();
// Has the stream do some work, which takes so long on its clock.
void Enqueue(cudaStream_t stream, double seconds, std::function<void()> work);
// The host waits for a device.
void CountWait();

}  // namespace cuda_on_cpu

#endif  // HVD_DBS_TESTS_CC_CUDA_ON_CPU_CALLS_H_
