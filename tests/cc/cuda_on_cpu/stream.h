// A stream for tests.
#ifndef HVD_DBS_TESTS_CC_CUDA_ON_CPU_STREAM_H_
#define HVD_DBS_TESTS_CC_CUDA_ON_CPU_STREAM_H_

#include <cuda_runtime.h>

namespace cuda_on_cpu {

// A stream of a device, as TensorFlow's, which is the device of this thread meanwhile.
class Stream {
 public:
  explicit Stream(int device = 0) {
    cudaSetDevice(device);
    cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking);
  }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  operator cudaStream_t() const { return stream_; }

 private:
  cudaStream_t stream_;
};

}  // namespace cuda_on_cpu

#endif  // HVD_DBS_TESTS_CC_CUDA_ON_CPU_STREAM_H_
