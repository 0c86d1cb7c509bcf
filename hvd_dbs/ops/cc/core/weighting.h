// The factors of the weighted mean, in one place for CPU, CUDA and tests.
//
// The mean is sum_i w_i x_i / W with W = sum_i w_i. Pack multiplies by w_i / E, unpack by E / W,
// where E is what the caller expects W to be. When the expectation is exact, as it is for the
// samples of a step, unpack has nothing to do; and products keep the range of the tensors.
#ifndef HVD_DBS_OPS_CC_CORE_WEIGHTING_H_
#define HVD_DBS_OPS_CC_CORE_WEIGHTING_H_

#include "hvd_dbs/ops/cc/core/number_types.h"

namespace hvd_dbs {

// 0 for a weight that is not positive: such a rank contributes exact zeros, also for NaN and Inf.
HVD_DBS_HOST_DEVICE inline double PackFactor(double weight, double expected_total) {
  return weight > 0 ? weight / expected_total : 0.0;
}

// 0 if nobody has a weight: the sum is 0 then, and so is the mean.
HVD_DBS_HOST_DEVICE inline double UnpackFactor(double total, double expected_total) {
  if (total == expected_total) return 1.0;
  return total == 0 ? 0.0 : expected_total / total;
}

}  // namespace hvd_dbs

#endif  // HVD_DBS_OPS_CC_CORE_WEIGHTING_H_
