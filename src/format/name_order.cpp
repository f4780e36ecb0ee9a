// A radix sort on keys of 7 bytes. For each group of names that are equal so far: skip the prefix
// that they all share, sort by the next 7 bytes, and make groups of those whose key is equal.
#include "format/name_order.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace safetensors::format {
namespace {

constexpr std::size_t kKeyLength = 7;
// Groups up to this size are sorted by comparing names.
constexpr std::size_t kFew = 8;
// More ascending runs than this are not merged but sorted.
constexpr std::size_t kMaxRuns = 64;

struct Entry {
  std::uint64_t key;
  const TensorInfo* info;
};

/// Entries [begin, end), whose names have the same first `depth` bytes.
struct Group {
  std::size_t begin;
  std::size_t end;
  std::size_t depth;
};

/// Returns the 7 bytes after `depth` as a number that sorts as they do, and in its lowest byte how
/// many of them the name has (8 if it has more). So "a" sorts before "a\0":
///
///     | 'a' |  0  |  0  |  0  |  0  |  0  |  0  |  1  |     "a"
///     | 'a' |  0  |  0  |  0  |  0  |  0  |  0  |  2  |     "a\0"
std::uint64_t key_at(std::string_view name, std::size_t depth) noexcept {
  const std::size_t left = name.size() - depth;
  std::uint64_t key = 0;
  if (left > kKeyLength) {
    // A fixed length: compiles to one load and a byte swap.
    for (std::size_t i = 0; i < kKeyLength; ++i) {
      key = key << 8 | static_cast<unsigned char>(name[depth + i]);
    }
    return key << 8 | (kKeyLength + 1);
  }
  for (std::size_t i = 0; i < left; ++i) {
    key = key << 8 | static_cast<unsigned char>(name[depth + i]);
  }
  return key << 8 * (kKeyLength - left) << 8 | left;
}

/// Returns the length of the prefix that all names of the group share; at least `depth`.
std::size_t common_length(std::span<const Entry> group, std::size_t depth) noexcept {
  const std::string_view first = group.front().info->name;
  std::size_t length = first.size();
  for (const Entry& entry : group.subspan(1)) {
    const std::string_view name = entry.info->name;
    length = std::min(length, name.size());
    const auto differ = std::mismatch(first.begin() + static_cast<std::ptrdiff_t>(depth),
                                      first.begin() + static_cast<std::ptrdiff_t>(length),
                                      name.begin() + static_cast<std::ptrdiff_t>(depth));
    length = static_cast<std::size_t>(differ.first - first.begin());
    if (length == depth) break;
  }
  return length;
}

class Sorter {
 public:
  explicit Sorter(std::span<const TensorInfo* const> tensors) {
    entries_.reserve(tensors.size());
    for (const TensorInfo* const info : tensors) entries_.push_back({0, info});
    groups_.push_back({0, entries_.size(), 0});
  }

  [[nodiscard]] std::span<const Entry> sorted() {
    // A list instead of recursion: crafted names can nest groups a million deep.
    while (!groups_.empty()) {
      const Group group = groups_.back();
      groups_.pop_back();
      sort(group);
    }
    return entries_;
  }

 private:
  void sort(const Group& group) {
    const auto names = std::span(entries_).subspan(group.begin, group.end - group.begin);
    if (names.size() <= kFew) {
      std::sort(names.begin(), names.end(), [&](const Entry& a, const Entry& b) {
        return a.info->name.substr(group.depth) < b.info->name.substr(group.depth);
      });
      return;
    }
    const std::size_t depth = common_length(names, group.depth);
    for (Entry& entry : names) entry.key = key_at(entry.info->name, depth);
    sort_by_key(names);
    for (std::size_t begin = group.begin; begin < group.end;) {
      std::size_t end = begin + 1;
      while (end < group.end && entries_[end].key == entries_[begin].key) ++end;
      const bool goes_on = (entries_[begin].key & 0xFF) > kKeyLength;  // else the names are equal
      if (end - begin > 1 && goes_on) groups_.push_back({begin, end, depth + kKeyLength});
      begin = end;
    }
  }

  /// Sorts by key. Numbered names (layer.9, layer.10) are a few ascending runs, which are merged.
  void sort_by_key(std::span<Entry> names) {
    const auto by_key = [](const Entry& a, const Entry& b) { return a.key < b.key; };
    runs_.clear();
    for (std::size_t i = 0; i < names.size() && runs_.size() <= kMaxRuns; ++i) {
      if (i == 0 || names[i].key < names[i - 1].key) runs_.push_back(i);
    }
    if (runs_.size() > kMaxRuns) {
      std::sort(names.begin(), names.end(), by_key);
      return;
    }
    const auto at = [&](std::size_t run) {
      return names.begin() + static_cast<std::ptrdiff_t>(runs_[run]);
    };
    runs_.push_back(names.size());
    while (runs_.size() > 2) {
      std::size_t kept = 0;
      for (std::size_t run = 0; run + 1 < runs_.size(); run += 2, ++kept) {
        if (run + 2 < runs_.size()) {
          std::inplace_merge(at(run), at(run + 1), at(run + 2), by_key);
        }
        runs_[kept] = runs_[run];
      }
      runs_[kept] = names.size();
      runs_.resize(kept + 1);
    }
  }

  std::vector<Entry> entries_;
  std::vector<Group> groups_;
  std::vector<std::size_t> runs_;  // where each ascending run begins
};

}  // namespace

void sort_by_name(std::span<const TensorInfo*> tensors) {
  const auto by_name = [](const TensorInfo* a, const TensorInfo* b) { return a->name < b->name; };
  // NOLINTNEXTLINE(bugprone-nondeterministic-pointer-iteration-order): by what they point to
  if (std::is_sorted(tensors.begin(), tensors.end(), by_name)) return;
  Sorter sorter(tensors);
  const std::span<const Entry> sorted = sorter.sorted();
  for (std::size_t i = 0; i < tensors.size(); ++i) tensors[i] = sorted[i].info;
}

}  // namespace safetensors::format
