// A moment of a CUDA stream, for the step clock.
#ifndef HVD_DBS_OPS_CC_CORE_EVENT_MARK_H_
#define HVD_DBS_OPS_CC_CORE_EVENT_MARK_H_

#include <memory>

#include "hvd_dbs/ops/cc/core/step_clock.h"

struct CUstream_st;

namespace hvd_dbs {

// Makes the device of an event the current one of this thread, and leaves it so. Python's threads
// have chosen none, and a call about any event would start the host's first GPU for them: hundreds
// of megabytes of that GPU's memory for each rank. A rank has one GPU.
void ChooseDevice(int device);

// When the device has done what was asked of the stream until now; null if there is no event to
// be had, since a step must not fail for its clock. Does not wait for the device.
std::shared_ptr<const TimeMark> MarkStream(CUstream_st* stream);

}  // namespace hvd_dbs

#endif  // HVD_DBS_OPS_CC_CORE_EVENT_MARK_H_
