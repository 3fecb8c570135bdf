// Which torch this is compiled for. Only code that differs between the supported minor versions asks.
#pragma once

#include <torch/headeronly/version.h>

#define KUNLUN_TORCH_BEFORE(major, minor) \
  (TORCH_VERSION_MAJOR < (major) || (TORCH_VERSION_MAJOR == (major) && TORCH_VERSION_MINOR < (minor)))
