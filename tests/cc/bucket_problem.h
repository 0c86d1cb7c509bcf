// Random buckets with a float64 reference, the same for CPU and GPU.
#ifndef HVD_DBS_TESTS_CC_BUCKET_PROBLEM_H_
#define HVD_DBS_TESTS_CC_BUCKET_PROBLEM_H_

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "hvd_dbs/ops/cc/core/bucket_layout.h"
#include "hvd_dbs/ops/cc/core/number_types.h"
#include "tests/cc/check.h"

namespace hvd_dbs_test {

using hvd_dbs::Bfloat16;
using hvd_dbs::BucketLayout;
using hvd_dbs::Half;

// The distance between 1 and the next number, and the smallest step at all.
template <typename Number>
double Epsilon() {
  if (std::is_same<Number, Half>::value) return std::ldexp(1.0, -10);
  if (std::is_same<Number, Bfloat16>::value) return std::ldexp(1.0, -7);
  if (std::is_same<Number, float>::value) return std::ldexp(1.0, -23);
  return std::ldexp(1.0, -52);
}
template <typename Number>
double SmallestStep() {
  if (std::is_same<Number, Half>::value) return std::ldexp(1.0, -24);
  if (std::is_same<Number, double>::value) return std::ldexp(1.0, -1074);
  return std::ldexp(1.0, -126);  // Float and bfloat16 may be flushed to zero below this.
}

template <typename Number>
double Largest() {
  if (std::is_same<Number, Half>::value) return 65504;
  if (std::is_same<Number, double>::value) return std::numeric_limits<double>::max();
  return std::numeric_limits<float>::max();  // Of bfloat16, within its precision.
}

// Whether `value` is `expected`, rounded a few times in `Number` and once in float.
template <typename Number>
bool IsNear(double value, double expected) {
  if (std::isnan(expected)) return std::isnan(value);
  if (std::isinf(expected)) return value == expected;
  const double unit = Epsilon<Number>() + (std::is_same<Number, double>::value ? 0 : 4e-7);
  if (std::isinf(value)) {
    return (value > 0) == (expected > 0) && std::abs(expected) >= Largest<Number>() * (1 - unit);
  }
  return std::abs(value - expected) <= 2 * unit * std::abs(expected) + SmallestStep<Number>();
}

struct Sizes {
  std::string name;
  std::vector<int64_t> counts;
  int unaligned = 0;  // Elements that each tensor is away from an aligned address.
};

inline std::vector<Sizes> AllSizes() {
  std::vector<Sizes> sizes = {
      {"one element", {1}},
      {"nothing", {0}},
      {"empty ones between", {0, 5, 0, 0, 17, 0}},
      {"around a vector", {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33}},
      {"unaligned", {1, 3, 64, 65, 1000, 4099}, 1},
      {"unaligned by three", {16, 100, 1025}, 3},
      {"around a block", {32767, 32768, 32769, 65536}},
      {"one huge, many tiny", {}},
      {"more than a launch carries", {}},
  };
  for (int i = 0; i < 400; ++i) sizes[7].counts.push_back(i == 200 ? 300000 : i % 7);
  for (int i = 0; i < 1000; ++i) sizes[8].counts.push_back(1 + i % 40);
  return sizes;
}

template <typename Element>
std::vector<std::vector<Element>> RandomTensors(const Sizes& sizes, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  std::vector<std::vector<Element>> tensors;
  for (const int64_t count : sizes.counts) {
    std::vector<Element> tensor(count + sizes.unaligned);
    for (Element& value : tensor) value = hvd_dbs::Round<Element>(normal(random));
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

// Checks a packed bucket; `tensors` as they were given, with `unaligned` elements before each.
template <typename Element, typename Wire>
void CheckPacked(const std::vector<Wire>& bucket, const std::vector<std::vector<Element>>& tensors,
                 const Sizes& sizes, const BucketLayout& layout, double factor) {
  const auto at = [&](int64_t i) { return hvd_dbs::Widen<double>(bucket[i]); };
  for (size_t t = 0; t < layout.num_tensors(); ++t) {
    for (int64_t i = 0; i < layout.end(t) - layout.begin(t); ++i) {
      const double packed = at(layout.begin(t) + i);
      if (i >= layout.count(t) || factor == 0) {
        HVD_DBS_CHECK(packed == 0, sizes.name);
      } else {
        const double value = hvd_dbs::Widen<double>(tensors[t][sizes.unaligned + i]);
        HVD_DBS_CHECK(IsNear<Wire>(packed, value * factor), sizes.name);
      }
    }
  }
}

// Checks unpacked tensors and that nothing before or after them was written.
template <typename Element, typename Wire>
void CheckUnpacked(const std::vector<Wire>& bucket,
                   const std::vector<std::vector<Element>>& tensors, const Sizes& sizes,
                   const BucketLayout& layout, Element poison) {
  for (size_t t = 0; t < layout.num_tensors(); ++t) {
    for (int64_t i = 0; i < static_cast<int64_t>(tensors[t].size()); ++i) {
      const double value = hvd_dbs::Widen<double>(tensors[t][i]);
      const int64_t place = i - sizes.unaligned;
      if (place < 0 || place >= layout.count(t)) {
        HVD_DBS_CHECK(value == hvd_dbs::Widen<double>(poison), sizes.name);
      } else {
        const double summed = hvd_dbs::Widen<double>(bucket[layout.begin(t) + place]);
        HVD_DBS_CHECK(IsNear<Element>(value, summed), sizes.name);
      }
    }
  }
}

}  // namespace hvd_dbs_test

#endif  // HVD_DBS_TESTS_CC_BUCKET_PROBLEM_H_
