// PYTORCH_ALLOC_CONF: torch reads the settings that all devices share; what is left for the device is read here.
#include "runtime/AllocatorConfig.h"

#include <string>
#include <unordered_set>

#include <c10/core/AllocatorConfig.h>
#include <c10/util/Exception.h>

namespace kunlun {

namespace {

using c10::CachingAllocator::AcceleratorAllocatorConfig;
using c10::CachingAllocator::ConfigTokenizer;

// torch refuses keys that nobody knows only where a device's own parser is registered: this one, which knows one key.
class AllocatorConfig {
 public:
  static AllocatorConfig& instance() {
    static AllocatorConfig config;
    return config;
  }

  static const std::unordered_set<std::string>& getKeys() {
    static const std::unordered_set<std::string> keys{"backend"};
    return keys;
  }

  void parseArgs(const std::string& text) {
    const ConfigTokenizer tokens(text);
    for (size_t i = 0; i < tokens.size(); ++i) {
      const std::string& key = tokens[i];
      if (key == ",") {
        continue;
      }
      i = tokens.skipKey(i);
      TORCH_CHECK_VALUE(
          key != "backend" || tokens[i] == "native",
          "PYTORCH_ALLOC_CONF: backend must be native on kunlun, got ",
          tokens[i],
          "; another allocator is put in by torch.kunlun.memory.change_current_allocator");
    }
  }
};

REGISTER_ALLOCATOR_CONFIG_PARSE_HOOK(AllocatorConfig)

} // namespace

void parseAllocatorConfig() {
  AllocatorConfig::instance().parseArgs(AcceleratorAllocatorConfig::last_allocator_settings());
}

} // namespace kunlun
