// Bytes a second of pack and unpack against a device-to-device copy of the same bytes, in one run.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "hvd_dbs/ops/cc/core/pack_cuda.h"
#include "tests/cc/bucket_problem.h"
#include "tests/cc/gpu/device_memory.h"

namespace hvd_dbs_test {
namespace {

constexpr int kRepeats = 30;

// Tensor sizes of ResNet-50: 161 tensors, 25.6 million elements.
std::vector<int64_t> Resnet50() {
  std::vector<int64_t> counts = {7 * 7 * 3 * 64, 64, 64};
  const auto convolution = [&](int64_t size, int64_t from, int64_t to) {
    counts.insert(counts.end(), {size * size * from * to, to, to});
  };
  int64_t from = 64;
  const int64_t stages[4][2] = {{64, 3}, {128, 4}, {256, 6}, {512, 3}};
  for (const auto& stage : stages) {
    const int64_t width = stage[0];
    for (int64_t block = 0; block < stage[1]; ++block) {
      convolution(1, from, width);
      convolution(3, width, width);
      convolution(1, width, 4 * width);
      if (block == 0) convolution(1, from, 4 * width);
      from = 4 * width;
    }
  }
  counts.insert(counts.end(), {2048 * 1000, 1000});
  return counts;
}

// Tensor sizes of BERT-base: 199 tensors, 109.5 million elements.
std::vector<int64_t> BertBase() {
  const int64_t width = 768, inner = 3072;
  std::vector<int64_t> counts = {30522 * width, 512 * width, 2 * width, width, width};
  for (int layer = 0; layer < 12; ++layer) {
    for (int i = 0; i < 4; ++i) counts.insert(counts.end(), {width * width, width});
    counts.insert(counts.end(), {width, width, width * inner, inner, inner * width, width});
    counts.insert(counts.end(), {width, width});
  }
  counts.insert(counts.end(), {width * width, width});
  return counts;
}

class Stopwatch {
 public:
  explicit Stopwatch(cudaStream_t stream) : stream_(stream) {
    Require(cudaEventCreate(&begin_), "event");
    Require(cudaEventCreate(&end_), "event");
  }

  double Seconds(const std::function<void()>& work) {
    Require(cudaEventRecord(begin_, stream_), "event");
    work();
    Require(cudaEventRecord(end_, stream_), "event");
    Require(cudaEventSynchronize(end_), "work");
    float milliseconds = 0;
    Require(cudaEventElapsedTime(&milliseconds, begin_, end_), "event");
    return milliseconds * 1e-3;
  }

 private:
  cudaStream_t stream_;
  cudaEvent_t begin_, end_;
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

template <typename Element, typename Wire>
void Measure(const std::string& name, const std::vector<int64_t>& counts) {
  const BucketLayout layout(counts, sizeof(Wire));
  std::vector<DeviceArray<Element>> tensors;
  std::vector<const Element*> from;
  std::vector<Element*> to;
  int64_t elements = 0;
  for (const int64_t count : counts) {
    tensors.emplace_back(count);
    Require(cudaMemset(tensors.back().data(), 0, count * sizeof(Element)), "fill");
    from.push_back(tensors.back().data());
    to.push_back(tensors.back().data());
    elements += count;
  }
  const DeviceArray<Wire> bucket(layout.length());
  // A copy that reads and writes as many bytes as a pack does.
  const int64_t bytes = elements * static_cast<int64_t>(sizeof(Element) + sizeof(Wire)) / 2;
  const DeviceArray<char> source(bytes), target(bytes);
  cudaStream_t stream;
  Require(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  Stopwatch stopwatch(stream);
  std::vector<double> copies, packs, unpacks;
  for (int repeat = 0; repeat < kRepeats + 5; ++repeat) {
    const double copy = stopwatch.Seconds([&] {
      Require(cudaMemcpyAsync(target.data(), source.data(), bytes, cudaMemcpyDeviceToDevice,
                              stream),
              "copy");
    });
    const double pack = stopwatch.Seconds(
        [&] { hvd_dbs::PackOnGpu(from, layout, 0.375, bucket.data(), stream); });
    double unpack = 0;
    if constexpr (!std::is_same<Element, Wire>::value) {
      unpack = stopwatch.Seconds([&] {
        hvd_dbs::UnpackOnGpu(static_cast<const Wire*>(bucket.data()), layout, to, stream);
      });
    }
    if (repeat < 5) continue;
    copies.push_back(copy);
    packs.push_back(pack);
    unpacks.push_back(unpack);
  }
  const double gigabytes = 2e-9 * static_cast<double>(bytes);  // Read and written.
  const double copy = Median(copies), pack = Median(packs), unpack = Median(unpacks);
  std::printf("| %s | %zu | %.1f | %.0f | %.0f | %.2f |", name.c_str(), counts.size(),
              1e-6 * static_cast<double>(elements), gigabytes / copy, gigabytes / pack,
              copy / pack);
  if (unpack > 0) {
    std::printf(" %.0f | %.2f |\n", gigabytes / unpack, copy / unpack);
  } else {
    std::printf(" | |\n");  // Tensors of the bucket's type are used where they lie.
  }
  Require(cudaStreamDestroy(stream), "stream");
}

void MeasureAll(const std::string& name, const std::vector<int64_t>& counts) {
  Measure<float, float>(name + ", float", counts);
  Measure<Half, float>(name + ", half to float", counts);
  Measure<Bfloat16, float>(name + ", bfloat16 to float", counts);
  Measure<Half, Half>(name + ", half", counts);
  Measure<double, double>(name + ", double", counts);
}

}  // namespace

void PrintBandwidths() {
  cudaDeviceProp device;
  Require(cudaGetDeviceProperties(&device, 0), "device");
  std::printf("\n%s, compute capability %d.%d\n\n", device.name, device.major, device.minor);
  std::printf("| buckets | tensors | million elements | copy GB/s | pack GB/s | pack over copy "
              "| unpack GB/s | unpack over copy |\n|---|---:|---:|---:|---:|---:|---:|---:|\n");
  MeasureAll("ResNet-50", Resnet50());
  MeasureAll("BERT-base", BertBase());
  MeasureAll("1 tensor", {int64_t{1} << 26});
  MeasureAll("500 tensors of 1000", std::vector<int64_t>(500, 1000));
}

}  // namespace hvd_dbs_test
