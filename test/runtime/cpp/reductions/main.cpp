// The loops of reductions give the same bits for every instruction set that this CPU has.
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "runtime/sim/collectives/ReduceKernels.h"

namespace kunlun::sim {
namespace {

constexpr size_t kCount = 1031; // no multiple of any vector
constexpr size_t kBytes = kCount * 16;

std::mt19937_64 random_bits(0);

struct Buffer {
  alignas(64) char bytes[kBytes + 64];
};

// Any bits; `offset` moves them off every alignment that their elements do not need.
std::vector<Buffer> inputs() {
  std::vector<Buffer> all(2);
  for (auto& buffer : all) {
    for (size_t i = 0; i < sizeof(buffer.bytes); i += 8) {
      const uint64_t word = random_bits();
      std::memcpy(buffer.bytes + i, &word, 8);
    }
  }
  return all;
}

int failures = 0;
int compared = 0;

void expectSame(const char* set, const char* what, int number, const Buffer& a, const Buffer& b) {
  ++compared;
  if (std::memcmp(a.bytes, b.bytes, sizeof(a.bytes)) != 0) {
    std::printf("%s: %s %d differs\n", set, what, number);
    ++failures;
  }
}

// Bits of a NaN are the processor's affair: floats are compared after their NaNs have become one.
template <class Float>
void unifyNans(Buffer& buffer) {
  for (size_t i = 0; i + sizeof(Float) <= sizeof(buffer.bytes); i += sizeof(Float)) {
    Float value;
    std::memcpy(&value, buffer.bytes + i, sizeof(value));
    if (value != value) {
      value = 0;
      std::memcpy(buffer.bytes + i, &value, sizeof(value));
    }
  }
}

void unify(int accumulator, Buffer& a, Buffer& b) {
  for (Buffer* buffer : {&a, &b}) {
    if (accumulator == kAccFloat || accumulator == kAccComplexFloat) {
      unifyNans<float>(*buffer);
    } else if (accumulator == kAccDouble || accumulator == kAccComplexDouble) {
      unifyNans<double>(*buffer);
    }
  }
}

void compare(const char* set, const ReduceKernels& base, const ReduceKernels& other) {
  const auto with = [&](const char* what, int number, int accumulator, const auto& base_call, const auto& other_call) {
    const auto in = inputs();
    Buffer a = in[0];
    Buffer b = in[0];
    base_call(a.bytes, in[0].bytes, in[1].bytes);
    other_call(b.bytes, in[0].bytes, in[1].bytes);
    unify(accumulator, a, b);
    expectSame(set, what, number, a, b);
  };
  for (int accumulator = 0; accumulator < kAccCount; ++accumulator) {
    for (int op = 0; op < ReduceKernels::kCombineCount; ++op) {
      if (base.combine[accumulator][op] == nullptr) {
        continue;
      }
      const auto call = [&](const ReduceKernels& k) {
        return [&k, accumulator, op](void* to, const void* left, const void* right) {
          k.combine[accumulator][op](to, left, right, kCount);
        };
      };
      with("combine", accumulator * 100 + op, accumulator, call(base), call(other));
    }
    for (const bool divides : {false, true}) {
      if ((divides ? base.divide : base.scale)[accumulator] == nullptr) {
        continue;
      }
      const auto call = [&](const ReduceKernels& k) {
        return [&k, accumulator, divides](void* to, const void*, const void*) {
          (divides ? k.divide : k.scale)[accumulator](to, 3, kCount);
        };
      };
      with(divides ? "divide" : "scale", accumulator, accumulator, call(base), call(other));
    }
    if (base.load_wide[accumulator] != nullptr) {
      const auto load = [&](const ReduceKernels& k) {
        return
            [&k, accumulator](void* to, const void* from, const void*) { k.load_wide[accumulator](to, from, kCount); };
      };
      const auto store = [&](const ReduceKernels& k) {
        return
            [&k, accumulator](void* to, const void* from, const void*) { k.store_wide[accumulator](to, from, kCount); };
      };
      with("load wide", accumulator, kAccInt64, load(base), load(other));
      with("store wide", accumulator, accumulator, store(base), store(other));
    }
  }
  const auto halves = [&](int number, const auto& member, bool is_float) {
    const auto call = [&](const ReduceKernels& k) {
      return [&k, &member](void* to, const void* left, const void* right) { member(k, to, left, right); };
    };
    with("halves", number, is_float ? kAccFloat : kAccInt16, call(base), call(other));
  };
  const auto load = [](ReduceKernels::Load ReduceKernels::* function) {
    return [function](const ReduceKernels& k, void* to, const void* from, const void*) {
      (k.*function)(to, from, kCount);
    };
  };
  halves(0, load(&ReduceKernels::load_float16), true);
  halves(1, load(&ReduceKernels::load_bfloat16), true);
  halves(2, load(&ReduceKernels::store_float16), false);
  halves(3, load(&ReduceKernels::store_bfloat16), false);
  const auto sum = [](ReduceKernels::HalfSum ReduceKernels::* dtype,
                      ReduceKernels::Combine ReduceKernels::HalfSum::* function) {
    return [dtype, function](const ReduceKernels& k, void* to, const void* left, const void* right) {
      (k.*dtype.*function)(to, left, right, kCount);
    };
  };
  int number = 4;
  for (const auto dtype : {&ReduceKernels::float16, &ReduceKernels::bfloat16}) {
    halves(number++, sum(dtype, &ReduceKernels::HalfSum::pair), false);
    halves(number++, sum(dtype, &ReduceKernels::HalfSum::first), true);
    halves(number++, sum(dtype, &ReduceKernels::HalfSum::further), true);
    halves(number++, sum(dtype, &ReduceKernels::HalfSum::last), false);
  }
}

} // namespace
} // namespace kunlun::sim

int main() {
  using namespace kunlun::sim;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) {
    compare("AVX2", baseReduceKernels(), avx2ReduceKernels());
  }
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl")) {
    compare("AVX-512", baseReduceKernels(), avx512ReduceKernels());
  }
#endif
  std::printf("%d comparisons, %d failures\n", compared, failures);
  return failures == 0 ? 0 : 1;
}
