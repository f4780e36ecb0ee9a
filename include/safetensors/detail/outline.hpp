// Outlines of models for displays. For this project's own bindings: it may change at any time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "safetensors/export.hpp"

namespace safetensors::detail {

/// A tensor to be listed. Lifetime: views what the caller keeps.
struct OutlineTensor {
  std::string_view name;
  std::string_view type;
  std::span<const std::uint64_t> shape;
  std::uint64_t nbytes = 0;
};

/// A row: a tensor, or all tensors whose names begin with the same parts; or several such that are
/// alike, as the layers of a model are.
struct OutlineRow {
  static constexpr std::size_t kGroup = SIZE_MAX;

  std::string first;            // the parts of the name below those of the row above
  std::string last;             // the same, of the last one that is alike
  std::uint64_t alike = 1;      // how many are alike
  std::size_t tensor = kGroup;  // the index of the first one, or kGroup
  std::uint64_t tensors = 0;    // the sums of all that are alike
  std::uint64_t elements = 0;
  std::uint64_t nbytes = 0;
  std::vector<OutlineRow> rows;  // those of the first one; empty if they are not shown
};

struct OutlineLimits {
  std::size_t rows = SIZE_MAX;   // the largest groups show their rows, until there are so many
  std::size_t depth = SIZE_MAX;  // levels of rows
};

/// The sums of the tensors of a type.
struct OutlineType {
  std::string_view type;  // as in the first of its tensors
  std::uint64_t tensors = 0;
  std::uint64_t elements = 0;
  std::uint64_t nbytes = 0;
};

struct Outline {
  std::vector<OutlineType> types;  // the one with the most bytes first
  std::vector<OutlineRow> rows;
  std::uint64_t omitted = 0;  // tensors of the rows at the end that exceed the limit
};

/// Returns the tree of the dotted parts of the names, in natural order: 2 before 10. A group with
/// one member is joined with it.
///
/// Three or more neighbours are one row if their names differ in numbers only, and the tensors
/// below them have the same names, types and shapes. Names are cut at the first 32 dots.
///
/// Safe for untrusted input. Thread safety: may be called from any threads.
[[nodiscard]] SAFETENSORS_API Outline outline_of(std::span<const OutlineTensor> tensors,
                                                 const OutlineLimits& limits);

/// Returns the number of elements of a shape, or the largest number if there are more.
[[nodiscard]] SAFETENSORS_API std::uint64_t element_count(
    std::span<const std::uint64_t> shape) noexcept;

}  // namespace safetensors::detail
