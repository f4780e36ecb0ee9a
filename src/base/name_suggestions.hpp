// Suggestions for misspelt names.
#pragma once

#include <algorithm>
#include <cstddef>
#include <ranges>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/text.hpp"

namespace safetensors {

namespace detail {

/// Compares a name with others, at limited cost: files come from anyone, and programs may ask for
/// many absent names.
class NameComparison {
 public:
  explicit NameComparison(std::string_view name)
      : name_(name), max_edits_(std::max<std::size_t>(name.size() / 3, name.size() > 2 ? 2 : 1)) {}

  /// Returns how many characters differ; more than max_edits() if the names are not similar.
  [[nodiscard]] std::size_t edits(std::string_view other) {
    if (is_part(other, name_) || is_part(name_, other)) return 1;
    std::string_view own = name_;
    while (!own.empty() && !other.empty() && own.front() == other.front()) {
      own.remove_prefix(1);
      other.remove_prefix(1);
    }
    while (!own.empty() && !other.empty() && own.back() == other.back()) {
      own.remove_suffix(1);
      other.remove_suffix(1);
    }
    const std::size_t longer = std::max(own.size(), other.size());
    if (longer - std::min(own.size(), other.size()) > max_edits_) return max_edits_ + 1;
    return distance(own, other);
  }

  [[nodiscard]] std::size_t max_edits() const noexcept { return max_edits_; }

 private:
  static constexpr std::size_t kMaxSteps = 1'000'000;

  /// Returns whether `name` lacks the first or the last parts of `whole`, as `h.0.bias` of
  /// `transformer.h.0.bias`, or an index that a caller has added, as `bias[2]`.
  static bool is_part(std::string_view name, std::string_view whole) {
    if (name.empty() || name.size() >= whole.size()) return false;
    const char next = whole[name.size()];
    return (whole.starts_with(name) && (next == '.' || next == '[')) ||
           (whole.ends_with(name) && whole[whole.size() - name.size() - 1] == '.');
  }

  /// Levenshtein distance: the least number of characters to insert, delete or change. Computed row
  /// by row, where row[j] is the distance of the first i characters of `a` to the first j of `b`:
  ///   new row[j + 1] = min(row[j] + (a[i] != b[j]), row[j + 1] + 1, new row[j] + 1)
  std::size_t distance(std::string_view a, std::string_view b) {
    if ((a.size() + 1) * (b.size() + 1) > kMaxSteps - steps_) return max_edits_ + 1;
    row_.resize(b.size() + 1);
    for (std::size_t j = 0; j <= b.size(); ++j) row_[j] = j;
    for (std::size_t i = 0; i < a.size(); ++i) {
      std::size_t corner = row_[0];  // row[j] of the row before
      std::size_t least = row_[0] = i + 1;
      for (std::size_t j = 0; j < b.size(); ++j) {
        const std::size_t change = corner + (a[i] == b[j] ? 0 : 1);
        corner = row_[j + 1];
        row_[j + 1] = std::min({change, row_[j] + 1, corner + 1});
        least = std::min(least, row_[j + 1]);
      }
      steps_ += row_.size();
      if (least > max_edits_) return least;
    }
    return row_.back();
  }

  std::string_view name_;
  std::size_t max_edits_;
  std::size_t steps_ = 0;
  std::vector<std::size_t> row_;
};

/// Returns the name with each digit replaced by 0: names of many layers differ in numbers only.
[[nodiscard]] inline std::string without_numbers(std::string_view name) {
  std::string form(name);
  std::ranges::replace_if(form, [](char c) { return c >= '0' && c <= '9'; }, '0');
  return form;
}

}  // namespace detail

/// Returns the three of `names` that are most similar to `name`, as the end of an error message:
/// "; did you mean `a`, `b` or `c`?". Returns an empty text if none is similar. Of names that
/// differ only in numbers, one is shown. Compares 4,000 names at most. The names are those of
/// `names`, a range of texts that outlive the call.
template <std::ranges::input_range Names>
[[nodiscard]] std::string name_suggestions(std::string_view name, Names&& names) {
  constexpr std::size_t kMaxNames = 4000;
  constexpr std::size_t kMaxLength = 200;
  constexpr std::size_t kMaxShown = 3;
  if (name.empty() || name.size() > kMaxLength) return {};
  detail::NameComparison comparison(name);
  std::vector<std::pair<std::size_t, std::string_view>> near;
  std::size_t compared = 0;
  for (const std::string_view other : names) {
    if (++compared > kMaxNames) break;
    const std::size_t edits = comparison.edits(other);
    if (edits < std::max(name.size(), other.size()) && edits <= comparison.max_edits()) {
      near.emplace_back(edits, other);
    }
  }
  std::ranges::stable_sort(near, {}, [](const auto& each) { return each.first; });
  std::vector<std::string> forms;
  std::vector<std::string> shown;
  for (const auto& each : near) {
    std::string form = detail::without_numbers(each.second);
    if (std::ranges::find(forms, form) != forms.end()) continue;
    forms.push_back(std::move(form));
    shown.push_back("`" + clipped(each.second) + "`");
    if (shown.size() == kMaxShown) break;
  }
  std::string text;
  for (std::size_t i = 0; i < shown.size(); ++i) {
    text += i == 0 ? "; did you mean " : i + 1 == shown.size() ? " or " : ", ";
    text += shown[i];
  }
  return text.empty() ? text : text + "?";
}

}  // namespace safetensors
