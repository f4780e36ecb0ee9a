#include "safetensors/detail/path_ends.hpp"

#include <algorithm>
#include <functional>
#include <string_view>

#include "base/display_path.hpp"

namespace safetensors::detail {
namespace {

/// Returns the text of a path whose parts are separated by "/".
std::string with_slashes(const std::filesystem::path& path) {
  std::string text = display_path(path);
#if defined(_WIN32)
  std::ranges::replace(text, '\\', '/');
#endif
  return text;
}

std::string_view last_part(std::string_view path) {
  return path.substr(path.find_last_of('/') + 1);  // npos + 1 is 0
}

/// Returns the last `count` parts of a path; nothing if it has fewer.
std::optional<std::string_view> last_parts(std::string_view path, std::size_t count) {
  std::size_t begin = path.size() + 1;
  for (std::size_t i = 0; i < count; ++i) {
    if (begin == 0) return std::nullopt;
    begin = begin < 2 ? 0 : path.find_last_of('/', begin - 2) + 1;
  }
  return path.substr(begin);
}

}  // namespace

PathEnds::PathEnds(const std::vector<std::filesystem::path>& ends) {
  for (std::size_t i = 0; i < ends.size(); ++i) {
    const std::string end = with_slashes(ends[i]);
    const auto count = static_cast<std::size_t>(std::ranges::count(end, '/')) + 1;
    std::vector<std::size_t>& counts = counts_[std::string(last_part(end))];
    if (std::ranges::find(counts, count) == counts.end()) counts.push_back(count);
    numbers_.emplace(end, i);
  }
  for (auto& [last, counts] : counts_) std::ranges::sort(counts, std::greater<>());
}

std::optional<std::size_t> PathEnds::find(const std::filesystem::path& path) const {
  const std::string text = with_slashes(path);
  const auto counts = counts_.find(last_part(text));
  if (counts == counts_.end()) return std::nullopt;
  for (const std::size_t count : counts->second) {
    const std::optional<std::string_view> end = last_parts(text, count);
    if (!end) continue;
    if (const auto found = numbers_.find(*end); found != numbers_.end()) {
      return found->second;
    }
  }
  return std::nullopt;
}

}  // namespace safetensors::detail
