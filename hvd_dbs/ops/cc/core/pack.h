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

// Writes every tensor, times `factor`, and zeros for padding into the bucket.
//
// `factor` is the rank's share of the weights of all ranks, so that the sum of all ranks' buckets
// holds the weighted means. With factor 0 the tensors are not read and count as zeros: such a rank
// may hold NaN or Inf.
//
// `tensors[i]` has `layout.count(i)` elements and may be null if that is 0. All elements of the
// bucket are written.
template <typename Element, typename Wire>
void Pack(const std::vector<const Element*>& tensors, const BucketLayout& layout, double factor,
          Wire* bucket, const ParallelFor& parallel_for);

// Writes every tensor of a summed bucket in the tensor's own type, which is not the bucket's:
// tensors of the bucket's type are used where they lie.
template <typename Element, typename Wire>
void Unpack(const Wire* bucket, const BucketLayout& layout, const std::vector<Element*>& tensors,
            const ParallelFor& parallel_for);

}  // namespace hvd_dbs

#endif  // HVD_DBS_OPS_CC_CORE_PACK_H_
