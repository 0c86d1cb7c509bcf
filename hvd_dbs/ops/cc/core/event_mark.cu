#include "hvd_dbs/ops/cc/core/event_mark.h"

#include <cuda_runtime.h>

#include <limits>

namespace hvd_dbs {
namespace {

class EventMark : public TimeMark {
 public:
  EventMark(cudaEvent_t event, int device) : event_(event), device_(device) {}
  ~EventMark() override {
    ChooseDevice(device_);
    cudaEventDestroy(event_);
  }
  EventMark(const EventMark&) = delete;
  EventMark& operator=(const EventMark&) = delete;

  // A failed device counts as passed: its times are NaN, and nobody waits for them for ever.
  bool Passed() const override {
    ChooseDevice(device_);
    return cudaEventQuery(event_) != cudaErrorNotReady;
  }

  double SecondsSince(const TimeMark& earlier) const override {
    const auto* other = dynamic_cast<const EventMark*>(&earlier);
    float milliseconds = 0;
    ChooseDevice(device_);
    if (other == nullptr ||
        cudaEventElapsedTime(&milliseconds, other->event_, event_) != cudaSuccess) {
      return std::numeric_limits<double>::quiet_NaN();
    }
    return milliseconds * 1e-3;
  }

 private:
  cudaEvent_t event_;
  int device_;
};

}  // namespace

void ChooseDevice(int device) {
  int current = -1;
  if (cudaGetDevice(&current) != cudaSuccess || current != device) cudaSetDevice(device);
}

std::shared_ptr<const TimeMark> MarkStream(CUstream_st* stream) {
  // TensorFlow has made the stream's device the current one of a thread that runs a kernel.
  int device = 0;
  cudaEvent_t event;
  if (cudaGetDevice(&device) != cudaSuccess || cudaEventCreate(&event) != cudaSuccess) {
    return nullptr;
  }
  auto mark = std::make_shared<const EventMark>(event, device);
  return cudaEventRecord(event, stream) == cudaSuccess ? mark : nullptr;
}

}  // namespace hvd_dbs
