// Buckets larger than any device: the places of a launch are counted in 32 bits.
#include <string>
#include <vector>

#include "hvd_dbs/ops/cc/core/pack_cuda.h"
#include "tests/cc/bucket_problem.h"
#include "tests/cc/check.h"
#include "tests/cc/cuda_on_cpu/device.h"

namespace hvd_dbs_test {
namespace {

// Address space without pages; null where the system gives none.
class HugeArray {
 public:
  explicit HugeArray(int64_t count) {
    if (cudaMalloc(&data_, count * sizeof(double)) != cudaSuccess) data_ = nullptr;
  }
  ~HugeArray() { cudaFree(data_); }
  HugeArray(const HugeArray&) = delete;
  HugeArray& operator=(const HugeArray&) = delete;

  double* data() const { return data_; }

 private:
  double* data_ = nullptr;
};

}  // namespace

HVD_DBS_TEST(ABucketThatOneLaunchCannotCountTakesTwo) {
  // 3 times 2^31 units of 64 bytes: a launch counts 2^32 of them.
  const int64_t count = (int64_t{1} << 34) - 3;
  const BucketLayout layout({count, count, count}, sizeof(double));
  const HugeArray tensor(count), bucket(layout.length());
  if (tensor.data() == nullptr || bucket.data() == nullptr) {
    std::printf("skipped: the system gives no 512 GiB of address space\n");
    return;
  }
  const std::vector<const double*> tensors(3, tensor.data());
  tensor.data()[0] = 8;
  tensor.data()[count - 1] = 4;
  cudaStream_t stream;
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  HVD_DBS_CHECK((hvd_dbs::PackOnGpu<double, double>(tensors, layout, 0.5, bucket.data(),
                                                    stream)) == nullptr,
                "launch");
  cudaStreamSynchronize(stream);
  for (size_t i = 0; i < 3; ++i) {
    const double* packed = bucket.data() + layout.begin(i);
    HVD_DBS_CHECK(packed[0] == 4 && packed[1] == 0, "first of " + std::to_string(i));
    HVD_DBS_CHECK(packed[count - 1] == 2 && packed[count] == 0, "last of " + std::to_string(i));
  }
  cudaStreamDestroy(stream);
}

HVD_DBS_TEST(ATensorThatNoLaunchCanCountIsAnError) {
  const BucketLayout layout({1, (int64_t{1} << 35) + 1}, sizeof(double));
  const double one = 1;
  double bucket[8];
  cudaStream_t stream;
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  const char* error =
      hvd_dbs::PackOnGpu<double, double>({&one, nullptr}, layout, 1, bucket, stream);
  HVD_DBS_CHECK(error != nullptr && std::string(error).find("256 GiB") != std::string::npos,
                "error");
  cudaStreamSynchronize(stream);
  cudaStreamDestroy(stream);
}

}  // namespace hvd_dbs_test
