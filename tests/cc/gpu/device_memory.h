// Device memory for tests.
#ifndef HVD_DBS_TESTS_CC_GPU_DEVICE_MEMORY_H_
#define HVD_DBS_TESTS_CC_GPU_DEVICE_MEMORY_H_

#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace hvd_dbs_test {

inline void Require(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::printf("%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

template <typename Number>
class DeviceArray {
 public:
  explicit DeviceArray(int64_t count) : count_(count) {
    Require(cudaMalloc(&data_, count * sizeof(Number) + 1), "cudaMalloc");
  }
  explicit DeviceArray(const std::vector<Number>& values)
      : DeviceArray(static_cast<int64_t>(values.size())) {
    Require(cudaMemcpy(data_, values.data(), values.size() * sizeof(Number),
                       cudaMemcpyHostToDevice),
            "copy to the device");
    // The copy of memory that is not page-locked may still be under way, and a stream that does not
    // wait for the default one would not wait for it either.
    Require(cudaDeviceSynchronize(), "copy to the device");
  }
  DeviceArray(DeviceArray&& other) noexcept : data_(other.data_), count_(other.count_) {
    other.data_ = nullptr;
  }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  ~DeviceArray() { cudaFree(data_); }

  Number* data() const { return data_; }
  std::vector<Number> Values() const {
    std::vector<Number> values(count_);
    Require(cudaMemcpy(values.data(), data_, count_ * sizeof(Number), cudaMemcpyDeviceToHost),
            "copy from the device");
    return values;
  }

 private:
  Number* data_ = nullptr;
  int64_t count_;
};

}  // namespace hvd_dbs_test

#endif  // HVD_DBS_TESTS_CC_GPU_DEVICE_MEMORY_H_
