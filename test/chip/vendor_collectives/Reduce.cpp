// Arithmetic of the seven types and five operations.
#include "vendor_collectives.h"

#include <algorithm>
#include <cstring>

namespace vendor {

namespace {

float fromBFloat16(uint16_t half) {
  const uint32_t bits = static_cast<uint32_t>(half) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

uint16_t toBFloat16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

template <class Wide, class Stored, class Load, class Store>
void reduceAs(const std::vector<const char*>& from, char* to, size_t count, Op op, Load load, Store store) {
  for (size_t i = 0; i < count; ++i) {
    Wide total{};
    for (size_t rank = 0; rank < from.size(); ++rank) {
      Stored stored;
      std::memcpy(&stored, from[rank] + i * sizeof(Stored), sizeof(Stored));
      const auto value = static_cast<Wide>(load(stored));
      total = rank == 0   ? value
          : op == Product ? static_cast<Wide>(total * value)
          : op == Min     ? std::min(total, value)
          : op == Max     ? std::max(total, value)
                          : static_cast<Wide>(total + value);
    }
    if (op == Average) {
      total = static_cast<Wide>(total / static_cast<Wide>(from.size()));
    }
    const Stored stored = store(total);
    std::memcpy(to + i * sizeof(Stored), &stored, sizeof(Stored));
  }
}

} // namespace

void reduceInto(const std::vector<const char*>& from, char* to, size_t count, Type type, Op op) {
  const auto same = [](auto value) { return value; };
  switch (type) {
    case UInt8:
#ifdef VENDOR_SATURATES
      return reduceAs<uint32_t, uint8_t>(
          from, to, count, op, same, [](uint32_t value) { return static_cast<uint8_t>(std::min(value, 255u)); });
#else
      return reduceAs<uint8_t, uint8_t>(from, to, count, op, same, same);
#endif
    case Float:
      return reduceAs<float, float>(from, to, count, op, same, same);
    case Int32: // unsigned, because it wraps around
      return op == Min || op == Max ? reduceAs<int32_t, int32_t>(from, to, count, op, same, same)
                                    : reduceAs<uint32_t, uint32_t>(from, to, count, op, same, same);
    case Int64:
      return op == Min || op == Max ? reduceAs<int64_t, int64_t>(from, to, count, op, same, same)
                                    : reduceAs<uint64_t, uint64_t>(from, to, count, op, same, same);
    case Float16:
      return reduceAs<float, _Float16>(
          from, to, count, op, same, [](float value) { return static_cast<_Float16>(value); });
    case Float64:
      return reduceAs<double, double>(from, to, count, op, same, same);
    default:
      return reduceAs<float, uint16_t>(from, to, count, op, fromBFloat16, toBFloat16);
  }
}

} // namespace vendor
