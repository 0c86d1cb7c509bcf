// Change signals of devices that do what a test says: late, never, or with an error.
#include <limits>
#include <memory>
#include <string>

#include "hvd_dbs/ops/cc/core/device_signal.h"
#include "hvd_dbs/ops/cc/core/step_clock.h"
#include "tests/cc/check.h"
#include "tests/cc/cuda_on_cpu/device.h"
#include "tests/cc/cuda_on_cpu/stream.h"

namespace hvd_dbs {
namespace {

using cuda_on_cpu::Stream;

constexpr int kAll = std::numeric_limits<int>::max();
const float kChange = 1;

}  // namespace

HVD_DBS_TEST(NobodyWaitsForADeviceButWhoTakesTheSignal) {
  const Stream stream;
  StepClock clock(10);
  const auto signal = MakeDeviceSignal();
  const int waits = cuda_on_cpu::NumWaits();
  signal->Receive(&kChange, stream);
  clock.ReceiveSignal(signal);
  clock.Peek(1);
  clock.Drain();
  HVD_DBS_CHECK(cuda_on_cpu::NumWaits() == waits, "a look at the times");
  HVD_DBS_CHECK(clock.TakeSignal() && cuda_on_cpu::NumWaits() == waits + 1, "taken");
  HVD_DBS_CHECK(!clock.TakeSignal() && cuda_on_cpu::NumWaits() == waits + 1, "nothing to wait for");
}

HVD_DBS_TEST(ADeviceThatStandsStillIsNotWaitedForAtTheEnd) {
  const int events = cuda_on_cpu::NumEvents(), waits = cuda_on_cpu::NumWaits();
  const Stream stream;
  {
    StepClock clock(10);
    const auto signal = MakeDeviceSignal();
    signal->Receive(&kChange, stream);
    clock.ReceiveSignal(signal);
  }
  HVD_DBS_CHECK(cuda_on_cpu::NumWaits() == waits, "the host has waited");
  HVD_DBS_CHECK(cuda_on_cpu::NumEvents() == events, "events are left");
  cuda_on_cpu::Advance(stream, kAll);  // Where it writes to is still there.
}

HVD_DBS_TEST(AFailedDeviceSignalsNothingAndReportsIt) {
  const Stream stream;
  StepClock clock(10);
  const auto signal = MakeDeviceSignal();
  signal->Receive(&kChange, stream);
  clock.ReceiveSignal(signal);
  cuda_on_cpu::Fail(cudaErrorLaunchFailure);
  float to = 0;
  const char* received = signal->Receive(&kChange, stream);
  const char* written = WriteSignal(1, &to, stream);
  const bool is_taken = clock.TakeSignal();
  const bool has_another = MakeDeviceSignal() != nullptr;
  cuda_on_cpu::Fail(cudaSuccess);
  HVD_DBS_CHECK(received != nullptr && std::string(received) == "unspecified launch failure", "");
  HVD_DBS_CHECK(written != nullptr && std::string(written) == "unspecified launch failure", "");
  HVD_DBS_CHECK(!is_taken && !has_another, "a failed device");
  cuda_on_cpu::RunOutOfEvents(true);
  const bool has_one = MakeDeviceSignal() != nullptr;
  cuda_on_cpu::RunOutOfEvents(false);
  HVD_DBS_CHECK(!has_one, "without an event");
  cuda_on_cpu::Advance(stream, kAll);
}

HVD_DBS_TEST(ASignalThatAnotherThreadTakesStartsNoOtherDevice) {
  {
    const Stream stream(1);
    StepClock clock(10);
    const auto signal = MakeDeviceSignal();
    signal->Receive(&kChange, stream);
    clock.ReceiveSignal(signal);
    cuda_on_cpu::Restart();
    HVD_DBS_CHECK(clock.TakeSignal(), "taken");
    HVD_DBS_CHECK(!cuda_on_cpu::IsStarted(0) && cuda_on_cpu::IsStarted(1), "devices");
    cuda_on_cpu::Restart();
  }
  HVD_DBS_CHECK(!cuda_on_cpu::IsStarted(0), "nor does its end");
  cuda_on_cpu::Restart();
}

}  // namespace hvd_dbs
