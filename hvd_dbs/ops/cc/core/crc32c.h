// The checksum of TFRecord files.
#ifndef HVD_DBS_OPS_CC_CORE_CRC32C_H_
#define HVD_DBS_OPS_CC_CORE_CRC32C_H_

#include <cstddef>
#include <cstdint>

namespace hvd_dbs {

// CRC-32 with Castagnoli's polynomial, by the processor's own instruction where it has one.
uint32_t Crc32c(const void* data, size_t size);

// The same by tables alone; the reference of the fast way.
uint32_t PortableCrc32c(const void* data, size_t size);

// As it is written to files: a checksum of data that holds checksums would be weak.
inline uint32_t Masked(uint32_t crc) { return ((crc >> 15) | (crc << 17)) + 0xa282ead8u; }

}  // namespace hvd_dbs

#endif  // HVD_DBS_OPS_CC_CORE_CRC32C_H_
