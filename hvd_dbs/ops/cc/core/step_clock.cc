#include "hvd_dbs/ops/cc/core/step_clock.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <limits>
#include <unordered_map>
#include <utility>

namespace hvd_dbs {

HostMark::HostMark()
    : nanoseconds_(std::chrono::duration_cast<std::chrono::nanoseconds>(
                       std::chrono::steady_clock::now().time_since_epoch())
                       .count()) {}

double HostMark::SecondsSince(const TimeMark& earlier) const {
  const auto* other = dynamic_cast<const HostMark*>(&earlier);
  if (other == nullptr) return std::numeric_limits<double>::quiet_NaN();
  return static_cast<double>(nanoseconds_ - other->nanoseconds_) * 1e-9;
}

void StepClock::Restart() {
  const std::lock_guard<std::mutex> lock(mutex_);
  last_back_.reset();
  asked_.reset();
  ready_.reset();  // Of a step that never came back, since another rank has failed in it.
  buckets_.clear();
}

void StepClock::Ask(HostMark mark) {
  const std::lock_guard<std::mutex> lock(mutex_);
  asked_ = mark;
}

void StepClock::Fed(HostMark mark) {
  const std::lock_guard<std::mutex> lock(mutex_);
  data_seconds_ =
      asked_ ? mark.SecondsSince(*asked_) : std::numeric_limits<double>::quiet_NaN();
  asked_.reset();
}

void StepClock::Ready(std::shared_ptr<const TimeMark> mark) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ready_ = std::move(mark);
}

void StepClock::Back(std::shared_ptr<const TimeMark> mark, double num_samples) {
  const std::lock_guard<std::mutex> lock(mutex_);
  // Where a call runs several steps, nobody says when it asks for the next one's data.
  const auto* host = dynamic_cast<const HostMark*>(mark.get());
  const HostMark now = host == nullptr ? HostMark() : *host;
  if (ready_ != nullptr && mark != nullptr) {  // A device may have had no event left.
    pending_.push_back({last_back_, std::move(ready_), mark, num_samples, data_seconds_,
                        excluded_seconds_, std::move(buckets_), now});
  }
  ready_ = nullptr;
  buckets_.clear();
  excluded_seconds_ = 0;
  data_seconds_ = std::numeric_limits<double>::quiet_NaN();
  asked_ = now;
  last_back_ = std::move(mark);
  Resolve();
}

void StepClock::BucketSent(int64_t number, std::shared_ptr<const TimeMark> mark) {
  const std::lock_guard<std::mutex> lock(mutex_);
  // What a failed step has left there is replaced.
  const auto same = [number](const Bucket& bucket) { return bucket.number == number; };
  buckets_.erase(std::remove_if(buckets_.begin(), buckets_.end(), same), buckets_.end());
  buckets_.push_back({number, std::move(mark), std::nullopt});
}

void StepClock::BucketBack(int64_t number, HostMark mark) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (Bucket& bucket : buckets_) {
    if (bucket.number == number) bucket.back = mark;
  }
}

void StepClock::Exclude(double seconds) {
  const std::lock_guard<std::mutex> lock(mutex_);
  excluded_seconds_ += seconds;
}

bool StepClock::WaitsForOthers() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return ready_ != nullptr;
}

void StepClock::ReceiveSignal(std::shared_ptr<PendingSignal> signal) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (std::find(signals_.begin(), signals_.end(), signal) == signals_.end()) {
    signals_.push_back(std::move(signal));
  }
}

bool StepClock::TakeSignal() {
  std::vector<std::shared_ptr<PendingSignal>> signals;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    signals.swap(signals_);
  }
  bool received = received_.exchange(false);
  for (const auto& signal : signals) received |= signal->Take();
  return received;
}

std::vector<StepTimes> StepClock::Drain() {
  const std::lock_guard<std::mutex> lock(mutex_);
  Resolve();
  std::vector<StepTimes> steps(known_.begin(), known_.end());
  known_.clear();
  return steps;
}

std::vector<StepTimes> StepClock::Peek(size_t num_steps) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Resolve();
  return {known_.end() - static_cast<std::ptrdiff_t>(std::min(num_steps, known_.size())),
          known_.end()};
}

StepTimes StepClock::TimesOf(const Step& step) {
  constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
  const double busy = step.begin == nullptr
                          ? kUnknown
                          : step.ready->SecondsSince(*step.begin) - step.excluded_seconds;
  const double wait = step.back->SecondsSince(*step.ready);
  StepTimes times = {busy, wait, step.num_samples, step.data_seconds, busy, 0, wait};
  if (step.buckets.size() < 2) return times;  // Nothing hides a single one.
  // Of each bucket when it was sent and back, as seconds before the step's end. A device's and the
  // host's moments only compare by that end, when the device has nothing else to do.
  std::vector<std::pair<double, double>> before;
  for (const Bucket& bucket : step.buckets) {
    const double sent =
        bucket.sent == nullptr ? kUnknown : step.back->SecondsSince(*bucket.sent);
    const double back = bucket.back ? step.back_on_host.SecondsSince(*bucket.back) : kUnknown;
    if (std::isnan(sent) || std::isnan(back)) {
      times.first_bucket_seconds = times.overlap_seconds = times.last_bucket_seconds = kUnknown;
      return times;
    }
    before.emplace_back(sent, back);
  }
  std::sort(before.begin(), before.end(), std::greater<>());
  times.first_bucket_seconds = busy - std::max(before.front().first - wait, 0.0);
  // Buckets may be packed in any order, and leave one after the other.
  const auto is_later = [](const auto& one, const auto& other) { return one.second < other.second; };
  before.erase(std::min_element(before.begin(), before.end(), is_later));  // The one back last.
  double free = std::numeric_limits<double>::infinity();  // No bucket is on its way since then.
  for (const auto& [sent, back] : before) {
    times.overlap_seconds += std::max(std::min(sent, free) - back, 0.0);
    free = std::min(free, back);
  }
  times.last_bucket_seconds = std::max(std::min(wait, free), 0.0);
  return times;
}

void StepClock::Resolve() {
  // Moments pass in the order in which they were noted.
  while (!pending_.empty() && pending_.front().back->Passed()) {
    known_.push_back(TimesOf(pending_.front()));
    pending_.pop_front();
  }
  while (known_.size() > capacity_) known_.pop_front();
  // Only a device that stands still gets here; each mark holds an event.
  while (pending_.size() > capacity_) pending_.pop_front();
}

namespace {

struct Registry {
  std::mutex mutex;
  int64_t next = 0;
  std::unordered_map<int64_t, std::shared_ptr<StepClock>> clocks;
};

Registry& TheRegistry() {
  static Registry* const registry = new Registry;  // Operations may outlive static objects.
  return *registry;
}

}  // namespace

int64_t RegisterStepClock(size_t capacity) {
  Registry& registry = TheRegistry();
  const std::lock_guard<std::mutex> lock(registry.mutex);
  registry.clocks.emplace(registry.next, std::make_shared<StepClock>(capacity));
  return registry.next++;
}

void ForgetStepClock(int64_t clock) {
  Registry& registry = TheRegistry();
  const std::lock_guard<std::mutex> lock(registry.mutex);
  registry.clocks.erase(clock);
}

std::shared_ptr<StepClock> FindStepClock(int64_t clock) {
  Registry& registry = TheRegistry();
  const std::lock_guard<std::mutex> lock(registry.mutex);
  const auto found = registry.clocks.find(clock);
  return found == registry.clocks.end() ? nullptr : found->second;
}

}  // namespace hvd_dbs

// What Python calls through ctypes.
#define HVD_DBS_EXPORT extern "C" __attribute__((visibility("default")))

HVD_DBS_EXPORT int64_t hvd_dbs_step_clock_new(int64_t capacity) {
  return hvd_dbs::RegisterStepClock(static_cast<size_t>(capacity));
}

HVD_DBS_EXPORT void hvd_dbs_step_clock_delete(int64_t clock) { hvd_dbs::ForgetStepClock(clock); }

HVD_DBS_EXPORT void hvd_dbs_step_clock_restart(int64_t clock) {
  if (const auto found = hvd_dbs::FindStepClock(clock)) found->Restart();
}

HVD_DBS_EXPORT void hvd_dbs_step_clock_ask(int64_t clock) {
  if (const auto found = hvd_dbs::FindStepClock(clock)) found->Ask(hvd_dbs::HostMark());
}

HVD_DBS_EXPORT void hvd_dbs_step_clock_exclude(int64_t clock, double seconds) {
  if (const auto found = hvd_dbs::FindStepClock(clock)) found->Exclude(seconds);
}

HVD_DBS_EXPORT void hvd_dbs_step_clock_begin_step(int64_t clock, int64_t step) {
  if (const auto found = hvd_dbs::FindStepClock(clock)) found->BeginStep(step);
}

HVD_DBS_EXPORT void hvd_dbs_step_clock_send_signal(int64_t clock, bool has_changed) {
  if (const auto found = hvd_dbs::FindStepClock(clock)) found->Tell(has_changed);
}

HVD_DBS_EXPORT bool hvd_dbs_step_clock_waits_for_others(int64_t clock) {
  const auto found = hvd_dbs::FindStepClock(clock);
  return found != nullptr && found->WaitsForOthers();
}

HVD_DBS_EXPORT bool hvd_dbs_step_clock_take_signal(int64_t clock) {
  const auto found = hvd_dbs::FindStepClock(clock);
  return found != nullptr && found->TakeSignal();
}

namespace {

// What `StepTimes` has, in that order, 7 numbers for each step; returns how many steps.
int64_t Write(const std::vector<hvd_dbs::StepTimes>& steps, double* rows, int64_t capacity) {
  int64_t num_steps = 0;
  for (const hvd_dbs::StepTimes& step : steps) {
    if (num_steps == capacity) break;
    *rows++ = step.busy_seconds;
    *rows++ = step.wait_seconds;
    *rows++ = step.num_samples;
    *rows++ = step.data_seconds;
    *rows++ = step.first_bucket_seconds;
    *rows++ = step.overlap_seconds;
    *rows++ = step.last_bucket_seconds;
    ++num_steps;
  }
  return num_steps;
}

}  // namespace

HVD_DBS_EXPORT int64_t hvd_dbs_step_clock_drain(int64_t clock, double* rows, int64_t capacity) {
  const auto found = hvd_dbs::FindStepClock(clock);
  return found == nullptr ? 0 : Write(found->Drain(), rows, capacity);
}

HVD_DBS_EXPORT int64_t hvd_dbs_step_clock_peek(int64_t clock, double* rows, int64_t capacity) {
  const auto found = hvd_dbs::FindStepClock(clock);
  if (found == nullptr) return 0;
  return Write(found->Peek(static_cast<size_t>(capacity)), rows, capacity);
}
