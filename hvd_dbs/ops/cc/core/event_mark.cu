#include "hvd_dbs/ops/cc/core/event_mark.h"

#include <cuda_runtime.h>

#include <limits>

namespace hvd_dbs {
namespace {

class EventMark : public TimeMark {
 public:
  explicit EventMark(cudaEvent_t event) : event_(event) {}
  ~EventMark() override { cudaEventDestroy(event_); }
  EventMark(const EventMark&) = delete;
  EventMark& operator=(const EventMark&) = delete;

  // A failed device counts as passed: its times are NaN, and nobody waits for them for ever.
  bool Passed() const override { return cudaEventQuery(event_) != cudaErrorNotReady; }

  double SecondsSince(const TimeMark& earlier) const override {
    const auto* other = dynamic_cast<const EventMark*>(&earlier);
    float milliseconds = 0;
    if (other == nullptr ||
        cudaEventElapsedTime(&milliseconds, other->event_, event_) != cudaSuccess) {
      return std::numeric_limits<double>::quiet_NaN();
    }
    return milliseconds * 1e-3;
  }

 private:
  cudaEvent_t event_;
};

}  // namespace

std::shared_ptr<const TimeMark> MarkStream(CUstream_st* stream) {
  cudaEvent_t event;
  if (cudaEventCreate(&event) != cudaSuccess) {
    cudaGetLastError();  // Or the next launch would be blamed for it.
    return nullptr;
  }
  auto mark = std::make_shared<const EventMark>(event);
  if (cudaEventRecord(event, stream) != cudaSuccess) {
    cudaGetLastError();
    return nullptr;
  }
  return mark;
}

}  // namespace hvd_dbs
