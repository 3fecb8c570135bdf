// Drawing tokens from probabilities restricted to the most likely ones. No sorting: the smallest probability that is
// kept is found by bisection over the bits of a float, each step one pass over the row.
#include <ATen/Parallel.h>
#include <ATen/core/PhiloxRNGEngine.h>

#include <bit>

#include "runtime/sim/ops/fused/Args.h"
#include "runtime/sim/ops/fused/Fused.h"
#include "runtime/sim/ops/fused/vec/Lanes.h"

namespace kunlun::sim {
inline namespace CPU_CAPABILITY {
namespace {

// Those of v that are at least t; zero elsewhere.
inline Pair keep(Pair v, Pair t) {
  const Floats zero(0.0f);
  return {Floats::blendv(zero, v.a, v.a >= t.a), Floats::blendv(zero, v.b, v.b >= t.b)};
}

class Row {
 public:
  Row(const float* p, int64_t n) : p_(p), n_(n) {
    Pair top = pairOf(0.0f);
    Pair total = pairOf(0.0f);
    eachPiece(n, [&](int64_t i, int64_t count) {
      const Pair v = load(p + i, count);
      top = max(top, v);
      total = total + v;
    });
    largest_ = sim::largest(top);
    TORCH_CHECK(
        std::isfinite(sum(total)) && largest_ > 0,
        "sampling: the probabilities of a row must be finite and not all zero");
  }

  // Keeps the k largest, and what equals the last of them.
  void keepTop(int64_t k) {
    if (k < n_) {
      raise([&](float t) { return countFrom(t) >= static_cast<float>(k); });
    }
  }

  // Keeps the fewest of the largest whose sum is at least `share` of what was kept so far, and what equals the last.
  void keepShare(float share) {
    if (share < 1.0f) {
      const float wanted = share * sumFrom(threshold_);
      raise([&](float t) {
        const float sum = sumFrom(t);
        return sum >= wanted && sum > 0;
      });
    }
  }

  // The element at the position u, from 0 to 1, of the kept ones laid side by side.
  int64_t at(float u) const {
    const float wanted = u * sumFrom(threshold_);
    const Pair t = pairOf(threshold_);
    float before = 0;
    int64_t last = 0;
    for (int64_t i = 0; i < n_; i += kLanes) {
      const int64_t count = std::min(kLanes, n_ - i);
      const float piece = sum(keep(load(p_ + i, count), t));
      if (piece == 0) {
        continue;
      }
      if (before + piece > wanted || i + kLanes >= n_) {
        float here = before;
        for (int64_t j = i; j < i + count; ++j) {
          if (p_[j] >= threshold_ && p_[j] > 0) {
            here += p_[j];
            last = j;
            if (here > wanted) {
              return j;
            }
          }
        }
        return last; // the piece's own sum was rounded up
      }
      before += piece;
      last = i; // replaced by the next piece that holds something
      while (!(p_[last] >= threshold_ && p_[last] > 0)) {
        ++last;
      }
    }
    return last; // the whole sum was rounded up
  }

 private:
  float countFrom(float threshold) const {
    const Pair t = pairOf(threshold);
    const Floats one(1.0f);
    const Floats zero(0.0f);
    Pair total = pairOf(0.0f);
    int64_t i = 0;
    for (; i + kLanes <= n_; i += kLanes) {
      const Pair v = load(p_ + i);
      total = total + Pair{Floats::blendv(zero, one, v.a >= t.a), Floats::blendv(zero, one, v.b >= t.b)};
    }
    float count = sum(total);
    for (; i < n_; ++i) {
      count += p_[i] >= threshold ? 1.0f : 0.0f;
    }
    return count;
  }

  float sumFrom(float threshold) const {
    const Pair t = pairOf(threshold);
    Pair total = pairOf(0.0f);
    eachPiece(n_, [&](int64_t i, int64_t count) { total = total + keep(load(p_ + i, count), t); });
    return sum(total);
  }

  // The threshold becomes the largest float that still satisfies `enough`, which the present one does.
  template <class Enough>
  void raise(const Enough& enough) {
    // Positive floats are ordered as their bits are.
    uint32_t low = std::bit_cast<uint32_t>(threshold_);
    uint32_t high = std::bit_cast<uint32_t>(largest_) + 1;
    while (high - low > 1) {
      const uint32_t middle = low + (high - low) / 2;
      (enough(std::bit_cast<float>(middle)) ? low : high) = middle;
    }
    threshold_ = std::bit_cast<float>(low);
  }

  const float* p_;
  int64_t n_;
  float largest_;
  float threshold_ = 0; // what is smaller is not kept
};

// probs [rows, n], top_k [rows]?, top_p [rows]?, seed and offset -> ids [rows]
void sample(const View& probs, const View& top_k, const View& top_p, const uint64_t* philox, const View& ids) {
  const int64_t n = probs.size(1);
  at::parallel_for(0, probs.size(0), 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      Row row(probs.as<float>() + r * probs.stride(0), n);
      if (top_k.defined()) {
        const int64_t k = top_k.index(r);
        TORCH_CHECK_VALUE(k >= 1, "sampling: top_k must be at least 1, got ", k, " for row ", r);
        row.keepTop(k);
      }
      if (top_p.defined()) {
        const float p = top_p.as<float>()[r * top_p.stride(0)];
        TORCH_CHECK_VALUE(p >= 0.0f && p <= 1.0f, "sampling: top_p must be from 0 to 1, got ", p, " for row ", r);
        row.keepShare(p);
      }
      at::philox_engine engine(philox[0], r, philox[1]);
      const float u = static_cast<float>(engine() >> 8) * 0x1p-24f;
      ids.as<int32_t>()[r] = static_cast<int32_t>(row.at(u));
    }
  });
}

constexpr Kernel kKernels[] = {
    {"kunlun::top_k_sampling_from_probs",
     [](const kl_frame* frame) {
       const Args a(frame);
       sample(a.in(0), a.in(1), View{}, a.philox(2), a.out(0));
     }},
    {"kunlun::top_p_sampling_from_probs",
     [](const kl_frame* frame) {
       const Args a(frame);
       sample(a.in(0), View{}, a.in(1), a.philox(2), a.out(0));
     }},
    {"kunlun::top_k_top_p_sampling_from_probs",
     [](const kl_frame* frame) {
       const Args a(frame);
       sample(a.in(0), a.in(1), a.in(2), a.philox(3), a.out(0));
     }},
};

c10::ArrayRef<Kernel> kernels() {
  return kKernels;
}

} // namespace
} // namespace CPU_CAPABILITY
} // namespace kunlun::sim

namespace at::native {
ALSO_REGISTER_AVX512_DISPATCH(kunlun_sampling_kernels, &kunlun::sim::kernels)
} // namespace at::native
