#include "tests/cc/cuda_on_cpu/device.h"

#include <algorithm>
#include <array>
#include <deque>

#include "tests/cc/cuda_on_cpu/calls.h"

// A moment of a stream; CUDA lets an event be destroyed before the stream gets to it.
struct Moment {
  bool is_recorded = false;  // With its time.
  bool has_passed = true;  // As CUDA says of an event that was never recorded.
  double seconds = 0;
};

struct CUevent_st {
  int device;
  bool has_time;
  std::shared_ptr<Moment> moment;
  CUstream_st* stream;  // That it was recorded on.
};

struct CUstream_st {
  struct Operation {
    double seconds;
    std::function<void()> work;
  };

  int device;
  double seconds = 0;  // Of its clock, when it has done what it was asked for.
  std::deque<Operation> operations;
};

namespace cuda_on_cpu {
namespace {

constexpr size_t kMostParameterBytes = 4096;
constexpr unsigned kMostBlocksToRun = 65536, kPlaces = 64, kBlocksAtAPlace = 4;
constexpr double kBlockSeconds = 1e-7;

cudaError_t failure = cudaSuccess;
bool no_event_left = false;
int num_events = 0, num_waits = 0;
std::array<bool, kNumDevices> is_started = {};
thread_local int current_device = 0;
void Wait(cudaStream_t stream) {
  CountWait();
  Advance(stream, static_cast<int>(stream->operations.size()));
}

bool Runs(unsigned block, unsigned num_blocks) {
  if (num_blocks <= kMostBlocksToRun) return true;
  const unsigned place = num_blocks / kPlaces, to_the_last = num_blocks - 1 - block;
  const unsigned after = block % place;
  return std::min({after, place - after, to_the_last}) < kBlocksAtAPlace;
}

void RunGrid(const dim3& blocks, const dim3& threads, const std::function<void()>& thread) {
  for (unsigned block = 0; block < blocks.x; ++block) {
    if (!Runs(block, blocks.x)) continue;
    blockIdx = dim3(block, 0, 0);
    for (unsigned i = 0; i < threads.x; ++i) {
      threadIdx = dim3(i, 0, 0);
      thread();
    }
  }
}

}  // namespace

cudaError_t Use() {
  is_started[current_device] = true;
  return failure;
}

void Enqueue(cudaStream_t stream, double seconds, std::function<void()> work) {
  stream->operations.push_back({seconds, std::move(work)});
}

void CountWait() { ++num_waits; }

cudaError_t Launch(const cudaLaunchConfig_t& grid, size_t parameter_bytes,
                   std::function<void()> thread) {
  if (const cudaError_t error = Use()) return error;
  if (parameter_bytes > kMostParameterBytes) return cudaErrorInvalidValue;
  const bool has_one_dimension =
      grid.gridDim.y * grid.gridDim.z * grid.blockDim.y * grid.blockDim.z == 1;
  if (!has_one_dimension || grid.gridDim.x == 0 || grid.gridDim.x > 0x7fffffffu ||
      grid.blockDim.x == 0 || grid.blockDim.x > 1024) {
    return cudaErrorInvalidConfiguration;
  }
  // CUDA would take the default stream, which nothing of TensorFlow's waits for.
  if (grid.stream == nullptr) return cudaErrorInvalidResourceHandle;
  Enqueue(grid.stream, kBlockSeconds * grid.gridDim.x,
          [grid, thread = std::move(thread)] { RunGrid(grid.gridDim, grid.blockDim, thread); });
  return cudaSuccess;
}

void AddWork(cudaStream_t stream, double seconds) {
  Enqueue(stream, seconds, [] {});
}

void Advance(cudaStream_t stream, int count) {
  for (; count > 0 && !stream->operations.empty(); --count) {
    const CUstream_st::Operation next = std::move(stream->operations.front());
    stream->operations.pop_front();
    stream->seconds += next.seconds;
    next.work();
  }
}

void Fail(cudaError_t error) { failure = error; }
void RunOutOfEvents(bool none_left) { no_event_left = none_left; }
int NumEvents() { return num_events; }
int NumWaits() { return num_waits; }
bool IsStarted(int device) { return is_started[device]; }

void Restart() {
  is_started = {};
  current_device = 0;
}

}  // namespace cuda_on_cpu

using namespace cuda_on_cpu;

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInvalidConfiguration: return "invalid configuration argument";
    case cudaErrorInvalidResourceHandle: return "invalid resource handle";
    case cudaErrorNotReady: return "device not ready";
    case cudaErrorLaunchFailure: return "unspecified launch failure";
  }
  return "unknown error";
}

cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  current_device = device;
  return Use();
}

cudaError_t cudaDeviceSynchronize() {
  CountWait();
  return Use();
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned /*flags*/) {
  if (const cudaError_t error = Use()) return error;
  *stream = new CUstream_st{current_device, 0, {}};
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (const cudaError_t error = Use()) return error;
  Wait(stream);
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return Use();
}

cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  if (const cudaError_t error = Use()) return error;
  if (no_event_left) return cudaErrorMemoryAllocation;
  const bool has_time = (flags & cudaEventDisableTiming) == 0;
  *event = new CUevent_st{current_device, has_time, std::make_shared<Moment>(), nullptr};
  ++num_events;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (const cudaError_t error = Use()) return error;
  if (stream != nullptr && stream->device != event->device) return cudaErrorInvalidResourceHandle;
  event->moment = std::make_shared<Moment>();
  event->moment->is_recorded = event->has_time;
  event->stream = stream;
  if (stream == nullptr) return cudaSuccess;  // The default stream has nothing to do.
  event->moment->has_passed = false;
  Enqueue(stream, 0, [moment = event->moment, stream] {
    moment->has_passed = true;
    moment->seconds = stream->seconds;
  });
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (const cudaError_t error = Use()) return error;
  return event->moment->has_passed ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  CountWait();
  if (const cudaError_t error = Use()) return error;
  while (!event->moment->has_passed) Advance(event->stream, 1);
  return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  if (const cudaError_t error = Use()) return error;
  const Moment &first = *begin->moment, &last = *end->moment;
  if (!first.is_recorded || !last.is_recorded || begin->device != end->device) {
    return cudaErrorInvalidResourceHandle;
  }
  if (!first.has_passed || !last.has_passed) return cudaErrorNotReady;
  *milliseconds = static_cast<float>((last.seconds - first.seconds) * 1e3);
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  --num_events;
  return Use();
}
