#include "io/posix/mapped_from.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>

namespace safetensors::io {
namespace {

struct Range {
  std::uintptr_t begin;
  std::uintptr_t end;
};

#if defined(__linux__)
std::vector<Range> mappings_of(ino_t inode) {
  std::vector<Range> ranges;
  std::ifstream maps("/proc/self/maps");
  if (!maps) return {{0, UINTPTR_MAX}};
  for (std::string line; std::getline(maps, line);) {
    // begin-end permissions offset device inode path
    std::istringstream fields(line);
    Range range{};
    std::uint64_t found = 0;
    std::string skipped;
    char dash = 0;
    fields >> std::hex >> range.begin >> dash >> range.end;
    fields >> skipped >> skipped >> skipped >> std::dec >> found;
    if (fields && found == inode) ranges.push_back(range);
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
