// Helpers of the parsers of environment variables.
#pragma once

#include <charconv>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "runtime/Env.h"

namespace kunlun::env_parse {

[[noreturn]] inline void refuse(const char* name, std::string_view value, const std::string& accepted) {
  throw EnvError(std::string(name) + "=\"" + std::string(value) + "\" is not understood; accepted: " + accepted);
}

template <class T>
std::optional<T> wholeNumber(std::string_view text) {
  T value{};
  auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || code != std::errc{} || end != text.data() + text.size()) {
    return std::nullopt;
  }
  return value;
}

inline std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  size_t start = 0;
  for (size_t at; (at = text.find(separator, start)) != std::string_view::npos; start = at + 1) {
    parts.push_back(text.substr(start, at - start));
  }
  parts.push_back(text.substr(start));
  return parts;
}

inline std::string_view trim(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) {
    return {};
  }
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

} // namespace kunlun::env_parse
