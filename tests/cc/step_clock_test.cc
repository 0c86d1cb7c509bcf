// The step clock on moments that are given, with devices that lag.
#include "hvd_dbs/ops/cc/core/step_clock.h"

#include <cmath>
#include <memory>

#include "tests/cc/check.h"

namespace hvd_dbs {
namespace {

std::shared_ptr<const TimeMark> At(double seconds) {
  return std::make_shared<const HostMark>(static_cast<int64_t>(seconds * 1e9));
}

// A moment of a device that has or has not got there.
class DeviceMark : public TimeMark {
 public:
  DeviceMark(double seconds, const bool* passed) : seconds_(seconds), passed_(passed) {}
  bool Passed() const override { return *passed_; }
  double SecondsSince(const TimeMark& earlier) const override {
    return seconds_ - dynamic_cast<const DeviceMark&>(earlier).seconds_;
  }

 private:
  double seconds_;
  const bool* passed_;
};

bool Near(double a, double b) { return std::abs(a - b) < 1e-9; }

}  // namespace

HVD_DBS_TEST(BusyAndWaitOfEachStep) {
  StepClock clock(10);
  clock.Ready(At(1));
  clock.Back(At(3), 8);
  clock.Ready(At(7));
  clock.Back(At(7.5), 4);
  const auto steps = clock.Drain();
  HVD_DBS_CHECK(steps.size() == 2, "steps");
  HVD_DBS_CHECK(std::isnan(steps[0].busy_seconds) && Near(steps[0].wait_seconds, 2), "first");
  HVD_DBS_CHECK(Near(steps[1].busy_seconds, 4) && Near(steps[1].wait_seconds, 0.5), "second");
  HVD_DBS_CHECK(steps[0].num_samples == 8 && steps[1].num_samples == 4, "samples");
  HVD_DBS_CHECK(clock.Drain().empty(), "drained");
}

HVD_DBS_TEST(DataCountFromWhenTheyWereAskedFor) {
  StepClock clock(10);
  const auto step = [&](double now) {
    clock.Ready(At(now));
    clock.Back(At(now), 1);
  };
  const auto host = [](double seconds) { return HostMark(static_cast<int64_t>(seconds * 1e9)); };
  clock.Ask(host(1));
  clock.Fed(host(1.5));
  step(2);
  clock.Fed(host(3));  // The second step of a call asks when the first one is over.
  step(4);
  clock.Ask(host(5));
  clock.Restart();  // Traced in between.
  clock.Fed(host(9));
  step(10);
  clock.Ask(host(11));
  clock.Fed(host(11.25));
  step(12);
  step(13);
  const auto steps = clock.Drain();
  HVD_DBS_CHECK(Near(steps[0].data_seconds, 0.5) && Near(steps[3].data_seconds, 0.25), "asked");
  HVD_DBS_CHECK(Near(steps[1].data_seconds, 1), "second of a call");
  HVD_DBS_CHECK(std::isnan(steps[2].data_seconds), "restart");
  HVD_DBS_CHECK(std::isnan(steps[4].data_seconds), "not fed");
}

HVD_DBS_TEST(AStepAfterARestartDoesNotCount) {
  StepClock clock(10);
  clock.Ready(At(1));
  clock.Back(At(2), 1);
  clock.Restart();
  clock.Ready(At(100));
  clock.Back(At(101), 1);
  clock.Ready(At(102));
  clock.Back(At(103), 1);
  const auto steps = clock.Drain();
  HVD_DBS_CHECK(std::isnan(steps[1].busy_seconds) && Near(steps[2].busy_seconds, 1), "restart");
}

HVD_DBS_TEST(WhatIsNoWorkOfAStepIsLeftOutOfThatStepAlone) {
  StepClock clock(10);
  const auto step = [&](double now) {
    clock.Ready(At(now));
    clock.Back(At(now + 1), 1);
  };
  step(0);
  clock.Exclude(0.5);
  clock.Exclude(0.25);
  step(5);
  step(10);
  const auto steps = clock.Drain();
  HVD_DBS_CHECK(Near(steps[1].busy_seconds, 3.25) && Near(steps[1].wait_seconds, 1), "excluded");
  HVD_DBS_CHECK(Near(steps[2].busy_seconds, 4), "the step behind it");
}

HVD_DBS_TEST(PeekShowsTheNewestStepsAndLeavesThem) {
  StepClock clock(10);
  HVD_DBS_CHECK(clock.Peek(3).empty(), "nothing yet");
  for (int i = 0; i < 4; ++i) {
    clock.Ready(At(i));
    clock.Back(At(i + 0.5), i);
  }
  const auto newest = clock.Peek(2);
  HVD_DBS_CHECK(newest.size() == 2 && newest[0].num_samples == 2 && newest[1].num_samples == 3,
                "two of them");
  HVD_DBS_CHECK(clock.Peek(9).size() == 4 && clock.Drain().size() == 4, "all of them");
  HVD_DBS_CHECK(clock.Peek(1).empty(), "drained");
}

HVD_DBS_TEST(NewsAreHeardOnce) {
  StepClock clock(1);
  HVD_DBS_CHECK(!clock.has_news() && !clock.TakeHeard(), "none");
  HVD_DBS_CHECK(clock.step() < 0, "nobody has said which step is under way");
  clock.BeginStep(7);
  HVD_DBS_CHECK(clock.step() == 7, "the step that was begun");
  clock.Tell(true);
  HVD_DBS_CHECK(clock.has_news() && !clock.TakeHeard(), "told, not heard");
  clock.Hear();
  clock.Hear();
  HVD_DBS_CHECK(clock.TakeHeard() && !clock.TakeHeard(), "heard");
}

HVD_DBS_TEST(StepsOfALaggingDeviceComeLater) {
  bool passed = false, later_passed = false;
  StepClock clock(10);
  clock.Ready(std::make_shared<const DeviceMark>(1, &passed));
  clock.Back(std::make_shared<const DeviceMark>(2, &passed), 1);
  clock.Ready(std::make_shared<const DeviceMark>(5, &later_passed));
  clock.Back(std::make_shared<const DeviceMark>(6, &later_passed), 1);
  HVD_DBS_CHECK(clock.Drain().empty(), "nothing has happened yet");
  passed = true;
  HVD_DBS_CHECK(clock.Drain().size() == 1, "the first step");
  later_passed = true;
  const auto steps = clock.Drain();
  HVD_DBS_CHECK(steps.size() == 1 && Near(steps[0].busy_seconds, 3), "the second step");
}

HVD_DBS_TEST(OnlyTheNewestStepsAreKept) {
  StepClock clock(3);
  for (int i = 0; i < 7; ++i) {
    clock.Ready(At(i));
    clock.Back(At(i + 0.5), i);
  }
  const auto steps = clock.Drain();
  HVD_DBS_CHECK(steps.size() == 3 && steps[0].num_samples == 4, "capacity");
}

HVD_DBS_TEST(MarksThatCannotBeComparedGiveNan) {
  const bool passed = true;
  HVD_DBS_CHECK(std::isnan(HostMark(5).SecondsSince(DeviceMark(1, &passed))), "mixed");
  StepClock clock(3);
  clock.Back(At(1), 1);  // Without a Ready, as after a failed step.
  HVD_DBS_CHECK(clock.Drain().empty(), "no step");
}

HVD_DBS_TEST(ClocksAreFoundByNumberUntilForgotten) {
  const int64_t one = RegisterStepClock(1), two = RegisterStepClock(1);
  HVD_DBS_CHECK(one != two && FindStepClock(one) != FindStepClock(two), "numbers");
  ForgetStepClock(one);
  HVD_DBS_CHECK(FindStepClock(one) == nullptr && FindStepClock(two) != nullptr, "forgotten");
}

}  // namespace hvd_dbs
