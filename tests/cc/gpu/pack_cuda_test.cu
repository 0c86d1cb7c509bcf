// Pack and unpack on a GPU against float64: the problems of the CPU's tests, and sizes beyond 2^31.
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "hvd_dbs/ops/cc/core/event_mark.h"
#include "hvd_dbs/ops/cc/core/pack_cuda.h"
#include "tests/cc/bucket_problem.h"
#include "tests/cc/check.h"
#include "tests/cc/gpu/device_memory.h"

namespace hvd_dbs_test {
namespace {

cudaStream_t Stream() {
  static cudaStream_t stream = nullptr;
  // Does not wait for the default stream: a launch on that one would show.
  if (stream == nullptr) {
    Require(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  }
  return stream;
}

void Finish(const char* launch_error) {
  HVD_DBS_CHECK(launch_error == nullptr, launch_error);
  Require(cudaStreamSynchronize(Stream()), "kernel");
}

template <typename Element, typename Wire>
void CheckRoundTrip(const Sizes& sizes, double factor) {
  const BucketLayout layout(sizes.counts, sizeof(Wire));
  const auto tensors = RandomTensors<Element>(sizes, 7);
  std::vector<DeviceArray<Element>> inputs;
  std::vector<const Element*> pointers;
  for (const auto& tensor : tensors) {
    inputs.emplace_back(tensor);
    pointers.push_back(inputs.back().data() + sizes.unaligned);
  }
  const Wire nan = hvd_dbs::Round<Wire>(std::numeric_limits<float>::quiet_NaN());
  const DeviceArray<Wire> bucket(std::vector<Wire>(layout.length(), nan));
  Finish(hvd_dbs::PackOnGpu(pointers, layout, factor, bucket.data(), Stream()));
  const std::vector<Wire> packed = bucket.Values();
  CheckPacked(packed, tensors, sizes, layout, factor);

  if constexpr (!std::is_same<Element, Wire>::value) {
    const Element poison = hvd_dbs::Round<Element>(-12345.0f);
    std::vector<DeviceArray<Element>> outputs;
    std::vector<Element*> to;
    for (const auto& tensor : tensors) {
      outputs.emplace_back(std::vector<Element>(tensor.size(), poison));
      to.push_back(outputs.back().data() + sizes.unaligned);
    }
    Finish(hvd_dbs::UnpackOnGpu(static_cast<const Wire*>(bucket.data()), layout, to, Stream()));
    std::vector<std::vector<Element>> unpacked;
    for (const auto& output : outputs) unpacked.push_back(output.Values());
    CheckUnpacked(packed, unpacked, sizes, layout, poison);
  }
}

template <typename Element, typename Wire>
void CheckAllSizes() {
  for (const Sizes& sizes : AllSizes()) {
    for (const double factor : {0.25, 0.0, 1.0}) CheckRoundTrip<Element, Wire>(sizes, factor);
  }
  const Sizes few = {"few, unaligned", {1, 0, 40, 3, 33}, 1};
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const double factor : {1e-6, 48.0, 1e-30, 1e30, 1e-42, nan}) {
    CheckRoundTrip<Element, Wire>(few, factor);
  }
}

}  // namespace

#define HVD_DBS_TYPES_TEST(Element, Wire) CheckAllSizes<Element, Wire>();
HVD_DBS_TEST(PacksAndUnpacksAllTypesAndSizes) { HVD_DBS_FOR_EACH_PAIR(HVD_DBS_TYPES_TEST) }

HVD_DBS_TEST(FactorZeroReadsNothing) {
  const BucketLayout layout({5000}, sizeof(float));
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const DeviceArray<float> tensor(std::vector<float>(5000, nan));
  const DeviceArray<float> bucket(std::vector<float>(layout.length(), nan));
  Finish(hvd_dbs::PackOnGpu<float, float>({tensor.data()}, layout, 0, bucket.data(), Stream()));
  for (const float value : bucket.Values()) HVD_DBS_CHECK(value == 0, "zeros");
}

HVD_DBS_TEST(NothingIsLaunchedForNothing) {
  Finish(hvd_dbs::PackOnGpu<float, float>({}, BucketLayout({}, 4), 1, nullptr, Stream()));
  Finish(hvd_dbs::PackOnGpu<float, float>({nullptr}, BucketLayout({0}, 4), 1, nullptr, Stream()));
}

HVD_DBS_TEST(NanOfAWeightedRankIsNotHidden) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const BucketLayout layout({40}, sizeof(float));
  std::vector<float> values(40, 1);
  values[5] = values[39] = nan;
  const DeviceArray<float> tensor(values), bucket(layout.length());
  Finish(hvd_dbs::PackOnGpu<float, float>({tensor.data()}, layout, .25, bucket.data(), Stream()));
  const std::vector<float> packed = bucket.Values();
  for (int i = 0; i < 40; ++i) {
    HVD_DBS_CHECK(i == 5 || i == 39 ? std::isnan(packed[i]) : packed[i] == 0.25f, "NaN");
  }
}

HVD_DBS_TEST(MoreElementsThanFitInThirtyTwoBits) {
  const int64_t count = (int64_t{1} << 31) + 12345;
  size_t free_bytes = 0, all_bytes = 0;
  Require(cudaMemGetInfo(&free_bytes, &all_bytes), "memory");
  if (free_bytes < (static_cast<size_t>(count) * 2 + (1 << 28))  * 2) {
    std::printf("skipped: %.1f GiB of device memory are free\n", free_bytes / 1073741824.0);
    return;
  }
  const BucketLayout layout({7, count}, sizeof(Half));
  const DeviceArray<Half> small(std::vector<Half>(7, Half{0x3c00})), tensor(count);
  const DeviceArray<Half> bucket(layout.length());
  Require(cudaMemset(tensor.data(), 0, count * sizeof(Half)), "fill");
  Require(cudaMemset(bucket.data(), 0, layout.length() * sizeof(Half)), "fill");
  const std::vector<int64_t> places = {0, 1, count / 2, (int64_t{1} << 31) - 1, int64_t{1} << 31,
                                       count - 1};
  uint16_t exponent = 0x3c00;  // 1, 2, 4, ..., so that each place has a value of its own.
  for (const int64_t place : places) {
    const Half value{exponent};
    exponent += 0x400;
    Require(cudaMemcpy(tensor.data() + place, &value, sizeof(Half), cudaMemcpyHostToDevice),
            "copy to the device");
  }
  Require(cudaDeviceSynchronize(), "fill");
  Finish(hvd_dbs::PackOnGpu<Half, Half>({small.data(), tensor.data()}, layout, 0.5,
                                        bucket.data(), Stream()));
  exponent = 0x3c00;
  for (const int64_t place : places) {
    Half packed;
    Require(cudaMemcpy(&packed, bucket.data() + layout.begin(1) + place, sizeof(Half),
                       cudaMemcpyDeviceToHost),
            "copy from the device");
    HVD_DBS_CHECK(packed.bits == exponent - 0x400, std::to_string(place));  // Half of it.
    exponent += 0x400;
  }
}

HVD_DBS_TEST(EventsTellTheTimeWithoutWaiting) {
  const auto first = hvd_dbs::MarkStream(Stream());
  const DeviceArray<float> memory(int64_t{1} << 26);
  for (int i = 0; i < 50; ++i) {
    Require(cudaMemsetAsync(memory.data(), 0, sizeof(float) << 26, Stream()), "work");
  }
  const auto last = hvd_dbs::MarkStream(Stream());
  HVD_DBS_CHECK(first != nullptr && last != nullptr, "events");
  HVD_DBS_CHECK(!last->Passed(), "the host is ahead of the device");
  Require(cudaStreamSynchronize(Stream()), "work");
  HVD_DBS_CHECK(last->Passed() && last->SecondsSince(*first) > 0, "time");
}

}  // namespace hvd_dbs_test
