// Where gloo comes from.
#include "distributed/hosts/Gloo.h"

#include <utility>

#include <c10/util/Exception.h>

namespace kunlun::distributed::hosts {

namespace {

GlooMaker& maker() {
  static GlooMaker instance;
  return instance;
}

} // namespace

void setGlooMaker(GlooMaker made) {
  maker() = std::move(made);
}

c10::intrusive_ptr<c10d::Backend>
makeGloo(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, std::chrono::milliseconds timeout) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      maker() != nullptr, "ranks on several hosts need gloo between them, and this build of torch has none");
  return maker()(store, rank, size, timeout);
}

} // namespace kunlun::distributed::hosts
