// The moment at which a kernel's device gets to where the kernel is. Include it after the
// definition of EIGEN_USE_GPU.
#ifndef HVD_DBS_OPS_CC_KERNELS_MOMENT_H_
#define HVD_DBS_OPS_CC_KERNELS_MOMENT_H_

#include <memory>

#include "hvd_dbs/ops/cc/core/step_clock.h"
#include "tensorflow/core/framework/op_kernel.h"
#ifdef HVD_DBS_WITH_CUDA
#include "hvd_dbs/ops/cc/core/event_mark.h"
#endif

namespace hvd_dbs {

inline std::shared_ptr<const TimeMark> Now(
    [[maybe_unused]] ::tensorflow::OpKernelContext* context, [[maybe_unused]] bool on_gpu) {
#ifdef HVD_DBS_WITH_CUDA
  if (on_gpu) return MarkStream(context->eigen_gpu_device().stream());
#endif
  return std::make_shared<const HostMark>();
}

}  // namespace hvd_dbs

#endif  // HVD_DBS_OPS_CC_KERNELS_MOMENT_H_
