// Basic indexing as in NumPy: integers, slices with a positive step, "..." and None.
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
  std::int64_t integer = 0;           ///< kInteger: a negative one counts from the end
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
/// span of Index.
///
/// Lifetime: a view of the object that it was made from. A braced list lives until the end of the
///   full expression, which includes the call.
class Indices : public std::span<const Index> {
 public:
  // NOLINTBEGIN(google-explicit-constructor): converting is its purpose
  Indices(std::initializer_list<Index> list) : std::span<const Index>(list.begin(), list.size()) {}
  template <typename Range>
    requires(std::is_constructible_v<std::span<const Index>, Range&&> &&
             !std::is_base_of_v<Indices, std::remove_cvref_t<Range>>)
  Indices(Range&& range) : std::span<const Index>(std::forward<Range>(range)) {}
  // NOLINTEND(google-explicit-constructor)
};

/// An index expression applied to a shape: which elements of each axis, and the result's shape.
struct Selection {
  struct Axis {
    std::uint64_t start = 0;  ///< first element
    std::uint64_t count = 0;  ///< number of elements
    std::uint64_t step = 1;   ///< from one element to the next
  };
  std::vector<Axis> axes;            ///< one for each axis of the tensor
  std::vector<std::uint64_t> shape;  ///< of the result: integers dropped, new axes added
};

/// Resolves `indices` against `shape`. Axes without an index are selected completely.
///
/// Throws: Error kTooManyIndices (of indices, or of ellipses), kIndexOutOfBounds, or kInvalidSlice
///   (a step below 1). The texts contain the expression and the shape.
[[nodiscard]] SAFETENSORS_API Selection resolve(std::span<const Index> indices,
                                                std::span<const std::uint64_t> shape);

/// A part of a tensor as bytes: runs of equal length, at positions given by nested loops, and where
/// each run goes.
///
/// `t[0:4:2, :, 1:3]` of a (4, 3, 8) tensor of bytes has run_nbytes = 2 and first = 1:
///
///     byte    0  1  2  3 ...   8  9 10 ...  16 17 18 ...  48 49 50 ...
///                [--]             [--]         [--]          [--]       ...
///     loops[1]:  3 times, stride 8     loops[0]: 2 times, stride 48
///
///     position of run (i, j)     = first    + i * loops[0].stride    + j * loops[1].stride
///     destination of run (i, j)  = to_first + i * loops[0].to_stride + j * loops[1].to_stride
struct ByteRuns {
  struct Loop {
    std::uint64_t count = 0;      ///< iterations
    std::uint64_t stride = 0;     ///< bytes from one iteration to the next, in the tensor
    std::uint64_t to_stride = 0;  ///< the same at the destination
  };
  std::uint64_t first = 0;       ///< position of the first run, from the tensor's first byte
  std::uint64_t run_nbytes = 0;  ///< length of each run
  std::vector<Loop> loops;       ///< outermost first; none if there is one run
  std::uint64_t to_first = 0;  ///< destination of the first run, from the destination's first byte

  [[nodiscard]] std::uint64_t run_count() const noexcept;
  [[nodiscard]] std::uint64_t nbytes() const noexcept { return run_count() * run_nbytes; }
  /// Sets the destinations so that the runs follow each other in order, the first at 0.
  void concatenate() noexcept;
};

/// Returns the sum of the runs' bytes.
[[nodiscard]] SAFETENSORS_API std::uint64_t nbytes_of(std::span<const ByteRuns> parts) noexcept;

/// Returns the bytes of `selection` in a C-ordered tensor of `shape` and `dtype`, in the fewest and
/// longest runs. Concatenated in order, as their destinations say, they are the result in C order.
///
/// Throws: Error kMisalignedSlice if a run of a sub-byte dtype does not start and end on byte
///   boundaries; kUnsupportedDtype if `dtype` is none of Dtype's enumerators.
[[nodiscard]] SAFETENSORS_API ByteRuns byte_runs(const Selection& selection,
                                                 std::span<const std::uint64_t> shape, Dtype dtype);

/// The part of a tensor that an index expression selects, as elements and as bytes.
struct Part {
  Selection selection;
  ByteRuns runs;
};

/// Returns the part of the tensor `info` that `indices` select.
///
/// Throws: what resolve and byte_runs throw. The texts name the tensor.
[[nodiscard]] SAFETENSORS_API Part select_part(const TensorInfo& info,
                                               std::span<const Index> indices);

}  // namespace safetensors
