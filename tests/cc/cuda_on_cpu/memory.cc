// Memory of a device, and of the host where a device can write to it.
#include <cuda_runtime.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <set>

#include "tests/cc/cuda_on_cpu/calls.h"

namespace cuda_on_cpu {
namespace {

constexpr size_t kAlignment = 256;  // As cudaMalloc promises.
constexpr size_t kSparseBytes = size_t{64} << 20;
constexpr double kBytesPerSecond = 1e12;

// That a device can write to. Never gone, so that what is left there is no leak.
std::set<void*>& host_memory = *new std::set<void*>;
std::map<void*, size_t> sparse_maps;  // Bytes of each, the page after it included.

void Fill(void* memory, int value, size_t bytes) {
  // Pages that are given back are zeros, and none has to be there for them.
  if (value == 0 && bytes >= kSparseBytes) {
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const auto begin = reinterpret_cast<uintptr_t>(memory);
    const uintptr_t first = (begin + page - 1) / page * page, last = (begin + bytes) / page * page;
    madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
    std::memset(memory, 0, first - begin);
    std::memset(reinterpret_cast<void*>(last), 0, begin + bytes - last);
  } else {
    std::memset(memory, value, bytes);
  }
}

}  // namespace
}  // namespace cuda_on_cpu

using namespace cuda_on_cpu;

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  if (const cudaError_t error = Use()) return error;
  if (bytes < kSparseBytes) {
    if (posix_memalign(memory, kAlignment, bytes) != 0) return cudaErrorMemoryAllocation;
    std::memset(*memory, 0xff, bytes);  // NaN of every type.
    return cudaSuccess;
  }
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t whole = (bytes + page - 1) / page * page;
  void* map = mmap(nullptr, whole + page, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (map == MAP_FAILED) return cudaErrorMemoryAllocation;
  char* const begin = static_cast<char*>(map);
  mprotect(begin + whole, page, PROT_NONE);
  // As near to the page that is a fault as the alignment allows.
  *memory = begin + (whole - bytes) / kAlignment * kAlignment;
  sparse_maps[*memory] = whole + page;
  return cudaSuccess;
}

cudaError_t cudaFree(void* memory) {
  const auto found = sparse_maps.find(memory);
  if (found == sparse_maps.end()) {
    std::free(memory);
  } else {
    const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    munmap(reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(memory) / page * page),
           found->second);
    sparse_maps.erase(found);
  }
  return Use();
}

cudaError_t cudaMallocHost(void** memory, size_t bytes) {
  if (const cudaError_t error = Use()) return error;
  *memory = std::malloc(bytes);
  host_memory.insert(*memory);
  return cudaSuccess;
}

cudaError_t cudaFreeHost(void* memory) {
  if (host_memory.erase(memory) == 0) return cudaErrorInvalidValue;
  std::free(memory);
  return Use();
}

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* all_bytes) {
  *free_bytes = *all_bytes = size_t{1} << 40;
  return Use();
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind /*kind*/) {
  CountWait();
  if (const cudaError_t error = Use()) return error;
  if (bytes > 0) std::memcpy(to, from, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemset(void* memory, int value, size_t bytes) {
  if (const cudaError_t error = Use()) return error;
  Fill(memory, value, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t stream) {
  if (const cudaError_t error = Use()) return error;
  Enqueue(stream, static_cast<double>(bytes) / kBytesPerSecond,
          [=] { Fill(memory, value, bytes); });
  return cudaSuccess;
}
