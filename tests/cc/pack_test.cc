// Pack and unpack on a CPU against float64, for all pairs of types.
#include "hvd_dbs/ops/cc/core/pack.h"

#include <algorithm>
#include <limits>
#include <thread>
#include <vector>

#include "tests/cc/bucket_problem.h"
#include "tests/cc/check.h"

namespace hvd_dbs_test {
namespace {

using hvd_dbs::ParallelFor;
using hvd_dbs::RangeWork;

void OnThreads(int64_t total, int64_t /*cycles*/, const RangeWork& work) {
  constexpr int64_t kThreads = 3;
  std::vector<std::thread> threads;
  for (int64_t i = 0; i < kThreads; ++i) {
    const int64_t begin = total * i / kThreads, end = total * (i + 1) / kThreads;
    if (begin < end) threads.emplace_back([&work, begin, end] { work(begin, end); });
  }
  for (std::thread& thread : threads) thread.join();
}

template <typename Element, typename Wire>
void CheckRoundTrip(const Sizes& sizes, double factor, const ParallelFor& parallel_for) {
  const BucketLayout layout(sizes.counts, sizeof(Wire));
  const auto tensors = RandomTensors<Element>(sizes, 7);
  std::vector<const Element*> inputs;
  for (const auto& tensor : tensors) inputs.push_back(tensor.data() + sizes.unaligned);
  const Wire nan = hvd_dbs::Round<Wire>(std::numeric_limits<float>::quiet_NaN());
  // Exactly as long as needed, so that a sanitizer sees an access beyond.
  std::vector<Wire> bucket(layout.length(), nan);
  hvd_dbs::Pack(inputs, layout, factor, bucket.data(), parallel_for);
  CheckPacked(bucket, tensors, sizes, layout, factor);

  if constexpr (!std::is_same_v<Element, Wire>) {
    const Element poison = hvd_dbs::Round<Element>(-12345.0f);
    std::vector<std::vector<Element>> outputs;
    std::vector<Element*> pointers;
    for (const auto& tensor : tensors) {
      outputs.emplace_back(tensor.size(), poison);
      pointers.push_back(outputs.back().data() + sizes.unaligned);
    }
    hvd_dbs::Unpack(static_cast<const Wire*>(bucket.data()), layout, pointers, parallel_for);
    CheckUnpacked(bucket, outputs, sizes, layout, poison);
  }
}

template <typename Element, typename Wire>
void CheckAllSizes() {
  for (const Sizes& sizes : AllSizes()) {
    for (const double factor : {1.0, 0.0, 0.375, 1e-6, 48.0}) {
      CheckRoundTrip<Element, Wire>(sizes, factor, hvd_dbs::RunInline);
      CheckRoundTrip<Element, Wire>(sizes, factor, OnThreads);
    }
  }
}

}  // namespace

#define HVD_DBS_TYPES_TEST(Element, Wire) CheckAllSizes<Element, Wire>();
HVD_DBS_TEST(PacksAndUnpacksAllTypesAndSizes) { HVD_DBS_FOR_EACH_PAIR(HVD_DBS_TYPES_TEST) }

HVD_DBS_TEST(FactorZeroReadsNothing) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> tensor = {nan, inf, -inf, nan, 1};
  const BucketLayout layout({5}, sizeof(float));
  std::vector<float> bucket(layout.length(), nan);
  hvd_dbs::Pack<float, float>({tensor.data()}, layout, 0, bucket.data(), hvd_dbs::RunInline);
  HVD_DBS_CHECK(std::all_of(bucket.begin(), bucket.end(), [](float x) { return x == 0; }),
                "zeros");
  hvd_dbs::Pack<float, float>({nullptr}, layout, 0, bucket.data(), hvd_dbs::RunInline);
}

HVD_DBS_TEST(NanOfAWeightedRankIsNotHidden) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> tensor = {1, nan};
  const BucketLayout layout({2}, sizeof(float));
  std::vector<float> bucket(layout.length());
  hvd_dbs::Pack<float, float>({tensor.data()}, layout, 0.25, bucket.data(), hvd_dbs::RunInline);
  HVD_DBS_CHECK(bucket[layout.begin(0)] == 0.25f, "1 * 0.25");
  HVD_DBS_CHECK(std::isnan(bucket[layout.begin(0) + 1]), "NaN");
}

HVD_DBS_TEST(NanAsFactorIsNotHidden) {
  const std::vector<float> tensor = {1, 0};
  const BucketLayout layout({2}, sizeof(float));
  std::vector<float> bucket(layout.length());
  hvd_dbs::Pack<float, float>({tensor.data()}, layout, std::numeric_limits<double>::quiet_NaN(),
                              bucket.data(), hvd_dbs::RunInline);
  HVD_DBS_CHECK(std::isnan(bucket[0]) && std::isnan(bucket[1]), "NaN");
}

HVD_DBS_TEST(TensorsBeginOnBoundaries) {
  for (const int64_t bytes : {2, 4, 8}) {
    const BucketLayout layout({1, 0, 33, 7}, bytes);
    for (size_t t = 0; t < layout.num_tensors(); ++t) {
      HVD_DBS_CHECK(layout.begin(t) * bytes % hvd_dbs::kAlignmentBytes == 0, "begin");
      HVD_DBS_CHECK(layout.end(t) - layout.begin(t) >= layout.count(t), "end");
    }
    HVD_DBS_CHECK(layout.begin(0) == 0, "nothing before the first tensor");
    const int64_t padding = (layout.length() - (1 + 0 + 33 + 7)) * bytes;
    HVD_DBS_CHECK(padding < 3 * hvd_dbs::kAlignmentBytes, "as docs/gpus.md says of memory");
  }
}

}  // namespace hvd_dbs_test
