// Between many tensors and one flat bucket, on a CUDA device: plain pointers, sizes and a stream.
#ifndef HVD_DBS_OPS_CC_CORE_PACK_CUDA_H_
#define HVD_DBS_OPS_CC_CORE_PACK_CUDA_H_

#include <vector>

#include "hvd_dbs/ops/cc/core/bucket_layout.h"

// As in CUDA's own headers, which users of this one need not have.
struct CUstream_st;

namespace hvd_dbs {

// As Pack on a CPU. Pointers are to device memory; the bucket is aligned to 64 bytes, tensors to
// their element. Returns null, or what went wrong with the launch. Does not wait for the device.
template <typename Element, typename Wire>
const char* PackOnGpu(const std::vector<const Element*>& tensors, const BucketLayout& layout,
                      double factor, Wire* bucket, CUstream_st* stream);

// As Unpack on a CPU.
template <typename Element, typename Wire>
const char* UnpackOnGpu(const Wire* bucket, const BucketLayout& layout,
                        const std::vector<Element*>& tensors, CUstream_st* stream);

}  // namespace hvd_dbs

#endif  // HVD_DBS_OPS_CC_CORE_PACK_CUDA_H_
