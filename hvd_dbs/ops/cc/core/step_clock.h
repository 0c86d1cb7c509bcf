// When a rank had its data, when its own gradients were ready and when the reduced ones came back,
// step by step, by bucket too; which step that is; and the change signal that ranks exchange with
// their gradients.
#ifndef HVD_DBS_OPS_CC_CORE_STEP_CLOCK_H_
#define HVD_DBS_OPS_CC_CORE_STEP_CLOCK_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace hvd_dbs {

// A moment that may still lie ahead: on a GPU the host runs before the device.
class TimeMark {
 public:
  virtual ~TimeMark() = default;
  // Whether the moment has passed; never waits.
  virtual bool Passed() const = 0;
  // NaN if the two cannot be compared. Both have passed.
  virtual double SecondsSince(const TimeMark& earlier) const = 0;
};

// A moment of the host's monotonic clock.
class HostMark : public TimeMark {
 public:
  HostMark();  // Now.
  explicit HostMark(int64_t nanoseconds) : nanoseconds_(nanoseconds) {}
  bool Passed() const override { return true; }
  double SecondsSince(const TimeMark& earlier) const override;

 private:
  int64_t nanoseconds_;
};

struct StepTimes {
  double busy_seconds;  // NaN where the step follows a restart.
  double wait_seconds;
  double num_samples;
  double data_seconds;  // NaN where nobody has noted both ends.
  double first_bucket_seconds;  // Until the first bucket was sent; at most busy_seconds.
  double overlap_seconds;  // Some bucket but the last one back was on its way; NaN: unknown.
  double last_bucket_seconds;  // From when all is ready and those are back; likewise.
};

// A signal that may still be on its way from a device.
class PendingSignal {
 public:
  virtual ~PendingSignal() = default;
  // Whether there was a change since the last call; waits for what the device was asked for.
  virtual bool Take() = 0;
};

// busy(k) = ready(k) - back(k-1) - excluded, wait(k) = back(k) - ready(k),
// data(k) = fed(k) - asked(k). Without notes of buckets there is one.
// Safe to use from several threads.
class StepClock {
 public:
  // Keeps the newest `capacity` steps.
  explicit StepClock(size_t capacity) : capacity_(capacity) {}

  // The step under way does not count: more than a step's work is in it.
  void Restart();
  // The data of a step are asked for, at the latest when the step before is over, and are there:
  // moments of the host.
  void Ask(HostMark mark);
  void Fed(HostMark mark);
  // Null marks: nobody knows when; the steps that they begin or end are not known either.
  void Ready(std::shared_ptr<const TimeMark> mark);
  void Back(std::shared_ptr<const TimeMark> mark, double num_samples);
  // A bucket of the step is ready to be sent, on the device of the gradients, and its sum is back,
  // which the host knows at once. Numbers distinguish the buckets of a step.
  void BucketSent(int64_t number, std::shared_ptr<const TimeMark> mark);
  void BucketBack(int64_t number, HostMark mark);
  // So much of the time since the last `Back` is no part of the step under way.
  void Exclude(double seconds);
  // Whether a step is between `Ready` and `Back`.
  bool WaitsForOthers();
  // The steps since the last call whose times are known by now, oldest first.
  std::vector<StepTimes> Drain();
  // The newest of them, at most so many, oldest first; they stay.
  std::vector<StepTimes> Peek(size_t num_steps);

  // Which step of the epoch is under way; negative: nobody says so.
  void BeginStep(int64_t step) { step_ = step; }
  int64_t step() const { return step_; }

  // Whether this rank signals to the others, from its next step on, that it has changed.
  void Tell(bool has_changed) { has_changed_ = has_changed; }
  bool has_changed() const { return has_changed_; }
  // Some rank has signalled a change in the step under way; or a device will know whether one has.
  void ReceiveSignal() { received_ = true; }
  void ReceiveSignal(std::shared_ptr<PendingSignal> signal);
  // Whether one has since the last call; waits for the device.
  bool TakeSignal();

 private:
  struct Bucket {
    int64_t number;
    std::shared_ptr<const TimeMark> sent;
    std::optional<HostMark> back;
  };

  struct Step {
    std::shared_ptr<const TimeMark> begin;  // Null after a restart.
    std::shared_ptr<const TimeMark> ready;
    std::shared_ptr<const TimeMark> back;
    double num_samples;
    double data_seconds;
    double excluded_seconds;
    std::vector<Bucket> buckets;
    HostMark back_on_host;  // When `back` was noted.
  };

  static StepTimes TimesOf(const Step& step);
  void Resolve();

  const size_t capacity_;
  std::mutex mutex_;
  std::shared_ptr<const TimeMark> last_back_;
  std::shared_ptr<const TimeMark> ready_;
  std::optional<HostMark> asked_;
  double data_seconds_ = std::numeric_limits<double>::quiet_NaN();
  double excluded_seconds_ = 0;
  std::vector<Bucket> buckets_;
  std::deque<Step> pending_;
  std::deque<StepTimes> known_;
  std::atomic<int64_t> step_ = -1;
  std::atomic<bool> has_changed_ = false;
  std::atomic<bool> received_ = false;
  std::vector<std::shared_ptr<PendingSignal>> signals_;  // Each once.
};

// Clocks by number, because a graph's operations can only name one by an attribute.
int64_t RegisterStepClock(size_t capacity);
void ForgetStepClock(int64_t clock);
// Null if it was forgotten.
std::shared_ptr<StepClock> FindStepClock(int64_t clock);

}  // namespace hvd_dbs

#endif  // HVD_DBS_OPS_CC_CORE_STEP_CLOCK_H_
