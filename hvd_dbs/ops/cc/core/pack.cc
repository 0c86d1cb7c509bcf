#include "hvd_dbs/ops/cc/core/pack.h"

#include <algorithm>
#include <cstring>

#include "hvd_dbs/ops/cc/core/number_types.h"

namespace hvd_dbs {
namespace {

// Threads share the bucket in blocks of this many bytes, so that one huge tensor and hundreds of
// tiny ones are divided alike. A block must be worth waking a thread for.
constexpr int64_t kBlockBytes = 128 * 1024;

// Calls `part(tensor, first, last)` for the elements of each tensor that lie in [begin, end) of
// the bucket; positions are relative to the tensor and may reach into its padding.
template <typename Part>
void ForEachPart(const BucketLayout& layout, int64_t begin, int64_t end, const Part& part) {
  size_t low = 0, high = layout.num_tensors();
  while (low < high) {  // Find the first tensor that ends after `begin`.
    const size_t middle = low + (high - low) / 2;
    if (layout.end(middle) > begin) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  for (size_t i = low; i < layout.num_tensors() && layout.begin(i) < end; ++i) {
    const int64_t first = std::max(begin, layout.begin(i)) - layout.begin(i);
    const int64_t last = std::min(end, layout.end(i)) - layout.begin(i);
    if (first < last) part(i, first, last);
  }
}

template <typename From, typename To, typename Wide>
void Scale(const From* __restrict__ from, To* __restrict__ to, int64_t count, Wide factor) {
  for (int64_t i = 0; i < count; ++i) to[i] = Round<To>(Widen<Wide>(from[i]) * factor);
}

template <typename From, typename To>
void Cast(const From* __restrict__ from, To* __restrict__ to, int64_t count) {
  using Wide = Arithmetic<From, To>;
  for (int64_t i = 0; i < count; ++i) to[i] = Round<To>(Widen<Wide>(from[i]));
}

template <typename Wire>
void InBlocks(int64_t length, const ParallelFor& parallel_for, const RangeWork& work) {
  constexpr int64_t block = kBlockBytes / sizeof(Wire);
  const int64_t num_blocks = (length + block - 1) / block;
  // About a cycle for every 4 bytes, when all cores share the memory.
  parallel_for(num_blocks, kBlockBytes / 4, [&](int64_t first, int64_t last) {
    work(first * block, std::min(last * block, length));
  });
}

}  // namespace

void RunInline(int64_t total, int64_t /*cycles*/, const RangeWork& work) {
  if (total > 0) work(0, total);
}

template <typename Element, typename Wire>
void Pack(const std::vector<const Element*>& tensors, const BucketLayout& layout, double factor,
          Wire* bucket, const ParallelFor& parallel_for) {
  const auto wide_factor = static_cast<Arithmetic<Element, Wire>>(factor);
  InBlocks<Wire>(layout.length(), parallel_for, [&](int64_t begin, int64_t end) {
    ForEachPart(layout, begin, end, [&](size_t i, int64_t first, int64_t last) {
      Wire* to = bucket + layout.begin(i);
      // Where the tensor's own elements end in this part; with factor 0 there are none.
      const int64_t filled = wide_factor == 0 ? first : std::clamp(layout.count(i), first, last);
      if (filled > first) Scale(tensors[i] + first, to + first, filled - first, wide_factor);
      if (last > filled) memset(to + filled, 0, (last - filled) * sizeof(Wire));
    });
  });
}

template <typename Element, typename Wire>
void Unpack(const Wire* bucket, const BucketLayout& layout, const std::vector<Element*>& tensors,
            const ParallelFor& parallel_for) {
  InBlocks<Wire>(layout.length(), parallel_for, [&](int64_t begin, int64_t end) {
    ForEachPart(layout, begin, end, [&](size_t i, int64_t first, int64_t last) {
      const int64_t count = std::min(last, layout.count(i)) - first;
      if (count > 0) Cast(bucket + layout.begin(i) + first, tensors[i] + first, count);
    });
  });
}

#define HVD_DBS_INSTANTIATE(Element, Wire)                                                     \
  template void Pack(const std::vector<const Element*>&, const BucketLayout&, double, Wire*, \
                     const ParallelFor&);
HVD_DBS_FOR_EACH_PAIR(HVD_DBS_INSTANTIATE)
#undef HVD_DBS_INSTANTIATE

#define HVD_DBS_INSTANTIATE(Element, Wire)                                                 \
  template void Unpack(const Wire*, const BucketLayout&, const std::vector<Element*>&, \
                       const ParallelFor&);
HVD_DBS_FOR_EACH_UNLIKE_PAIR(HVD_DBS_INSTANTIATE)
#undef HVD_DBS_INSTANTIATE

}  // namespace hvd_dbs
