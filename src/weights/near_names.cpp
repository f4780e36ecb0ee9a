#include "weights/near_names.hpp"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "base/text.hpp"

namespace safetensors::weights {
namespace {

constexpr std::size_t kMostNames = 4000;
constexpr std::size_t kLongest = 128;
constexpr std::size_t kShown = 3;

/// Edits (a character added, left out or changed) from one text to the other.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t corner = row[0];
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

std::string near_names(std::string_view name, std::span<const std::string_view> names) {
  if (name.empty() || name.size() > kLongest) return {};
  const std::size_t most = std::max<std::size_t>(2, name.size() / 3);
  std::vector<std::pair<std::size_t, std::string_view>> near;
  for (const std::string_view other : names.first(std::min(names.size(), kMostNames))) {
    const std::size_t longer = std::max(other.size(), name.size());
    if (longer - std::min(other.size(), name.size()) > most) continue;
    const std::size_t edits = distance(name, other);
    if (edits <= most) near.emplace_back(edits, other);
  }
  std::stable_sort(near.begin(), near.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::string text;
  for (std::size_t i = 0; i < near.size() && i < kShown; ++i) {
    text += (i == 0 ? "; near are `" : ", `") + clipped(near[i].second) + "`";
  }
  return text;
}

}  // namespace safetensors::weights
