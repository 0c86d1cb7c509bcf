// Between many tensors and one flat bucket, on a CPU: plain pointers and sizes.
#ifndef HVD_DBS_OPS_CC_CORE_PACK_H_
#define HVD_DBS_OPS_CC_CORE_PACK_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "hvd_dbs/ops/cc/core/bucket_layout.h"

namespace hvd_dbs {

// Calls `work(begin, end)` on ranges that cover [0, total), possibly at once on several threads.
// `cycles` is about what one of the `total` costs.
using RangeWork = std::function<void(int64_t begin, int64_t end)>;
using ParallelFor = std::function<void(int64_t total, int64_t cycles, const RangeWork& work)>;

// For callers without threads.
void RunInline(int64_t total, int64_t cycles, const RangeWork& work);

// Writes every tensor, times the rank's factor, and zeros for padding into the bucket.
//
// `tensors[i]` has `layout.count(i)` elements and may be null if that is 0. All elements of the
// bucket are written. With weight 0 the tensors are not read.
template <typename Element, typename Wire>
void Pack(const std::vector<const Element*>& tensors, const BucketLayout& layout, double weight,
          double expected_total, Wire* bucket, const ParallelFor& parallel_for);

// Writes every tensor of a summed bucket, divided by the summed weight.
//
// `tensors[i]` may lie in the bucket itself at `layout.begin(i)`, if the types are the same.
template <typename Element, typename Wire>
void Unpack(const Wire* bucket, const BucketLayout& layout, double total, double expected_total,
            const std::vector<Element*>& tensors, const ParallelFor& parallel_for);

}  // namespace hvd_dbs

#endif  // HVD_DBS_OPS_CC_CORE_PACK_H_
