// A list of often one element.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace safetensors::c {

/// A list that keeps an only element in itself: one row is read without memory of the heap.
template <typename T>
class OneOrMany {
 public:
  OneOrMany() = default;
  explicit OneOrMany(T only) : one_(std::move(only)) {}
  explicit OneOrMany(std::vector<T> many) : many_(std::move(many)) {}

  /// Requires: before the first add(), of which no more than `count` follow. Then addresses stay.
  void reserve(std::size_t count) {
    if (count > 1) many_.reserve(count);
  }
  T& add() { return many_.capacity() == 0 ? one_.emplace() : many_.emplace_back(); }
  [[nodiscard]] bool empty() const noexcept { return !one_ && many_.empty(); }
  [[nodiscard]] std::span<const T> all() const noexcept {
    return one_ ? std::span<const T>(&*one_, 1) : std::span<const T>(many_);
  }

 private:
  std::optional<T> one_;
  std::vector<T> many_;
};

}  // namespace safetensors::c
