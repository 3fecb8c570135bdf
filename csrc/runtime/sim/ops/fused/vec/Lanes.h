// Rows of float, half or bfloat16 as vectors of float: everything is computed and summed in float.
//
// For the files of this folder only, which are compiled once for each instruction set. What they share lies in a
// namespace of the instruction set's name, so that the linker never takes one set's code for another's.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>

namespace kunlun::sim {
inline namespace CPU_CAPABILITY {

using Floats = at::vec::Vectorized<float>;

// Two vectors, because one vector of a half type holds as many elements as two of float.
struct Pair {
  Floats a;
  Floats b;
};
inline constexpr int64_t kLanes = 2 * Floats::size();

inline int64_t roundUp(int64_t n) {
  return (n + kLanes - 1) / kLanes * kLanes;
}

inline Pair pairOf(float value) {
  return {Floats(value), Floats(value)};
}

// The first `count` elements; the other lanes are zero.
template <class T>
inline Pair load(const T* p, int64_t count = kLanes) {
  if constexpr (std::is_same_v<T, float>) {
    if (count == kLanes) {
      return {Floats::loadu(p), Floats::loadu(p + Floats::size())};
    }
    const int64_t first = std::min<int64_t>(count, Floats::size());
    const int64_t second = count - first;
    return {Floats::loadu(p, first), second > 0 ? Floats::loadu(p + first, second) : Floats(0.0f)};
  } else {
    using Vector = at::vec::Vectorized<T>;
    const auto packed = count == kLanes ? Vector::loadu(p) : Vector::loadu(p, static_cast<int16_t>(count));
    const auto [a, b] = at::vec::convert_to_float<T>(packed);
    return {a, b};
  }
}

template <class T>
inline void store(T* p, Pair v, int64_t count = kLanes) {
  if constexpr (std::is_same_v<T, float>) {
    if (count == kLanes) {
      v.a.store(p);
      v.b.store(p + Floats::size());
      return;
    }
    const int64_t first = std::min<int64_t>(count, Floats::size());
    v.a.store(p, static_cast<int>(first));
    if (count > first) {
      v.b.store(p + first, static_cast<int>(count - first));
    }
  } else {
    const auto packed = at::vec::convert_from_float<T>(v.a, v.b);
    packed.store(p, static_cast<int>(count));
  }
}

inline Pair operator+(Pair x, Pair y) {
  return {x.a + y.a, x.b + y.b};
}
inline Pair operator-(Pair x, Pair y) {
  return {x.a - y.a, x.b - y.b};
}
inline Pair operator*(Pair x, Pair y) {
  return {x.a * y.a, x.b * y.b};
}
inline Pair operator/(Pair x, Pair y) {
  return {x.a / y.a, x.b / y.b};
}
// x * y + z
inline Pair fma(Pair x, Pair y, Pair z) {
  return {at::vec::fmadd(x.a, y.a, z.a), at::vec::fmadd(x.b, y.b, z.b)};
}
inline Pair min(Pair x, Pair y) {
  return {at::vec::minimum(x.a, y.a), at::vec::minimum(x.b, y.b)};
}
inline Pair max(Pair x, Pair y) {
  return {at::vec::maximum(x.a, y.a), at::vec::maximum(x.b, y.b)};
}
// To a few units in float's last place: silu in float is off by 3e-7 of its value at most, where ATen's, which spends
// half as long again on the exponential, is off by 2e-7.
inline Pair exp(Pair x) {
  return {x.a.exp_u20(), x.b.exp_u20()};
}
inline Pair sigmoid(Pair x) {
  const Pair one = pairOf(1.0f);
  return one / (one + exp(pairOf(0.0f) - x));
}

inline Pair tanh(Pair x) {
  return {x.a.tanh(), x.b.tanh()};
}

inline float sum(Pair v) {
  return at::vec::vec_reduce_all<float>([](const Floats& x, const Floats& y) { return x + y; }, v.a + v.b);
}
inline float largest(Pair v) {
  return at::vec::vec_reduce_all<float>(
      [](const Floats& x, const Floats& y) { return at::vec::maximum(x, y); }, at::vec::maximum(v.a, v.b));
}

// step(begin, count) for each piece of a row that fits the lanes. Flattened, so that the step of a whole piece is
// compiled for a count that is known: a quarter faster for an activation in float.
template <class Step>
[[gnu::flatten]] inline void eachPiece(int64_t n, const Step& step) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    step(i, kLanes);
  }
  if (i < n) {
    step(i, n - i);
  }
}

// x . y, in float.
template <class X, class Y>
inline float dot(const X* x, const Y* y, int64_t n) {
  Pair total = pairOf(0.0f);
  eachPiece(n, [&](int64_t i, int64_t count) { total = fma(load(x + i, count), load(y + i, count), total); });
  return sum(total);
}

} // namespace CPU_CAPABILITY
} // namespace kunlun::sim
