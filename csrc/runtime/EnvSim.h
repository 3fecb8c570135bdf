// Grammars of what the simulated chip can be made to show.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/Env.h"

namespace kunlun::env_parse {

// `name` is the variable, for the text of an EnvError.
std::vector<SimFault> simFaults(const char* name, const std::string& text);
SimOperators simOperators(const char* name, const std::string& text);
// One bit for each kl_dtype that is left out.
uint32_t simMissingDtypes(const char* name, const std::string& text);

} // namespace kunlun::env_parse
