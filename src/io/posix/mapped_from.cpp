#include "io/posix/mapped_from.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

#include "io/posix/kernel_text.hpp"

namespace safetensors::io {
namespace {

struct Range {
  std::uintptr_t begin;
  std::uintptr_t end;
};

#if defined(__linux__)
std::vector<Range> mappings_of(ino_t inode) {
  const std::optional<std::string> maps = read_kernel_text("/proc/self/maps");
  if (!maps) return {{0, UINTPTR_MAX}};
  std::vector<Range> ranges;
  for (std::string_view rest = *maps; !rest.empty();) {
    std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    // begin-end permissions offset device inode path
    const std::string_view range = take_word(line);
    for (int skipped = 0; skipped < 3; ++skipped) (void)take_word(line);
    if (number_of<std::uint64_t>(take_word(line)) != std::uint64_t{inode}) continue;
    const std::size_t dash = range.find('-');
    if (dash == std::string_view::npos) continue;
    const auto begin = number_of<std::uintptr_t>(range.substr(0, dash), 16);
    const auto end = number_of<std::uintptr_t>(range.substr(dash + 1), 16);
    if (begin && end) ranges.push_back({*begin, *end});
  }
  return ranges;
}
#else
std::vector<Range> mappings_of(ino_t) { return {{0, UINTPTR_MAX}}; }  // cannot tell: all of them
#endif

}  // namespace

DetachedContent::DetachedContent(const FileContent& content, ino_t inode) : content_(content) {
  const std::vector<Range> ranges = mappings_of(inode);
  for (std::span<const std::byte>& piece : content_.pieces) {
    const auto begin = reinterpret_cast<std::uintptr_t>(piece.data());
    const std::uintptr_t end = begin + piece.size();
    const bool is_mapped = std::any_of(ranges.begin(), ranges.end(), [&](const Range& range) {
      return begin < range.end && range.begin < end;
    });
    if (!is_mapped || piece.empty()) continue;
    copies_.emplace_back(piece.size());
    std::memcpy(copies_.back().data(), piece.data(), piece.size());
    piece = copies_.back().bytes();
  }
}

}  // namespace safetensors::io
