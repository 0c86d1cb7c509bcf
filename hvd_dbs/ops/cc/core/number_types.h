// The floating-point types of gradients, without anybody's headers for them on the host.
//
// Half types are storage only: arithmetic is done in float and rounded once, on the way out.
#ifndef HVD_DBS_OPS_CC_CORE_NUMBER_TYPES_H_
#define HVD_DBS_OPS_CC_CORE_NUMBER_TYPES_H_

#include <cstdint>
#include <cstring>
#include <type_traits>

#ifdef __CUDACC__
#include <cuda_fp16.h>
#define HVD_DBS_HOST_DEVICE __host__ __device__
#else
#define HVD_DBS_HOST_DEVICE
#endif

namespace hvd_dbs {

struct Half {
  uint16_t bits;
};

struct Bfloat16 {
  uint16_t bits;
};

namespace internal {

HVD_DBS_HOST_DEVICE inline float FloatOf(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

HVD_DBS_HOST_DEVICE inline uint32_t BitsOf(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}

}  // namespace internal

HVD_DBS_HOST_DEVICE inline float ToFloat(Half value) {
#ifdef __CUDA_ARCH__
  return __half2float(__ushort_as_half(value.bits));
#else
  // Selections instead of branches, so that compilers vectorise the loops around this.
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000u) << 16;
  const uint32_t rest = static_cast<uint32_t>(value.bits & 0x7fffu) << 13;
  const uint32_t exponent = rest & 0x0f800000u;
  // A subnormal is a multiple of 2^-24; taking the implicit one away normalises it in hardware.
  const float subnormal = internal::FloatOf(rest + 0x38800000u) - internal::FloatOf(0x38800000u);
  const uint32_t normal = rest + (exponent == 0x0f800000u ? 0x70000000u : 0x38000000u);
  const uint32_t magnitude = exponent == 0 ? internal::BitsOf(subnormal) : normal;
  return internal::FloatOf(sign | magnitude);
#endif
}

HVD_DBS_HOST_DEVICE inline float ToFloat(Bfloat16 value) {
  return internal::FloatOf(static_cast<uint32_t>(value.bits) << 16);
}

// Rounds to the nearest, ties to even.
HVD_DBS_HOST_DEVICE inline Half RoundToHalf(float value) {
#ifdef __CUDA_ARCH__
  return Half{__half_as_ushort(__float2half_rn(value))};
#else
  const uint32_t bits = internal::BitsOf(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  // Below 2^-14 a half's unit is 2^-24, the unit of a float near 0.5: the addition rounds.
  const uint32_t subnormal = internal::BitsOf(internal::FloatOf(magnitude) + 0.5f) - 0x3f000000u;
  const uint32_t odd = (magnitude >> 13) & 1u;
  const uint32_t normal = (magnitude - 0x38000000u + 0x0fffu + odd) >> 13;
  const uint32_t special = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
  // 0x477ff000 is 65520, the first value that rounds past the largest half.
  const uint32_t finite = magnitude < 0x38800000u ? subnormal : normal;
  const uint32_t result = magnitude >= 0x477ff000u ? special : finite;
  return Half{static_cast<uint16_t>(sign | result)};
#endif
}

HVD_DBS_HOST_DEVICE inline Bfloat16 RoundToBfloat16(float value) {
  const uint32_t bits = internal::BitsOf(value);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t quiet_nan = (bits >> 16) | 0x0040u;
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return Bfloat16{static_cast<uint16_t>(is_nan ? quiet_nan : rounded)};
}

// What products of two element types are computed in.
template <typename A, typename B>
using Arithmetic =
    std::conditional_t<std::is_same<A, double>::value || std::is_same<B, double>::value, double,
                       float>;

template <typename Wide, typename Narrow>
HVD_DBS_HOST_DEVICE inline Wide Widen(Narrow value) {
  if constexpr (std::is_same<Narrow, Half>::value || std::is_same<Narrow, Bfloat16>::value) {
    return static_cast<Wide>(ToFloat(value));
  } else {
    return static_cast<Wide>(value);
  }
}

template <typename Narrow, typename Wide>
HVD_DBS_HOST_DEVICE inline Narrow Round(Wide value) {
  if constexpr (std::is_same<Narrow, Half>::value) {
    return RoundToHalf(static_cast<float>(value));
  } else if constexpr (std::is_same<Narrow, Bfloat16>::value) {
    return RoundToBfloat16(static_cast<float>(value));
  } else {
    return static_cast<Narrow>(value);
  }
}

}  // namespace hvd_dbs

// The element types of tensors and of the bucket that they may travel in, alike or not. Half types
// travel wide unless the user asks for compression; Horovod cannot sum bfloat16.
#define HVD_DBS_FOR_EACH_LIKE_PAIR(APPLY) \
  APPLY(float, float)                     \
  APPLY(double, double)                   \
  APPLY(::hvd_dbs::Half, ::hvd_dbs::Half)
#define HVD_DBS_FOR_EACH_UNLIKE_PAIR(APPLY)   \
  APPLY(::hvd_dbs::Half, float)               \
  APPLY(::hvd_dbs::Bfloat16, float)           \
  APPLY(::hvd_dbs::Bfloat16, ::hvd_dbs::Half) \
  APPLY(float, ::hvd_dbs::Half)               \
  APPLY(double, ::hvd_dbs::Half)
#define HVD_DBS_FOR_EACH_PAIR(APPLY) \
  HVD_DBS_FOR_EACH_LIKE_PAIR(APPLY)  \
  HVD_DBS_FOR_EACH_UNLIKE_PAIR(APPLY)

#endif  // HVD_DBS_OPS_CC_CORE_NUMBER_TYPES_H_
