// The change signal from a device's memory to the host's, on a GPU, and on what stands for one.
#include "hvd_dbs/ops/cc/core/device_signal.h"

#include <memory>

#include "hvd_dbs/ops/cc/core/step_clock.h"
#include "tests/cc/check.h"
#include "tests/cc/gpu/device_memory.h"

namespace hvd_dbs {

HVD_DBS_TEST(ASignalIsTakenOnceTheDeviceHasIt) {
  cudaStream_t stream;
  hvd_dbs_test::Require(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  const hvd_dbs_test::DeviceArray<float> memory(1);
  StepClock clock(10);
  const std::shared_ptr<DeviceSignal> signal = MakeDeviceSignal();
  HVD_DBS_CHECK(signal != nullptr, "memory");
  const auto step = [&](float value) {
    HVD_DBS_CHECK(WriteSignal(value, memory.data(), stream) == nullptr, "to the device");
    HVD_DBS_CHECK(signal->Receive(memory.data(), stream) == nullptr, "from the device");
    clock.ReceiveSignal(signal);
  };
  HVD_DBS_CHECK(!clock.TakeSignal(), "nobody has signalled anything");
  step(0);
  HVD_DBS_CHECK(!clock.TakeSignal(), "no change");
  step(0.25);
  HVD_DBS_CHECK(clock.TakeSignal(), "a change of one rank of four");
  HVD_DBS_CHECK(!clock.TakeSignal(), "once");
  step(0);
  HVD_DBS_CHECK(!clock.TakeSignal(), "not in the next step");
  step(1);
  step(0);
  HVD_DBS_CHECK(clock.TakeSignal(), "in one of two steps");
  clock.ReceiveSignal();
  step(0);
  HVD_DBS_CHECK(clock.TakeSignal(), "on the host");
  cudaStreamDestroy(stream);
}

}  // namespace hvd_dbs
