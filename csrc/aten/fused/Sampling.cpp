// Drawing tokens from probabilities.
#include <ATen/core/Generator.h>
#include <ATen/ops/empty.h>

#include "aten/Empty.h"
#include "aten/Launch.h"
#include "aten/fused/Checks.h"
#include "aten/fused/Define.h"
#include "aten/random/Philox.h"

namespace kunlun::aten::fused {

namespace {

OpHandle k_top_k{"kunlun::top_k_sampling_from_probs"};
OpHandle k_top_p{"kunlun::top_p_sampling_from_probs"};
OpHandle k_top_k_top_p{"kunlun::top_k_top_p_sampling_from_probs"};

using Generator = std::optional<at::Generator>;

void checkProbs(const char* op, const at::Tensor& probs) {
  checkDtype(op, "probs", probs, at::kFloat);
  checkDims(op, "probs", probs, 2);
  TORCH_CHECK(probs.sym_size(1) > 0, op, ": probs has no columns to choose from");
}

void checkTopK(const char* op, const at::Tensor& probs, const at::Tensor& top_k) {
  checkIndex(op, "top_k", top_k);
  checkShape(op, "top_k", top_k, {probs.sym_size(0)});
}

void checkTopP(const char* op, const at::Tensor& probs, const at::Tensor& top_p) {
  checkDtype(op, "top_p", top_p, at::kFloat);
  checkShape(op, "top_p", top_p, {probs.sym_size(0)});
}

template <class... Limits>
at::Tensor draw(OpHandle& op, const at::Tensor& probs, const Generator& generator, const Limits&... limits) {
  auto ids = empty({probs.size(0)}, at::kInt, probs.device());
  if (ids.numel() != 0) {
    const std::array<const at::Tensor*, 1> outs{&ids};
    launch(op, probs.device(), outs, dense(probs), limits..., drawPhilox(generator, probs.device()));
  }
  return ids;
}

at::Tensor metaIds(const at::Tensor& probs) {
  return at::empty_symint({probs.sym_size(0)}, probs.options().dtype(at::kInt));
}

at::Tensor topK(const at::Tensor& probs, const at::Tensor& top_k, Generator generator) {
  checkProbs("top_k_sampling_from_probs", probs);
  checkTopK("top_k_sampling_from_probs", probs, top_k);
  return draw(k_top_k, probs, generator, top_k);
}

at::Tensor topKMeta(const at::Tensor& probs, const at::Tensor& top_k, Generator) {
  checkProbs("top_k_sampling_from_probs", probs);
  checkTopK("top_k_sampling_from_probs", probs, top_k);
  return metaIds(probs);
}

at::Tensor topP(const at::Tensor& probs, const at::Tensor& top_p, Generator generator) {
  checkProbs("top_p_sampling_from_probs", probs);
  checkTopP("top_p_sampling_from_probs", probs, top_p);
  return draw(k_top_p, probs, generator, top_p);
}

at::Tensor topPMeta(const at::Tensor& probs, const at::Tensor& top_p, Generator) {
  checkProbs("top_p_sampling_from_probs", probs);
  checkTopP("top_p_sampling_from_probs", probs, top_p);
  return metaIds(probs);
}

at::Tensor topKTopP(const at::Tensor& probs, const at::Tensor& top_k, const at::Tensor& top_p, Generator generator) {
  checkProbs("top_k_top_p_sampling_from_probs", probs);
  checkTopK("top_k_top_p_sampling_from_probs", probs, top_k);
  checkTopP("top_k_top_p_sampling_from_probs", probs, top_p);
  return draw(k_top_k_top_p, probs, generator, top_k, top_p);
}

at::Tensor topKTopPMeta(const at::Tensor& probs, const at::Tensor& top_k, const at::Tensor& top_p, Generator) {
  checkProbs("top_k_top_p_sampling_from_probs", probs);
  checkTopK("top_k_top_p_sampling_from_probs", probs, top_k);
  checkTopP("top_k_top_p_sampling_from_probs", probs, top_p);
  return metaIds(probs);
}

} // namespace

TORCH_LIBRARY_FRAGMENT(kunlun, m) {
  define<"top_k_sampling_from_probs", &topK, &topKMeta>(
      m,
      "top_k_sampling_from_probs(Tensor probs, Tensor top_k, *, Generator? generator=None) -> Tensor",
      {at::Tag::nondeterministic_seeded});
  define<"top_p_sampling_from_probs", &topP, &topPMeta>(
      m,
      "top_p_sampling_from_probs(Tensor probs, Tensor top_p, *, Generator? generator=None) -> Tensor",
      {at::Tag::nondeterministic_seeded});
  define<"top_k_top_p_sampling_from_probs", &topKTopP, &topKTopPMeta>(
      m,
      "top_k_top_p_sampling_from_probs(Tensor probs, Tensor top_k, Tensor top_p, *, Generator? generator=None) -> "
      "Tensor",
      {at::Tag::nondeterministic_seeded});
}

} // namespace kunlun::aten::fused
