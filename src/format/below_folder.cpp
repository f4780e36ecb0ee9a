#include "format/below_folder.hpp"

#include <algorithm>

namespace safetensors {

bool is_below_folder(std::string_view path) {
  const auto is_separator = [](char c) { return c == '/' || c == '\\'; };
  const bool has_drive = path.size() >= 2 && path[1] == ':';
  if (path.size() > kMaxFileNameSize) return false;
  if (path.empty() || is_separator(path[0]) || has_drive) return false;
  if (path.find('\0') != std::string_view::npos) return false;
  bool has_name = false;
  while (!path.empty()) {
    const auto end = static_cast<std::size_t>(std::find_if(path.begin(), path.end(), is_separator) -
                                              path.begin());
    const std::string_view part = path.substr(0, end);
    if (part == "..") return false;
    has_name = has_name || (!part.empty() && part != ".");
    path.remove_prefix(std::min(end + 1, path.size()));
  }
  return has_name;
}

}  // namespace safetensors
