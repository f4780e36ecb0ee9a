#include "write/left_record.hpp"

#include <cstddef>

#include "safetensors/error.hpp"

namespace safetensors {

void refuse_to_follow(const std::filesystem::path& path, const std::string& reason) {
  fail(ErrorCode::kInvalidArgument, reason + ", so it is not followed", {.path = path});
}

std::optional<std::string> file_name_of(std::string_view text) {
  std::string name;
  for (std::size_t i = 0; i < text.size(); ++i) {
    // U+D800 to U+DFFF would be ED A0 80 to ED BF BF. U+DC80 to U+DCFF: ED B2 80 to ED B3 BF.
    const auto at = [&](std::size_t k) { return static_cast<unsigned char>(text[i + k]); };
    if (at(0) != 0xED || text.size() - i < 3 || at(1) < 0xA0) {
      name += text[i];
      continue;
    }
    if (at(1) != 0xB2 && at(1) != 0xB3) return std::nullopt;
    name += static_cast<char>((at(1) & 1) << 6 | (at(2) & 0x3F) | 0x80);
    i += 2;
  }
  return name;
}

}  // namespace safetensors
