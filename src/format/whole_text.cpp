#include "safetensors/detail/whole_text.hpp"

#include "base/ascii_text.hpp"

namespace safetensors::detail {
namespace {

// With a name of 100 MB, the text is six times as long as the sums.
constexpr std::size_t kWholeStep = std::size_t{1} << 16;

/// Returns the beginning of a text, of at most `most` bytes and at least one character.
std::string_view first_characters(std::string_view text, std::size_t most) {
  if (text.size() <= most) return text;
  std::size_t end = most;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) --end;
  return text.substr(0, end == 0 ? text.size() : end);
}

}  // namespace

std::string hex_of(const Digest& digest) {
  const std::string text = digest.text();
  return text.substr(text.find(':') + 1);
}

void WholeText::add(std::string_view name, const Digest& digest) {
  text_ += '"';
  while (!name.empty()) {
    const std::string_view piece = first_characters(name, kWholeStep);
    append_ascii_escaped(text_, piece);
    name.remove_prefix(piece.size());
    take_if_long();
  }
  text_ += "\" ";
  text_ += hex_of(digest);
  text_ += '\n';
  take_if_long();
}

void WholeText::finish() {
  take_(text_);
  text_.clear();
}

void WholeText::take_if_long() {
  if (text_.size() >= kWholeStep) finish();
}

}  // namespace safetensors::detail
