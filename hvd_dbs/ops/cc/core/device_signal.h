// The change signal on a CUDA device: where it begins, and where it ends up on the host.
#ifndef HVD_DBS_OPS_CC_CORE_DEVICE_SIGNAL_H_
#define HVD_DBS_OPS_CC_CORE_DEVICE_SIGNAL_H_

#include <memory>

#include "hvd_dbs/ops/cc/core/step_clock.h"

struct CUstream_st;

namespace hvd_dbs {

// Has the stream write a signal to its device's memory. Returns what went wrong, or null.
const char* WriteSignal(float signal, float* to, CUstream_st* stream);

// A flag in the host's memory that a device raises; no copy, and nobody waits but `Take`.
class DeviceSignal : public PendingSignal {
 public:
  // Has the stream raise the flag if the signal, in its device's memory, is above 0. Returns what
  // went wrong, or null. The stream is of the same device in each call.
  virtual const char* Receive(const float* signal, CUstream_st* stream) = 0;
};

// For the current device of this thread. Null where it has no memory or event left.
std::shared_ptr<DeviceSignal> MakeDeviceSignal();

}  // namespace hvd_dbs

#endif  // HVD_DBS_OPS_CC_CORE_DEVICE_SIGNAL_H_
