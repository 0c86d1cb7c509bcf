#include "hvd_dbs/ops/cc/core/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace hvd_dbs {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78u;  // Castagnoli's, its lowest power in the top bit.

using Table = std::array<uint32_t, 256>;
// By byte of the state: what the state becomes after some zero bytes.
using Operator = std::array<Table, 4>;

std::array<Table, 8> MakeByteTables() {
  std::array<Table, 8> tables;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? kPolynomial : 0);
    tables[0][byte] = crc;
  }
  for (uint32_t byte = 0; byte < 256; ++byte) {
    for (size_t i = 1; i < 8; ++i) {
      const uint32_t before = tables[i - 1][byte];
      tables[i][byte] = (before >> 8) ^ tables[0][before & 0xff];
    }
  }
  return tables;
}

// Eight bytes a turn.
uint32_t ExtendByTables(uint32_t state, const uint8_t* data, size_t size) {
  static const std::array<Table, 8> tables = MakeByteTables();
  for (; size >= 8; data += 8, size -= 8) {
    const uint32_t low = state ^ (data[0] | data[1] << 8 | data[2] << 16 |
                                  static_cast<uint32_t>(data[3]) << 24);
    state = tables[7][low & 0xff] ^ tables[6][(low >> 8) & 0xff] ^ tables[5][(low >> 16) & 0xff] ^
            tables[4][low >> 24] ^ tables[3][data[4]] ^ tables[2][data[5]] ^ tables[1][data[6]] ^
            tables[0][data[7]];
  }
  for (; size > 0; ++data, --size) state = (state >> 8) ^ tables[0][(state ^ *data) & 0xff];
  return state;
}

#if defined(__x86_64__)
// The instruction takes three cycles, but three can be under way at a time.
constexpr size_t kLane = 512;

Operator MakeLaneOperator() {
  // What a checksum becomes when `kLane` zero bytes follow is linear in its bits.
  static const std::array<uint8_t, kLane> zeros = {};
  Operator shifted;
  for (uint32_t i = 0; i < 4; ++i) {
    for (uint32_t byte = 0; byte < 256; ++byte) {
      shifted[i][byte] = ExtendByTables(byte << (8 * i), zeros.data(), kLane);
    }
  }
  return shifted;
}

inline uint32_t Apply(const Operator& shifted, uint32_t state) {
  return shifted[0][state & 0xff] ^ shifted[1][(state >> 8) & 0xff] ^
         shifted[2][(state >> 16) & 0xff] ^ shifted[3][state >> 24];
}

inline uint64_t Word(const uint8_t* data) {
  uint64_t word;
  std::memcpy(&word, data, sizeof(word));
  return word;
}

__attribute__((target("sse4.2"))) uint32_t ExtendByInstruction(uint32_t state, const uint8_t* data,
                                                               size_t size) {
  static const Operator lane_of_zeros = MakeLaneOperator();
  for (; size >= 3 * kLane; data += 3 * kLane, size -= 3 * kLane) {
    uint64_t first = state, second = 0, third = 0;
    for (size_t i = 0; i < kLane; i += 8) {
      first = _mm_crc32_u64(first, Word(data + i));
      second = _mm_crc32_u64(second, Word(data + kLane + i));
      third = _mm_crc32_u64(third, Word(data + 2 * kLane + i));
    }
    state = Apply(lane_of_zeros, static_cast<uint32_t>(first)) ^ static_cast<uint32_t>(second);
    state = Apply(lane_of_zeros, state) ^ static_cast<uint32_t>(third);
  }
  uint64_t wide = state;
  for (; size >= 8; data += 8, size -= 8) wide = _mm_crc32_u64(wide, Word(data));
  state = static_cast<uint32_t>(wide);
  for (; size > 0; ++data, --size) state = _mm_crc32_u8(state, *data);
  return state;
}
#endif

}  // namespace

uint32_t PortableCrc32c(const void* data, size_t size) {
  return ~ExtendByTables(~0u, static_cast<const uint8_t*>(data), size);
}

uint32_t Crc32c(const void* data, size_t size) {
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2");
  if (has_instruction) return ~ExtendByInstruction(~0u, static_cast<const uint8_t*>(data), size);
#endif
  return PortableCrc32c(data, size);
}

}  // namespace hvd_dbs
