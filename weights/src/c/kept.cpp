#include "c/kept.hpp"

namespace safetensors::weights {

TextTable::TextTable(const std::vector<std::string_view>& texts) {
  std::size_t nbytes = 0;
  for (const std::string_view text : texts) nbytes += text.size() + 1;
  bytes_.reserve(nbytes);  // then no text moves
  items_.reserve(texts.size());
  for (const std::string_view text : texts) {
    items_.push_back({bytes_.data() + bytes_.size(), text.size()});
    bytes_ += text;
    bytes_ += '\0';
  }
}

const char* Kept::text(std::string_view text) {
  if (text.empty()) return "";
  State& state = state_.get();
  const std::lock_guard lock(state.mutex);
  // What the provider has does not move, so equal addresses are equal texts.
  return state.texts.try_emplace({text.data(), text.size()}, text).first->second.c_str();
}

}  // namespace safetensors::weights
