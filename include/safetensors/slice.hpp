// Basic indexing, as NumPy defines it: integers, slices with a positive step, "..." and None.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "safetensors/dtype.hpp"
#include "safetensors/export.hpp"
#include "safetensors/header.hpp"

namespace safetensors {

/// One entry of an index expression such as `t[3, :, 1:9:2]`.
struct Index {
  enum class Kind : std::uint8_t { kInteger, kSlice, kEllipsis, kNewAxis };
  Kind kind = Kind::kSlice;
  std::int64_t integer = 0;           ///< kInteger: may be negative, counted from the end
  std::optional<std::int64_t> start;  ///< kSlice: as in Python, clipped to the axis
  std::optional<std::int64_t> stop;   ///< kSlice: as in Python, clipped to the axis
  std::int64_t step = 1;              ///< kSlice: at least 1

  [[nodiscard]] static Index at(std::int64_t i) { return {Kind::kInteger, i, {}, {}, 1}; }
  [[nodiscard]] static Index slice(std::optional<std::int64_t> start,
                                   std::optional<std::int64_t> stop, std::int64_t step = 1) {
    return {Kind::kSlice, 0, start, stop, step};
  }
  [[nodiscard]] static Index all() { return {}; }
  [[nodiscard]] static Index ellipsis() { return {Kind::kEllipsis, 0, {}, {}, 1}; }
  [[nodiscard]] static Index new_axis() { return {Kind::kNewAxis, 0, {}, {}, 1}; }
};

/// An index expression as an argument: `{Index::at(3), Index::slice(0, 8)}`, or an array, vector or
/// span of them. A view, valid as long as what it was made from: a braced list lives until the end
/// of the call.
class Indices : public std::span<const Index> {
 public:
  // NOLINTBEGIN(google-explicit-constructor): what it is there for
  Indices(std::initializer_list<Index> list) : std::span<const Index>(list.begin(), list.size()) {}
  template <typename Range>
    requires(std::is_constructible_v<std::span<const Index>, Range&&> &&
             !std::is_base_of_v<Indices, std::remove_cvref_t<Range>>)
  Indices(Range&& range) : std::span<const Index>(std::forward<Range>(range)) {}
  // NOLINTEND(google-explicit-constructor)
};

/// An index expression applied to a shape: what is taken from each axis, and the result's shape.
struct Selection {
  struct Axis {
    std::uint64_t start = 0;  ///< first element
    std::uint64_t count = 0;  ///< how many elements
    std::uint64_t step = 1;   ///< from one element to the next
  };
  std::vector<Axis> axes;            ///< one for each axis of the tensor
  std::vector<std::uint64_t> shape;  ///< of the result: integers dropped, new axes added
};

/// Resolves `indices` against `shape`. Axes without an index are taken whole.
/// Throws Error: kTooManyIndices (of them, or of ellipses), kIndexOutOfBounds, kInvalidSlice (step
/// below 1). The texts say the expression and the shape.
[[nodiscard]] SAFETENSORS_API Selection resolve(std::span<const Index> indices,
                                                std::span<const std::uint64_t> shape);

/// A selection as bytes: runs of equal length, at positions given by nested loops.
/// The runs in order, end to end, are the result in C order.
struct ByteRuns {
  struct Loop {
    std::uint64_t count = 0;   ///< iterations
    std::uint64_t stride = 0;  ///< bytes from one iteration to the next
  };
  std::uint64_t first = 0;       ///< position of the first run, from the tensor's first byte
  std::uint64_t run_nbytes = 0;  ///< length of each run
  std::vector<Loop> loops;       ///< outermost first; none when one run is all

  [[nodiscard]] std::uint64_t run_count() const noexcept;
  [[nodiscard]] std::uint64_t nbytes() const noexcept { return run_count() * run_nbytes; }
};

/// The bytes of `selection` in a C-ordered tensor of `shape` and `dtype`, with as few and as long
/// runs as there can be. Throws Error: kMisalignedSlice when a run of a sub-byte dtype does not
/// start and end on byte boundaries, kUnsupportedDtype when `dtype` is none of Dtype's enumerators.
[[nodiscard]] SAFETENSORS_API ByteRuns byte_runs(const Selection& selection,
                                                 std::span<const std::uint64_t> shape, Dtype dtype);

/// The part of a tensor that an index expression selects, as indices and as bytes.
struct Part {
  Selection selection;
  ByteRuns runs;
};

/// Returns the part of the tensor `info` that `indices` select.
///
/// Throws: Error, what resolve and byte_runs throw; the texts name the tensor.
/// Thread safety: may be called from many threads at once.
[[nodiscard]] SAFETENSORS_API Part select_part(const TensorInfo& info,
                                               std::span<const Index> indices);

}  // namespace safetensors
