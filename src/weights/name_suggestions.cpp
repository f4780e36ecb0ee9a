#include "weights/name_suggestions.hpp"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "base/text.hpp"

namespace safetensors::weights {
namespace {

constexpr std::size_t kMaxNames = 4000;
constexpr std::size_t kMaxLength = 128;
constexpr std::size_t kMaxShown = 3;

/// Levenshtein distance: the least number of characters to insert, delete or change. Computed row
/// by row, where row[j] is the distance of the first i characters of `a` to the first j of `b`:
///   new row[j + 1] = min(row[j] + (a[i] != b[j]), row[j + 1] + 1, new row[j] + 1)
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t corner = row[0];  // row[j] of the row before
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t change = corner + (a[i] == b[j] ? 0 : 1);
      corner = row[j + 1];
      row[j + 1] = std::min({change, row[j] + 1, corner + 1});
    }
  }
  return row.back();
}

}  // namespace

std::string name_suggestions(std::string_view name, std::span<const std::string_view> names) {
  if (name.empty() || name.size() > kMaxLength) return {};
  // A third of the name may differ.
  const std::size_t max_edits = std::max<std::size_t>(2, name.size() / 3);
  std::vector<std::pair<std::size_t, std::string_view>> near;
  for (const std::string_view other : names.first(std::min(names.size(), kMaxNames))) {
    const std::size_t longer = std::max(other.size(), name.size());
    if (longer - std::min(other.size(), name.size()) > max_edits) continue;
    const std::size_t edits = distance(name, other);
    if (edits <= max_edits) near.emplace_back(edits, other);
  }
  std::stable_sort(near.begin(), near.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::string text;
  for (std::size_t i = 0; i < near.size() && i < kMaxShown; ++i) {
    text += (i == 0 ? "; near are `" : ", `") + clipped(near[i].second) + "`";
  }
  return text;
}

}  // namespace safetensors::weights
