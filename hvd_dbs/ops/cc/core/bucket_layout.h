// Where each tensor lies in a flat bucket.
//
//   | tensor 0, zeros | tensor 1, zeros | ...
//
// Every tensor begins on a 64-byte boundary: a reduced tensor can then be used where it lies, and
// vector accesses to the bucket are always aligned.
#ifndef HVD_DBS_OPS_CC_CORE_BUCKET_LAYOUT_H_
#define HVD_DBS_OPS_CC_CORE_BUCKET_LAYOUT_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace hvd_dbs {

constexpr int64_t kAlignmentBytes = 64;

class BucketLayout {
 public:
  // `counts`: elements of each tensor, may be 0. `element_bytes`: of one element of the bucket.
  BucketLayout(std::vector<int64_t> counts, int64_t element_bytes) : counts_(std::move(counts)) {
    const int64_t unit = kAlignmentBytes / element_bytes;
    offsets_.reserve(counts_.size() + 1);
    int64_t offset = 0;
    for (const int64_t count : counts_) {
      offsets_.push_back(offset);
      offset += (count + unit - 1) / unit * unit;
    }
    offsets_.push_back(offset);
  }

  size_t num_tensors() const { return counts_.size(); }
  // Elements of the whole bucket, padding included.
  int64_t length() const { return offsets_.back(); }
  int64_t count(size_t tensor) const { return counts_[tensor]; }
  int64_t begin(size_t tensor) const { return offsets_[tensor]; }
  // One past the tensor's padding.
  int64_t end(size_t tensor) const { return offsets_[tensor + 1]; }

 private:
  std::vector<int64_t> counts_;
  std::vector<int64_t> offsets_;
};

}  // namespace hvd_dbs

#endif  // HVD_DBS_OPS_CC_CORE_BUCKET_LAYOUT_H_
