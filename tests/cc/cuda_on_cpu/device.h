// What a test scripts and sees of the devices that cuda_runtime.h makes of a CPU.
#ifndef HVD_DBS_TESTS_CC_CUDA_ON_CPU_DEVICE_H_
#define HVD_DBS_TESTS_CC_CUDA_ON_CPU_DEVICE_H_

#include <cuda_runtime.h>

namespace cuda_on_cpu {

constexpr int kNumDevices = 2;

// The stream computes so long, on its clock: no test waits for it.
void AddWork(cudaStream_t stream, double seconds);
// The stream does the next `count` things that it was asked for.
void Advance(cudaStream_t stream, int count);

// From now on each call that needs the device fails with it; cudaSuccess: no more.
void Fail(cudaError_t error);
// Whether no event can be made.
void RunOutOfEvents(bool none_left);

// Events that were made and not destroyed.
int NumEvents();
// How often the host has waited for a device.
int NumWaits();
// Whether a call has started a device, by which a process takes hundreds of MB of its memory.
bool IsStarted(int device);
// As if no call had been made yet by this thread, and no device been started.
void Restart();

}  // namespace cuda_on_cpu

#endif  // HVD_DBS_TESTS_CC_CUDA_ON_CPU_DEVICE_H_
