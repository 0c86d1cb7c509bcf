#include <cuda_runtime.h>

#include <cstdint>

#include "hvd_dbs/ops/cc/core/number_types.h"
#include "hvd_dbs/ops/cc/core/pack_cuda.h"

namespace hvd_dbs {
namespace {

// A kernel's parameters may take 4 KiB on every device; the tables below are passed by value, so
// that a launch needs neither a copy to the device nor memory that must outlive it.
constexpr int kMaxTensorsPerLaunch = 300;
constexpr int kThreads = 256;
// Vectors a thread moves at once: enough loads in flight to hide the memory's latency.
constexpr int kVectorsPerThread = 4;
constexpr int kVectorsPerBlock = kThreads * kVectorsPerThread;

// Consecutive tensors of a bucket. Tensor i lies in [begin[i], begin[i + 1]) of the alignment
// units counted from the first tensor's, less `padding[i]` elements at the end.
template <typename Pointer>
struct TensorTable {
  Pointer pointer[kMaxTensorsPerLaunch];
  uint32_t begin[kMaxTensorsPerLaunch + 1];
  uint8_t padding[kMaxTensorsPerLaunch];
  int num_tensors;
};

// How a pair of types is cut into vectors: 16 bytes of the wider one.
template <typename Element, typename Wire>
struct Geometry {
  static constexpr int kVector =
      16 / static_cast<int>(sizeof(Element) > sizeof(Wire) ? sizeof(Element) : sizeof(Wire));
  static constexpr int kUnit = kAlignmentBytes / static_cast<int>(sizeof(Wire));
  static constexpr int kVectorsPerUnit = kUnit / kVector;
};

template <typename Number, int kCount>
struct alignas(sizeof(Number) * kCount) Vector {
  Number at[kCount];
};

// The tensor that a unit belongs to, in [low, high].
template <typename Pointer>
__device__ int FindTensor(const TensorTable<Pointer>& table, uint32_t unit, int low, int high) {
  while (low < high) {
    const int middle = (low + high) / 2;
    if (table.begin[middle + 1] > unit) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

// Calls `move(tensor, first, count, vector)` for this thread's vectors: `first` is the vector's
// place in the tensor, `count` the tensor's elements, `vector` the place in the bucket.
//
// A block takes consecutive vectors whatever they belong to, so it does not matter whether they
// are of one huge tensor or of hundreds of tiny ones. Most blocks lie in one tensor: one search.
template <typename Element, typename Wire, typename Pointer, typename Move>
__device__ void ForEachVector(const TensorTable<Pointer>& table, const Move& move) {
  using G = Geometry<Element, Wire>;
  const int64_t num_vectors =
      static_cast<int64_t>(table.begin[table.num_tensors]) * G::kVectorsPerUnit;
  const int64_t block_begin = static_cast<int64_t>(blockIdx.x) * kVectorsPerBlock;
  const int64_t block_last = min(block_begin + kVectorsPerBlock, num_vectors) - 1;
  const int last = table.num_tensors - 1;
  const int low =
      FindTensor(table, static_cast<uint32_t>(block_begin / G::kVectorsPerUnit), 0, last);
  const int high =
      FindTensor(table, static_cast<uint32_t>(block_last / G::kVectorsPerUnit), low, last);
#pragma unroll
  for (int k = 0; k < kVectorsPerThread; ++k) {
    const int64_t vector = block_begin + k * kThreads + threadIdx.x;
    if (vector > block_last) return;
    const int tensor =
        FindTensor(table, static_cast<uint32_t>(vector / G::kVectorsPerUnit), low, high);
    const int64_t begin = static_cast<int64_t>(table.begin[tensor]) * G::kUnit;
    const int64_t end = static_cast<int64_t>(table.begin[tensor + 1]) * G::kUnit;
    move(tensor, vector * G::kVector - begin, end - begin - table.padding[tensor], vector);
  }
}

template <typename Number, int kCount>
__device__ bool IsAligned(const Number* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % (sizeof(Number) * kCount) == 0;
}

template <typename Element, typename Wire>
__global__ void __launch_bounds__(kThreads)
    PackKernel(const __grid_constant__ TensorTable<const Element*> table,
               Arithmetic<Element, Wire> factor, Wire* bucket) {
  using Wide = Arithmetic<Element, Wire>;
  constexpr int kVector = Geometry<Element, Wire>::kVector;
  ForEachVector<Element, Wire>(
      table, [&](int tensor, int64_t first, int64_t count, int64_t vector) {
        const Element* from = table.pointer[tensor] + first;
        Vector<Wire, kVector> packed;
        if (factor == 0) {
#pragma unroll
          for (int i = 0; i < kVector; ++i) packed.at[i] = Round<Wire>(Wide(0));
        } else if (first + kVector <= count && IsAligned<Element, kVector>(from)) {
          const auto values = *reinterpret_cast<const Vector<Element, kVector>*>(from);
#pragma unroll
          for (int i = 0; i < kVector; ++i) {
            packed.at[i] = Round<Wire>(Widen<Wide>(values.at[i]) * factor);
          }
        } else {
#pragma unroll
          for (int i = 0; i < kVector; ++i) {
            packed.at[i] =
                Round<Wire>(first + i < count ? Widen<Wide>(from[i]) * factor : Wide(0));
          }
        }
        reinterpret_cast<Vector<Wire, kVector>*>(bucket)[vector] = packed;
      });
}

template <typename Element, typename Wire>
__global__ void __launch_bounds__(kThreads)
    UnpackKernel(const __grid_constant__ TensorTable<Element*> table, const Wire* bucket) {
  using Wide = Arithmetic<Element, Wire>;
  constexpr int kVector = Geometry<Element, Wire>::kVector;
  ForEachVector<Element, Wire>(
      table, [&](int tensor, int64_t first, int64_t count, int64_t vector) {
        Element* to = table.pointer[tensor] + first;
        const auto summed = reinterpret_cast<const Vector<Wire, kVector>*>(bucket)[vector];
        Vector<Element, kVector> values;
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
          values.at[i] = Round<Element>(Widen<Wide>(summed.at[i]));
        }
        if (first + kVector <= count && IsAligned<Element, kVector>(to)) {
          *reinterpret_cast<Vector<Element, kVector>*>(to) = values;
        } else {
#pragma unroll
          for (int i = 0; i < kVector; ++i) {
            if (first + i < count) to[i] = values.at[i];
          }
        }
      });
}

cudaLaunchConfig_t Grid(unsigned blocks, CUstream_st* stream) {
  cudaLaunchConfig_t grid = {};
  grid.gridDim = dim3(blocks);
  grid.blockDim = dim3(kThreads);
  grid.stream = stream;
  return grid;
}

// Calls `launch(table, first element, blocks)` for as many tensors at a time as a table holds.
//
// Launches go through cudaLaunchKernelEx, which returns their own error, where cudaGetLastError
// would return what any earlier call has left; and it is C++, which tests compile for a CPU.
template <typename Element, typename Wire, typename Pointer, typename Launch>
const char* LaunchAll(const std::vector<Pointer>& tensors, const BucketLayout& layout,
                      const Launch& launch) {
  using G = Geometry<Element, Wire>;
  static_assert(sizeof(TensorTable<Pointer>) <= 4096 - 64, "more than a launch may carry");
  for (size_t i = 0; i < layout.num_tensors();) {
    TensorTable<Pointer> table;
    table.num_tensors = 0;
    table.begin[0] = 0;
    const int64_t base = layout.begin(i);
    for (; i < layout.num_tensors() && table.num_tensors < kMaxTensorsPerLaunch; ++i) {
      const int64_t end = (layout.end(i) - base) / G::kUnit;
      if (end > UINT32_MAX) break;
      if (layout.count(i) == 0) continue;
      table.pointer[table.num_tensors] = tensors[i];
      table.padding[table.num_tensors] =
          static_cast<uint8_t>(layout.end(i) - layout.begin(i) - layout.count(i));
      table.begin[++table.num_tensors] = static_cast<uint32_t>(end);
    }
    if (table.num_tensors == 0) {
      if (i < layout.num_tensors()) return "a tensor takes more than 256 GiB of its bucket";
      break;  // No tensor from here on has elements.
    }
    const int64_t num_vectors =
        static_cast<int64_t>(table.begin[table.num_tensors]) * G::kVectorsPerUnit;
    const int64_t blocks = (num_vectors + kVectorsPerBlock - 1) / kVectorsPerBlock;
    const cudaError_t error = launch(table, base, static_cast<unsigned>(blocks));
    if (error != cudaSuccess) return cudaGetErrorString(error);
  }
  return nullptr;
}

}  // namespace

template <typename Element, typename Wire>
const char* PackOnGpu(const std::vector<const Element*>& tensors, const BucketLayout& layout,
                      double factor, Wire* bucket, CUstream_st* stream) {
  const auto wide_factor = static_cast<Arithmetic<Element, Wire>>(factor);
  return LaunchAll<Element, Wire>(
      tensors, layout,
      [&](const TensorTable<const Element*>& table, int64_t base, unsigned blocks) {
        const cudaLaunchConfig_t grid = Grid(blocks, stream);
        return cudaLaunchKernelEx(&grid, PackKernel<Element, Wire>, table, wide_factor,
                                  bucket + base);
      });
}

template <typename Element, typename Wire>
const char* UnpackOnGpu(const Wire* bucket, const BucketLayout& layout,
                        const std::vector<Element*>& tensors, CUstream_st* stream) {
  return LaunchAll<Element, Wire>(
      tensors, layout, [&](const TensorTable<Element*>& table, int64_t base, unsigned blocks) {
        const cudaLaunchConfig_t grid = Grid(blocks, stream);
        return cudaLaunchKernelEx(&grid, UnpackKernel<Element, Wire>, table, bucket + base);
      });
}

#define HVD_DBS_INSTANTIATE(Element, Wire)                                                \
  template const char* PackOnGpu(const std::vector<const Element*>&, const BucketLayout&, \
                                 double, Wire*, CUstream_st*);
HVD_DBS_FOR_EACH_PAIR(HVD_DBS_INSTANTIATE)
#undef HVD_DBS_INSTANTIATE

#define HVD_DBS_INSTANTIATE(Element, Wire)                           \
  template const char* UnpackOnGpu(const Wire*, const BucketLayout&, \
                                   const std::vector<Element*>&, CUstream_st*);
HVD_DBS_FOR_EACH_UNLIKE_PAIR(HVD_DBS_INSTANTIATE)
#undef HVD_DBS_INSTANTIATE

}  // namespace hvd_dbs
