// The loops themselves. Included once by each file that compiles them for an instruction set, inside of an unnamed
// namespace; they use nothing from the standard library, so that no code for one instruction set is shared with others.

template <class To, class From>
inline To bitsAs(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof(to));
  return to;
}

// Both ways without a branch, so that the compiler makes vectors of them.
inline float fromFloat16(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t rest = static_cast<uint32_t>(half & 0x7fffu) << 13;
  // Shifts the exponent's bias; a subnormal becomes a normal number by the multiplication.
  const uint32_t scaled = bitsAs<uint32_t>(bitsAs<float>(rest) * bitsAs<float>(0x77800000u));
  const uint32_t special = rest >= 0x0f800000u ? 0x7f800000u : 0u; // infinity and NaN
  return bitsAs<float>(sign | scaled | special);
}

inline uint16_t toFloat16(float value) {
  const uint32_t bits = bitsAs<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t rest = bits & 0x7fffffffu;
  const uint32_t special = rest > 0x7f800000u ? 0x7e00u : 0x7c00u;
  // A subnormal result: the addition aligns its bits at the end of the mantissa and rounds them.
  const uint32_t small = bitsAs<uint32_t>(bitsAs<float>(rest) + bitsAs<float>(0x3f000000u)) - 0x3f000000u;
  const uint32_t odd = (rest >> 13) & 1u;
  const uint32_t normal = (rest - 0x38000000u + 0xfffu + odd) >> 13;
  const uint32_t finite = rest < 0x38800000u ? small : normal;
  return static_cast<uint16_t>(sign | (rest >= 0x47800000u ? special : finite));
}

inline float fromBFloat16(uint16_t half) {
  return bitsAs<float>(static_cast<uint32_t>(half) << 16);
}

inline uint16_t toBFloat16(float value) {
  const uint32_t bits = bitsAs<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : rounded);
}

template <float (*convert)(uint16_t)>
void loadHalf(void* accumulator, const void* input, size_t count) {
  auto* __restrict to = static_cast<float*>(accumulator);
  const auto* __restrict from = static_cast<const uint16_t*>(input);
  for (size_t i = 0; i < count; ++i) {
    to[i] = convert(from[i]);
  }
}

template <uint16_t (*convert)(float)>
void storeHalf(void* output, const void* accumulator, size_t count) {
  auto* __restrict to = static_cast<uint16_t*>(output);
  const auto* __restrict from = static_cast<const float*>(accumulator);
  for (size_t i = 0; i < count; ++i) {
    to[i] = convert(from[i]);
  }
}

inline float asFloat(float value) {
  return value;
}

// The result may lie where an input does.
template <class Left, float (*left_of)(Left), float (*convert)(uint16_t), class To, To (*round)(float)>
void addHalf(void* output, const void* left, const void* right, size_t count) {
  auto* to = static_cast<To*>(output);
  const auto* a = static_cast<const Left*>(left);
  const auto* b = static_cast<const uint16_t*>(right);
#pragma GCC ivdep
  for (size_t i = 0; i < count; ++i) {
    to[i] = round(left_of(a[i]) + convert(b[i]));
  }
}

template <float (*convert)(uint16_t), uint16_t (*round)(float)>
ReduceKernels::HalfSum halfSum() {
  return {
      addHalf<uint16_t, convert, convert, uint16_t, round>,
      addHalf<uint16_t, convert, convert, float, asFloat>,
      addHalf<float, asFloat, convert, float, asFloat>,
      addHalf<float, asFloat, convert, uint16_t, round>};
}

template <class T>
void loadWide(void* accumulator, const void* input, size_t count) {
  auto* __restrict to = static_cast<int64_t*>(accumulator);
  const auto* __restrict from = static_cast<const T*>(input);
  for (size_t i = 0; i < count; ++i) {
    to[i] = static_cast<int64_t>(from[i]);
  }
}

template <class T>
void storeWide(void* output, const void* accumulator, size_t count) {
  auto* __restrict to = static_cast<T*>(output);
  const auto* __restrict from = static_cast<const int64_t*>(accumulator);
  for (size_t i = 0; i < count; ++i) {
    to[i] = static_cast<T>(from[i]);
  }
}

// Integers wrap around, which only unsigned arithmetic may do.
template <class T>
struct Arithmetic {
  using type = uint32_t;
};
template <>
struct Arithmetic<int64_t> {
  using type = uint64_t;
};
template <>
struct Arithmetic<uint64_t> {
  using type = uint64_t;
};
template <>
struct Arithmetic<float> {
  using type = float;
};
template <>
struct Arithmetic<double> {
  using type = double;
};

struct Sum {
  template <class T>
  static T apply(T a, T b) {
    using A = typename Arithmetic<T>::type;
    return static_cast<T>(static_cast<A>(a) + static_cast<A>(b));
  }
};
struct Product {
  template <class T>
  static T apply(T a, T b) {
    using A = typename Arithmetic<T>::type;
    return static_cast<T>(static_cast<A>(a) * static_cast<A>(b));
  }
};
struct Min {
  template <class T>
  static T apply(T a, T b) {
    return a < b || a != a ? a : b;
  }
};
struct Max {
  template <class T>
  static T apply(T a, T b) {
    return a > b || a != a ? a : b;
  }
};
struct And {
  template <class T>
  static T apply(T a, T b) {
    return static_cast<T>(a & b);
  }
};
struct Or {
  template <class T>
  static T apply(T a, T b) {
    return static_cast<T>(a | b);
  }
};
struct Xor {
  template <class T>
  static T apply(T a, T b) {
    return static_cast<T>(a ^ b);
  }
};
// Of bools, stored as bytes that are 0 or something else.
struct LogicalOr {
  template <class T>
  static T apply(T a, T b) {
    return (a | b) != 0;
  }
};
struct LogicalAnd {
  template <class T>
  static T apply(T a, T b) {
    return (a != 0) & (b != 0);
  }
};
struct LogicalXor {
  template <class T>
  static T apply(T a, T b) {
    return (a != 0) != (b != 0);
  }
};

// The result may lie where one of the inputs does, so no pointer is __restrict; element by element nothing depends on
// another.
template <class T, class Op, size_t parts = 1>
void combine(void* output, const void* left, const void* right, size_t count) {
  auto* to = static_cast<T*>(output);
  const auto* a = static_cast<const T*>(left);
  const auto* b = static_cast<const T*>(right);
#pragma GCC ivdep
  for (size_t i = 0; i < count * parts; ++i) {
    to[i] = Op::apply(a[i], b[i]);
  }
}

// Products and sums stay apart: a multiply-and-add rounds once, and results must not depend on what the CPU has. GCC
// contracts them in vectors of complex numbers even when told not to, so there are none.
#if defined(__clang__)
#define KUNLUN_NO_CONTRACTION
#pragma clang fp contract(off)
#else
#define KUNLUN_NO_CONTRACTION __attribute__((optimize("fp-contract=off", "no-tree-vectorize")))
#endif

template <class T>
KUNLUN_NO_CONTRACTION void complexProduct(void* output, const void* left, const void* right, size_t count) {
  auto* to = static_cast<T*>(output);
  const auto* a = static_cast<const T*>(left);
  const auto* b = static_cast<const T*>(right);
  for (size_t i = 0; i < 2 * count; i += 2) {
    const T real = a[i] * b[i] - a[i + 1] * b[i + 1];
    const T imaginary = a[i] * b[i + 1] + a[i + 1] * b[i];
    to[i] = real;
    to[i + 1] = imaginary;
  }
}

template <class T, size_t parts = 1>
void scale(void* accumulator, double factor, size_t count) {
  using A = typename Arithmetic<T>::type;
  auto* to = static_cast<T*>(accumulator);
  const auto by = static_cast<A>(static_cast<T>(factor));
  for (size_t i = 0; i < count * parts; ++i) {
    to[i] = static_cast<T>(static_cast<A>(to[i]) * by);
  }
}

template <class T, size_t parts = 1>
void divide(void* accumulator, double divisor, size_t count) {
  auto* to = static_cast<T*>(accumulator);
  const auto by = static_cast<T>(divisor);
  for (size_t i = 0; i < count * parts; ++i) {
    to[i] = static_cast<T>(to[i] / by);
  }
}

template <class T>
void fillInteger(ReduceKernels& k, Accumulator a) {
  k.combine[a][ReduceKernels::kSum] = combine<T, Sum>;
  k.combine[a][ReduceKernels::kProduct] = combine<T, Product>;
  k.combine[a][ReduceKernels::kMin] = combine<T, Min>;
  k.combine[a][ReduceKernels::kMax] = combine<T, Max>;
  k.combine[a][ReduceKernels::kAnd] = combine<T, And>;
  k.combine[a][ReduceKernels::kOr] = combine<T, Or>;
  k.combine[a][ReduceKernels::kXor] = combine<T, Xor>;
  k.scale[a] = scale<T>;
  k.divide[a] = divide<T>;
  k.load_wide[a] = loadWide<T>;
  k.store_wide[a] = storeWide<T>;
}

template <class T>
void fillFloat(ReduceKernels& k, Accumulator a, Accumulator complex) {
  k.combine[a][ReduceKernels::kSum] = combine<T, Sum>;
  k.combine[a][ReduceKernels::kProduct] = combine<T, Product>;
  k.combine[a][ReduceKernels::kMin] = combine<T, Min>;
  k.combine[a][ReduceKernels::kMax] = combine<T, Max>;
  k.scale[a] = scale<T>;
  k.divide[a] = divide<T>;
  k.combine[complex][ReduceKernels::kSum] = combine<T, Sum, 2>;
  k.combine[complex][ReduceKernels::kProduct] = complexProduct<T>;
  k.scale[complex] = scale<T, 2>;
  k.divide[complex] = divide<T, 2>;
}

inline ReduceKernels makeKernels() {
  ReduceKernels k{};
  k.load_float16 = loadHalf<fromFloat16>;
  k.load_bfloat16 = loadHalf<fromBFloat16>;
  k.store_float16 = storeHalf<toFloat16>;
  k.store_bfloat16 = storeHalf<toBFloat16>;
  k.float16 = halfSum<fromFloat16, toFloat16>();
  k.bfloat16 = halfSum<fromBFloat16, toBFloat16>();
  k.combine[kAccBool][ReduceKernels::kSum] = combine<uint8_t, LogicalOr>;
  k.combine[kAccBool][ReduceKernels::kProduct] = combine<uint8_t, LogicalAnd>;
  k.combine[kAccBool][ReduceKernels::kMin] = combine<uint8_t, LogicalAnd>;
  k.combine[kAccBool][ReduceKernels::kMax] = combine<uint8_t, LogicalOr>;
  k.combine[kAccBool][ReduceKernels::kAnd] = combine<uint8_t, LogicalAnd>;
  k.combine[kAccBool][ReduceKernels::kOr] = combine<uint8_t, LogicalOr>;
  k.combine[kAccBool][ReduceKernels::kXor] = combine<uint8_t, LogicalXor>;
  fillInteger<uint8_t>(k, kAccUInt8);
  fillInteger<int8_t>(k, kAccInt8);
  fillInteger<int16_t>(k, kAccInt16);
  fillInteger<int32_t>(k, kAccInt32);
  fillInteger<int64_t>(k, kAccInt64);
  fillInteger<uint16_t>(k, kAccUInt16);
  fillInteger<uint32_t>(k, kAccUInt32);
  fillInteger<uint64_t>(k, kAccUInt64);
  fillFloat<float>(k, kAccFloat, kAccComplexFloat);
  fillFloat<double>(k, kAccDouble, kAccComplexDouble);
  return k;
}
