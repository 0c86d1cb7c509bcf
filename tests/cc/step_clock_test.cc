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
  HVD_DBS_CHECK(Near(steps[2].busy_seconds, 4), "the step after it");
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

HVD_DBS_TEST(BucketsSayWhatIsHiddenAndWhatIsNot) {
  StepClock clock(10);
  const auto host = [](double seconds) { return HostMark(static_cast<int64_t>(seconds * 1e9)); };
  const auto bucket = [&](int64_t number, double sent, double back) {
    clock.BucketSent(number, At(sent));
    clock.BucketBack(number, host(back));
  };
  clock.Ready(At(0));
  clock.Back(At(1), 1);  // Nobody notes buckets: one.
  bucket(0, 3, 4);
  bucket(1, 5, 7);
  clock.Ready(At(8));
  bucket(2, 8.5, 10);
  clock.Back(At(11), 1);
  clock.Ready(At(14));  // Ready before all but the last are back; two of them at once.
  bucket(0, 12, 16);
  bucket(1, 15, 17);
  bucket(2, 17, 18);
  clock.Back(At(18), 1);
  bucket(7, 20.5, 21);  // One bucket, packed when all is ready.
  clock.Ready(At(20));
  clock.Back(At(22), 1);
  clock.Ready(At(23));
  clock.BucketSent(1, At(23));  // Packed before bucket 0, and sent after it.
  bucket(0, 23.5, 25);
  clock.BucketBack(1, host(26));
  clock.Back(At(26), 1);
  const auto steps = clock.Drain();
  HVD_DBS_CHECK(Near(steps[0].overlap_seconds, 0) && Near(steps[0].last_bucket_seconds, 1), "none");
  HVD_DBS_CHECK(std::isnan(steps[0].first_bucket_seconds), "after a restart");
  HVD_DBS_CHECK(Near(steps[1].first_bucket_seconds, 2), "first");
  HVD_DBS_CHECK(Near(steps[1].overlap_seconds, 3), "all but the last");
  HVD_DBS_CHECK(Near(steps[1].last_bucket_seconds, 3), "last, from ready on");
  HVD_DBS_CHECK(Near(steps[2].overlap_seconds, 5), "at the same time");
  HVD_DBS_CHECK(Near(steps[2].last_bucket_seconds, 1), "last, from when the others are back");
  HVD_DBS_CHECK(Near(steps[3].first_bucket_seconds, steps[3].busy_seconds), "one: when ready");
  HVD_DBS_CHECK(Near(steps[3].overlap_seconds, 0) && Near(steps[3].last_bucket_seconds, 2), "one");
  HVD_DBS_CHECK(Near(steps[4].overlap_seconds, 1.5), "all but the last one back");
  HVD_DBS_CHECK(Near(steps[4].last_bucket_seconds, 1), "the last one back");
}

HVD_DBS_TEST(BucketsOfAFailedOrUnfinishedStepAreNotTheNextOnes) {
  StepClock clock(10);
  const auto step = [&](double now) {
    clock.BucketSent(0, At(now));
    clock.BucketBack(0, HostMark(static_cast<int64_t>((now + 1) * 1e9)));
    clock.BucketSent(1, At(now + 2));
    clock.BucketBack(1, HostMark(static_cast<int64_t>((now + 3) * 1e9)));
    clock.Ready(At(now + 2));
    clock.Back(At(now + 3), 1);
  };
  clock.BucketSent(0, At(-100));
  step(0);
  clock.BucketSent(5, At(4));
  clock.Restart();
  step(10);
  clock.BucketSent(5, At(14));
  step(20);  // Bucket 5 is never back.
  step(30);
  clock.Restart();
  const auto steps = clock.Drain();
  HVD_DBS_CHECK(Near(steps[0].overlap_seconds, 1) && Near(steps[1].overlap_seconds, 1), "next");
  HVD_DBS_CHECK(std::isnan(steps[2].overlap_seconds) && std::isnan(steps[2].last_bucket_seconds) &&
                    std::isnan(steps[2].first_bucket_seconds),
                "not back");
  HVD_DBS_CHECK(Near(steps[2].wait_seconds, 1) && Near(steps[3].overlap_seconds, 1), "others");
}

HVD_DBS_TEST(BucketsOfADeviceCompareByTheEndOfTheStep) {
  bool passed = true;
  StepClock clock(10);
  const auto device = [&](double seconds) {
    return std::make_shared<const DeviceMark>(seconds, &passed);
  };
  clock.BucketSent(0, device(1));
  clock.BucketBack(0, HostMark());
  clock.Ready(device(1));
  clock.BucketSent(1, device(1));
  clock.BucketBack(1, HostMark());
  clock.Back(device(5), 1);
  const auto steps = clock.Drain();
  // The host has seen both sums and the end within milliseconds; the device sent 4 s before.
  HVD_DBS_CHECK(std::abs(steps[0].overlap_seconds - 4) < 1, "hidden");
  HVD_DBS_CHECK(steps[0].last_bucket_seconds >= 0 && steps[0].last_bucket_seconds < 1, "last");
  clock.BucketSent(0, nullptr);  // No event was to be had.
  clock.BucketBack(0, HostMark());
  clock.Ready(device(6));
  clock.BucketSent(1, device(6));
  clock.BucketBack(1, HostMark());
  clock.Back(device(7), 1);
  HVD_DBS_CHECK(std::isnan(clock.Drain()[0].overlap_seconds), "no event");
}

HVD_DBS_TEST(AStepWaitsFromReadyToBack) {
  StepClock clock(1);
  HVD_DBS_CHECK(!clock.WaitsForOthers(), "none has begun");
  clock.Ready(std::make_shared<HostMark>());
  HVD_DBS_CHECK(clock.WaitsForOthers(), "ready");
  clock.Back(std::make_shared<HostMark>(), 1);
  HVD_DBS_CHECK(!clock.WaitsForOthers(), "back");
}

HVD_DBS_TEST(AStepThatNeverComesBackIsForgotten) {
  StepClock clock(1);
  clock.Ready(std::make_shared<HostMark>());
  clock.Restart();
  HVD_DBS_CHECK(!clock.WaitsForOthers(), "restarted");
  clock.Back(std::make_shared<HostMark>(), 1);
  HVD_DBS_CHECK(clock.Drain().empty(), "no step");
}

HVD_DBS_TEST(ChangeSignalIsReceivedOnce) {
  StepClock clock(1);
  HVD_DBS_CHECK(!clock.has_changed() && !clock.TakeSignal(), "none");
  HVD_DBS_CHECK(clock.step() < 0, "nobody has said which step is under way");
  clock.BeginStep(7);
  HVD_DBS_CHECK(clock.step() == 7, "the step that was begun");
  clock.Tell(true);
  HVD_DBS_CHECK(clock.has_changed() && !clock.TakeSignal(), "sent, not received");
  clock.ReceiveSignal();
  clock.ReceiveSignal();
  HVD_DBS_CHECK(clock.TakeSignal() && !clock.TakeSignal(), "received");
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
