#include "format/open_keys.hpp"

#include <algorithm>

#include "base/text.hpp"

namespace safetensors::format {

void OpenKeys::add(std::string_view key) {
  keys_.push_back(
      {static_cast<std::uint32_t>(text_.size()), static_cast<std::uint32_t>(key.size())});
  text_.insert(text_.end(), key.begin(), key.end());
}

std::optional<std::string> OpenKeys::close() {
  const Frame frame = frames_.back();
  frames_.pop_back();
  const auto begin = keys_.begin() + static_cast<std::ptrdiff_t>(frame.keys);
  const auto view = [&](Key key) { return std::string_view(text_.data() + key.begin, key.size); };
  std::sort(begin, keys_.end(), [&](Key a, Key b) { return view(a) < view(b); });
  const auto twice =
      std::adjacent_find(begin, keys_.end(), [&](Key a, Key b) { return view(a) == view(b); });
  std::optional<std::string> found;
  if (twice != keys_.end()) found = clipped(view(*twice));
  keys_.erase(begin, keys_.end());
  text_.resize(frame.text);
  return found;
}

}  // namespace safetensors::format
