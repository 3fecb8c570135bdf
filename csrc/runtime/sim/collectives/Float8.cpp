// 8-bit floating-point formats: each has 256 values, so a table says what they mean and a search rounds to nearest.
#include "runtime/sim/collectives/Float8.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace kunlun::sim {
namespace {

struct Format {
  int mantissa_bits;
  int bias;
  bool has_sign;
  bool has_infinity;     // as IEEE 754 has: the largest exponent means infinity or NaN
  bool is_unsigned_zero; // "uz": 0x80 is the one NaN; otherwise, without infinities, all ones is
};

constexpr Format kE4M3FN{3, 7, true, false, false};
constexpr Format kE5M2{2, 15, true, true, false};
constexpr Format kE4M3FNUZ{3, 8, true, false, true};
constexpr Format kE5M2FNUZ{2, 16, true, false, true};
constexpr Format kE8M0{0, 127, false, false, false};

template <const Format& format>
struct Table {
  // A mere exponent has no last bit of a mantissa to be even: ties go up, as in torch.
  static constexpr bool kTiesToEven = format.mantissa_bits != 0;

  std::array<float, 256> values;       // by code
  std::array<float, 256> magnitudes{}; // finite ones, ascending; their codes are 0, 1, 2 ...
  size_t count = 0;
  uint8_t nan_code;
  uint8_t overflow_code; // without the sign

  Table() {
    const int exponent_bits = (format.has_sign ? 7 : 8) - format.mantissa_bits;
    const int mantissas = 1 << format.mantissa_bits;
    const int codes = format.has_sign ? 128 : 256;
    const float nan = std::numeric_limits<float>::quiet_NaN();
    nan_code = format.is_unsigned_zero ? 0x80 : static_cast<uint8_t>(codes - 1);
    const int infinity = format.has_infinity ? ((1 << exponent_bits) - 1) << format.mantissa_bits : -1;
    overflow_code = format.has_infinity ? static_cast<uint8_t>(infinity) : nan_code;
    for (int code = 0; code < codes; ++code) {
      const int exponent = code >> format.mantissa_bits;
      const int mantissa = code & (mantissas - 1);
      float value;
      if (infinity >= 0 && code >= infinity) {
        value = code == infinity ? std::numeric_limits<float>::infinity() : nan;
      } else if (code == nan_code) {
        value = nan;
      } else {
        const bool is_subnormal = exponent == 0 && format.has_sign;
        const int significand = is_subnormal ? mantissa : mantissas + mantissa;
        value = static_cast<float>(
            std::ldexp(significand, (is_subnormal ? 1 : exponent) - format.bias - format.mantissa_bits));
        magnitudes[count++] = value;
      }
      values[static_cast<size_t>(code)] = value;
      if (format.has_sign) {
        values[static_cast<size_t>(code) | 0x80] = format.is_unsigned_zero && code == 0 ? nan : -value;
      }
    }
  }

  uint8_t encode(float value) const {
    if (std::isnan(value)) {
      return nan_code;
    }
    const bool is_negative = std::signbit(value);
    const uint8_t sign = format.has_sign && is_negative ? 0x80 : 0;
    const double magnitude = std::fabs(static_cast<double>(value));
    const auto end = magnitudes.begin() + static_cast<ptrdiff_t>(count);
    const auto above = std::lower_bound(magnitudes.begin(), end, static_cast<float>(magnitude));
    size_t code;
    if (above == end) {
      // Half a step beyond the largest value still rounds down to it, unless that value's last bit is odd.
      const double largest = magnitudes[count - 1];
      const double step = format.mantissa_bits == 0 ? largest : largest - magnitudes[count - 2];
      const bool is_tie_down = kTiesToEven && magnitude == largest + step / 2 && (count - 1) % 2 == 0;
      if (!(magnitude < largest + step / 2) && !is_tie_down) {
        return static_cast<uint8_t>(overflow_code | (format.is_unsigned_zero ? 0 : sign));
      }
      code = count - 1;
    } else {
      code = static_cast<size_t>(above - magnitudes.begin());
      if (code > 0 && *above != magnitude) {
        const double middle = (static_cast<double>(*above) + *(above - 1)) / 2;
        if (magnitude < middle || (kTiesToEven && magnitude == middle && code % 2 == 1)) {
          --code;
        }
      }
    }
    // There is no negative zero where 0x80 means NaN.
    return static_cast<uint8_t>(code == 0 && format.is_unsigned_zero ? 0 : code | sign);
  }
};

template <const Format& format>
const Table<format>& table() {
  static const Table<format> value;
  return value;
}

template <const Format& format>
void load(void* accumulator, const void* input, size_t count) {
  auto* to = static_cast<float*>(accumulator);
  const auto* from = static_cast<const uint8_t*>(input);
  for (size_t i = 0; i < count; ++i) {
    to[i] = table<format>().values[from[i]];
  }
}

template <const Format& format>
void store(void* output, const void* accumulator, size_t count) {
  auto* to = static_cast<uint8_t*>(output);
  const auto* from = static_cast<const float*>(accumulator);
  for (size_t i = 0; i < count; ++i) {
    to[i] = table<format>().encode(from[i]);
  }
}

} // namespace

ReduceKernels::Load float8Load(int32_t dtype) {
  switch (dtype) {
    case KL_FLOAT8_E4M3FN:
      return load<kE4M3FN>;
    case KL_FLOAT8_E5M2:
      return load<kE5M2>;
    case KL_FLOAT8_E4M3FNUZ:
      return load<kE4M3FNUZ>;
    case KL_FLOAT8_E5M2FNUZ:
      return load<kE5M2FNUZ>;
    case KL_FLOAT8_E8M0FNU:
      return load<kE8M0>;
    default:
      return nullptr;
  }
}

ReduceKernels::Store float8Store(int32_t dtype) {
  switch (dtype) {
    case KL_FLOAT8_E4M3FN:
      return store<kE4M3FN>;
    case KL_FLOAT8_E5M2:
      return store<kE5M2>;
    case KL_FLOAT8_E4M3FNUZ:
      return store<kE4M3FNUZ>;
    case KL_FLOAT8_E5M2FNUZ:
      return store<kE5M2FNUZ>;
    case KL_FLOAT8_E8M0FNU:
      return store<kE8M0>;
    default:
      return nullptr;
  }
}

} // namespace kunlun::sim
