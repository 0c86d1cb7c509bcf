// The step clock on CUDA events of devices that do what a test says: late, out of order, never, or
// with an error.
#include <cmath>
#include <limits>
#include <memory>
#include <string>

#include "hvd_dbs/ops/cc/core/event_mark.h"
#include "hvd_dbs/ops/cc/core/pack_cuda.h"
#include "hvd_dbs/ops/cc/core/step_clock.h"
#include "tests/cc/check.h"
#include "tests/cc/cuda_on_cpu/device.h"
#include "tests/cc/cuda_on_cpu/stream.h"

namespace hvd_dbs {
namespace {

using cuda_on_cpu::AddWork;
using cuda_on_cpu::Advance;
using cuda_on_cpu::Stream;

constexpr int kAll = std::numeric_limits<int>::max();

bool Near(double a, double b) { return std::abs(a - b) < 1e-6; }  // CUDA counts in floats.

// What kernels do in a step: compute, note, send, wait for others, note.
void AskForStep(StepClock& clock, cudaStream_t stream, double busy, double wait, double samples) {
  AddWork(stream, busy);
  clock.Ready(MarkStream(stream));
  AddWork(stream, wait);
  clock.Back(MarkStream(stream), samples);
}
constexpr int kOperationsOfAStep = 4;

}  // namespace

HVD_DBS_TEST(ALateDevicesStepsAreKnownWhenItHasDoneThem) {
  const int events = cuda_on_cpu::NumEvents(), waits = cuda_on_cpu::NumWaits();
  const Stream stream;
  {
    StepClock clock(10);
    for (int step = 0; step < 4; ++step) AskForStep(clock, stream, 2 + step, 0.5, step);
    HVD_DBS_CHECK(clock.Drain().empty(), "the host is ahead of the device");
    Advance(stream, kOperationsOfAStep);
    HVD_DBS_CHECK(clock.Drain().size() == 1, "the first step");
    Advance(stream, kOperationsOfAStep - 1);
    HVD_DBS_CHECK(clock.Drain().empty(), "the second one is ready, and not back");
    Advance(stream, kAll);
    const auto steps = clock.Drain();
    HVD_DBS_CHECK(steps.size() == 3, "all");
    for (size_t i = 0; i < steps.size(); ++i) {
      HVD_DBS_CHECK(Near(steps[i].busy_seconds, 3.0 + static_cast<double>(i)), "busy");
      HVD_DBS_CHECK(Near(steps[i].wait_seconds, 0.5), "wait");
      HVD_DBS_CHECK(steps[i].num_samples == static_cast<double>(i + 1), "samples");
    }
  }
  HVD_DBS_CHECK(cuda_on_cpu::NumWaits() == waits, "the host has waited");
  HVD_DBS_CHECK(cuda_on_cpu::NumEvents() == events, "events are left");
}

HVD_DBS_TEST(BucketsOfALateDeviceSayWhatWasHidden) {
  const Stream stream;
  StepClock clock(10);
  AskForStep(clock, stream, 1, 1, 1);
  AddWork(stream, 2);
  clock.BucketSent(0, MarkStream(stream));
  AddWork(stream, 3);
  clock.Ready(MarkStream(stream));
  clock.BucketSent(1, MarkStream(stream));
  AddWork(stream, 4);
  // The host has both sums, and asks for the end of the step, within a moment.
  clock.BucketBack(0, HostMark());
  clock.BucketBack(1, HostMark());
  clock.Back(MarkStream(stream), 1);
  Advance(stream, kAll);
  const auto steps = clock.Drain();
  HVD_DBS_CHECK(steps.size() == 2 && Near(steps[1].busy_seconds, 5), "busy");
  HVD_DBS_CHECK(Near(steps[1].first_bucket_seconds, 2), "the first bucket");
  HVD_DBS_CHECK(std::abs(steps[1].overlap_seconds - 7) < 0.5, "hidden, to the host's moment");
  HVD_DBS_CHECK(steps[1].last_bucket_seconds < 0.5, "the last bucket");
}

HVD_DBS_TEST(StreamsThatPassOutOfOrderGiveTheSameSteps) {
  const int events = cuda_on_cpu::NumEvents();
  const Stream one, other;
  {
    StepClock clock(10);
    AskForStep(clock, one, 1, 1, 1);
    AskForStep(clock, other, 2, 1, 2);
    Advance(other, kAll);
    HVD_DBS_CHECK(clock.Drain().empty(), "the second step, and not the first");
    Advance(one, kAll);
    const auto steps = clock.Drain();
    HVD_DBS_CHECK(steps.size() == 2 && steps[0].num_samples == 1 && steps[1].num_samples == 2,
                  "in order");
    HVD_DBS_CHECK(Near(steps[0].wait_seconds, 1) && Near(steps[1].wait_seconds, 1), "wait");
    // Back has passed on one stream, ready on the other has not: not known.
    clock.Ready(MarkStream(one));
    clock.Back(MarkStream(other), 3);
    Advance(other, kAll);
    const auto unknown = clock.Drain();
    HVD_DBS_CHECK(unknown.size() == 1 && std::isnan(unknown[0].wait_seconds), "not ready");
  }
  HVD_DBS_CHECK(cuda_on_cpu::NumEvents() == events, "events are left");
}

HVD_DBS_TEST(ADeviceThatStandsStillTakesABoundedNumberOfEvents) {
  constexpr int kCapacity = 16;
  const int events = cuda_on_cpu::NumEvents(), waits = cuda_on_cpu::NumWaits();
  const Stream stream;
  {
    StepClock clock(kCapacity);
    for (int step = 0; step < 10 * kCapacity; ++step) AskForStep(clock, stream, 1, 1, step);
    HVD_DBS_CHECK(clock.Drain().empty(), "nothing has happened");
    // Two for each step that is kept, and the end of the step before them.
    HVD_DBS_CHECK(cuda_on_cpu::NumEvents() - events <= 2 * kCapacity + 1, "events");
    Advance(stream, kAll);
    const auto steps = clock.Drain();
    HVD_DBS_CHECK(steps.size() == kCapacity && steps[0].num_samples == 9 * kCapacity, "newest");
    HVD_DBS_CHECK(Near(steps[0].busy_seconds, 1), "its beginning is known");
  }
  HVD_DBS_CHECK(cuda_on_cpu::NumWaits() == waits, "the host has waited");
  HVD_DBS_CHECK(cuda_on_cpu::NumEvents() == events, "events are left");
}

HVD_DBS_TEST(AFailedDeviceGivesNanAndNobodyWaits) {
  const int events = cuda_on_cpu::NumEvents();
  const Stream stream;
  {
    StepClock clock(10);
    AskForStep(clock, stream, 1, 1, 1);
    AskForStep(clock, stream, 1, 1, 2);
    cuda_on_cpu::Fail(cudaErrorLaunchFailure);
    const auto steps = clock.Drain();
    HVD_DBS_CHECK(steps.size() == 2 && std::isnan(steps[1].busy_seconds), "NaN");
    HVD_DBS_CHECK(std::isnan(steps[1].wait_seconds), "NaN");
    HVD_DBS_CHECK(MarkStream(stream) == nullptr, "no event");
    cuda_on_cpu::Fail(cudaSuccess);
  }
  HVD_DBS_CHECK(cuda_on_cpu::NumEvents() == events, "events are left");
}

HVD_DBS_TEST(StepsWithoutAnEventAreLeftOut) {
  const int events = cuda_on_cpu::NumEvents();
  const Stream stream;
  {
    StepClock clock(10);
    const auto step = [&](bool has_ready, bool has_back) {
      AddWork(stream, 1);
      cuda_on_cpu::RunOutOfEvents(!has_ready);
      clock.Ready(MarkStream(stream));
      cuda_on_cpu::RunOutOfEvents(!has_back);
      clock.Back(MarkStream(stream), 1);
      cuda_on_cpu::RunOutOfEvents(false);
    };
    step(true, true);
    step(false, true);
    step(true, true);
    step(true, false);
    step(true, true);
    step(true, true);
    Advance(stream, kAll);
    const auto steps = clock.Drain();
    HVD_DBS_CHECK(steps.size() == 4, "those with both");
    HVD_DBS_CHECK(Near(steps[1].busy_seconds, 1), "after one that was not ready");
    HVD_DBS_CHECK(std::isnan(steps[2].busy_seconds), "after one that was not back");
    HVD_DBS_CHECK(Near(steps[3].busy_seconds, 1), "the next one");
  }
  HVD_DBS_CHECK(cuda_on_cpu::NumEvents() == events, "events are left");
}

HVD_DBS_TEST(AClockThatIsReadByAnotherThreadStartsNoOtherDevice) {
  const int events = cuda_on_cpu::NumEvents();
  {
    const Stream stream(1);
    StepClock clock(10);
    AskForStep(clock, stream, 1, 1, 1);
    AskForStep(clock, stream, 1, 1, 1);
    Advance(stream, kAll);
    cuda_on_cpu::Restart();  // As a thread of Python's, whose current device is the first one.
    HVD_DBS_CHECK(clock.Drain().size() == 2, "steps");
    HVD_DBS_CHECK(!cuda_on_cpu::IsStarted(0) && cuda_on_cpu::IsStarted(1), "devices");
    AskForStep(clock, stream, 1, 1, 1);
    cuda_on_cpu::Restart();
  }
  HVD_DBS_CHECK(!cuda_on_cpu::IsStarted(0), "nor does its end");
  HVD_DBS_CHECK(cuda_on_cpu::NumEvents() == events, "events are left");
  cuda_on_cpu::Restart();
}

HVD_DBS_TEST(AnErrorOfALaunchIsItsOwn) {
  const Stream stream;
  const float one = 1;
  float bucket[16];
  const BucketLayout layout({1}, sizeof(float));
  const auto pack = [&] {
    return PackOnGpu<float, float>({&one}, layout, 1, bucket, static_cast<cudaStream_t>(stream));
  };
  AddWork(stream, 1);
  HVD_DBS_CHECK(!MarkStream(stream)->Passed(), "a look at a device that is not ready");
  HVD_DBS_CHECK(pack() == nullptr, "a launch after it");
  cuda_on_cpu::Fail(cudaErrorLaunchFailure);
  const char* error = pack();
  HVD_DBS_CHECK(error != nullptr && std::string(error) == "unspecified launch failure", "error");
  cuda_on_cpu::Fail(cudaSuccess);
  Advance(stream, kAll);
}

}  // namespace hvd_dbs
