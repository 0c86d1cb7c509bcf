// Conversions to and from half types, over all half values and around every rounding boundary.
#include "hvd_dbs/ops/cc/core/number_types.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "tests/cc/check.h"

using hvd_dbs::Bfloat16;
using hvd_dbs::Half;

namespace {

double ValueOfHalf(uint16_t bits) {
  const int exponent = (bits >> 10) & 31, fraction = bits & 1023;
  const double sign = bits & 0x8000 ? -1 : 1;
  if (exponent == 31) {
    return fraction ? std::numeric_limits<double>::quiet_NaN()
                    : sign * std::numeric_limits<double>::infinity();
  }
  if (exponent == 0) return sign * std::ldexp(fraction, -24);
  return sign * std::ldexp(1024 + fraction, exponent - 25);
}

bool Same(double a, double b) {
  return (std::isnan(a) && std::isnan(b)) || (a == b && std::signbit(a) == std::signbit(b));
}

}  // namespace

HVD_DBS_TEST(EveryHalfHasItsValueAndComesBack) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const Half half{static_cast<uint16_t>(bits)};
    const float value = hvd_dbs::ToFloat(half);
    HVD_DBS_CHECK(Same(value, ValueOfHalf(half.bits)), std::to_string(bits));
    const uint16_t back = hvd_dbs::RoundToHalf(value).bits;
    HVD_DBS_CHECK(std::isnan(value) || back == bits, std::to_string(bits));
  }
}

HVD_DBS_TEST(HalvesAreRoundedToTheNearestTiesToEven) {
  for (uint32_t bits = 0; bits < 0x7c00; ++bits) {
    const double low = ValueOfHalf(static_cast<uint16_t>(bits));
    const double high = bits == 0x7bff ? 65536.0 : ValueOfHalf(static_cast<uint16_t>(bits + 1));
    const float middle = static_cast<float>((low + high) / 2);  // Exact.
    const uint16_t even = static_cast<uint16_t>(bits % 2 == 0 ? bits : bits + 1);
    HVD_DBS_CHECK(hvd_dbs::RoundToHalf(middle).bits == even, std::to_string(bits));
    HVD_DBS_CHECK(hvd_dbs::RoundToHalf(std::nextafter(middle, 0.f)).bits == bits,
                  std::to_string(bits));
    HVD_DBS_CHECK(hvd_dbs::RoundToHalf(std::nextafter(middle, 1e9f)).bits == bits + 1,
                  std::to_string(bits));
    HVD_DBS_CHECK(hvd_dbs::RoundToHalf(-middle).bits == (even | 0x8000), std::to_string(bits));
  }
}

HVD_DBS_TEST(BfloatsAreRoundedToTheNearestTiesToEven) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const Bfloat16 narrow{static_cast<uint16_t>(bits)};
    const float value = hvd_dbs::ToFloat(narrow);
    const uint16_t back = hvd_dbs::RoundToBfloat16(value).bits;
    HVD_DBS_CHECK(std::isnan(value) || back == bits, std::to_string(bits));
    if ((bits & 0x7f80) == 0x7f80) continue;  // Inf and NaN have no neighbours.
    const auto rounded = [&](uint32_t rest) {
      return hvd_dbs::RoundToBfloat16(hvd_dbs::internal::FloatOf(bits << 16 | rest)).bits;
    };
    HVD_DBS_CHECK(rounded(0x7fff) == bits, std::to_string(bits));
    HVD_DBS_CHECK(rounded(0x8000) == bits + bits % 2, std::to_string(bits));
    HVD_DBS_CHECK(rounded(0x8001) == bits + 1, std::to_string(bits));
  }
  const float nan = std::numeric_limits<float>::quiet_NaN();
  HVD_DBS_CHECK(std::isnan(hvd_dbs::ToFloat(hvd_dbs::RoundToBfloat16(nan))), "NaN");
  HVD_DBS_CHECK(std::isnan(hvd_dbs::ToFloat(
                    hvd_dbs::RoundToBfloat16(hvd_dbs::internal::FloatOf(0x7f800001)))),
                "a NaN whose upper bits are those of Inf");
}
