// TensorFlow's element types and the core's.
#ifndef HVD_DBS_OPS_CC_KERNELS_NUMBER_TYPES_H_
#define HVD_DBS_OPS_CC_KERNELS_NUMBER_TYPES_H_

#include "hvd_dbs/ops/cc/core/number_types.h"
#include "tensorflow/core/framework/types.h"

namespace hvd_dbs {

template <typename Number>
struct InTensorFlow {
  using type = Number;
};
template <>
struct InTensorFlow<Half> {
  using type = Eigen::half;
};
template <>
struct InTensorFlow<Bfloat16> {
  using type = Eigen::bfloat16;
};

static_assert(sizeof(Half) == sizeof(Eigen::half), "half types differ");
static_assert(sizeof(Bfloat16) == sizeof(Eigen::bfloat16), "half types differ");

}  // namespace hvd_dbs

#endif  // HVD_DBS_OPS_CC_KERNELS_NUMBER_TYPES_H_
