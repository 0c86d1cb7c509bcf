// TensorFlow's CPU threads for the core.
#ifndef HVD_DBS_OPS_CC_KERNELS_WORKER_THREADS_H_
#define HVD_DBS_OPS_CC_KERNELS_WORKER_THREADS_H_

#include "hvd_dbs/ops/cc/core/pack.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/platform/threadpool.h"

namespace hvd_dbs {

inline ParallelFor WorkerThreads(tensorflow::OpKernelContext* context) {
  auto* threads = context->device()->tensorflow_cpu_worker_threads()->workers;
  return [threads](int64_t total, int64_t cycles, const RangeWork& work) {
    if (total == 0) return;
// The one spelling that every TensorFlow has; newer ones would like another.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    threads->ParallelFor(total, cycles, work);
#pragma GCC diagnostic pop
  };
}

}  // namespace hvd_dbs

#endif  // HVD_DBS_OPS_CC_KERNELS_WORKER_THREADS_H_
