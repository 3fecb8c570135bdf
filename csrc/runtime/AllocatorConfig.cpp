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

// torch keeps one parser and refuses a key that is registered twice. In a build of torch for CUDA, that device's parser
// is there already and knows the same key: it goes on reading what is its own.
bool registerParser() {
  const std::string key = "backend";
  AcceleratorAllocatorConfig::registerDeviceConfigParserHook(
      [others = AcceleratorAllocatorConfig::getConfigParserHook()](const std::string& text) {
        if (others) {
          others(text);
        }
        AllocatorConfig::instance().parseArgs(text);
      },
      AcceleratorAllocatorConfig::getKeys().count(key) != 0 ? std::unordered_set<std::string>{}
                                                            : std::unordered_set<std::string>{key});
  return true;
}
const bool is_registered = registerParser();

} // namespace

void parseAllocatorConfig() {
  AllocatorConfig::instance().parseArgs(AcceleratorAllocatorConfig::last_allocator_settings());
}

} // namespace kunlun
