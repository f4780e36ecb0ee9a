// Several ranges on each axis of a tensor, such as one rank's share of fused QKV weights.
#pragma once

#include <cstdint>
#include <span>
#include <variant>
#include <vector>

#include "safetensors/slice.hpp"

namespace safetensors {

/// The elements that lists of ranges, one list for each axis, select. On each axis the ranges
/// follow one another in the result. They may repeat or overlap.
struct Region {
  std::vector<std::vector<Selection::Axis>> axes;  ///< one list for each axis of the tensor
  std::vector<std::uint64_t> shape;  ///< of the result: integers dropped, new axes added
};

/// One entry of an index expression with lists, such as `t[[0:512, 4096:4224], 3]`. A list holds
/// integers and slices of one axis. An integer in a list is a range of one element: unlike an
/// integer by itself, it keeps the axis.
using IndexEntry = std::variant<Index, std::vector<Index>>;

/// Resolves `entries` against `shape`. Axes without an entry are selected completely. Ranges that
/// continue each other become one.
///
/// Throws: Error kTooManyIndices, kIndexOutOfBounds or kInvalidSlice as resolve of slice.hpp; its
///   text shows the expression with one item of each list. kInvalidArgument if a list holds
///   something other than integers and slices.
[[nodiscard]] SAFETENSORS_API Region resolve(std::span<const IndexEntry> entries,
                                             std::span<const std::uint64_t> shape);

/// Returns the region that `torch.chunk(world_size, dim)` gives `rank`: the first ranks get
/// ceil(size / world_size) elements each, the last ones fewer or none.
///
/// `dim` may be negative, and then counts from the end. `blocks` are the sizes of tensors that are
/// fused along `dim`, such as Q, K and V. Each block is cut by itself, and the shares of a rank lie
/// side by side. Rank 1 of 2, with blocks of 4, 2 and 2:
///
///     axis     0  1  2  3  4  5  6  7
///     block    [ Q       ] [ K ] [ V ]
///     taken          2  3     5     7     ranges 2:4, 5:6, 7:8
///
/// Throws: Error kIndexOutOfBounds if there is no such axis; kInvalidArgument if `rank` is not
/// below
///   `world_size`, or the blocks do not add up to the axis.
[[nodiscard]] SAFETENSORS_API Region shard(std::span<const std::uint64_t> shape, std::int64_t dim,
                                           std::uint64_t rank, std::uint64_t world_size,
                                           std::span<const std::uint64_t> blocks = {});

/// Returns the bytes of `region` in a C-ordered tensor of `shape` and `dtype`, and where they go in
/// the destination. Runs are as long as both sides allow. A region without elements has one
/// ByteRuns without bytes. In each ByteRuns, the runs ascend in the tensor and do not overlap.
///
/// `to_strides` are the distances in bytes between neighbours of each axis of the result in the
/// destination; if empty, the destination is dense in C order. With a dtype of less than a byte,
/// the last axis of more than one element is dense, and its stride is ignored.
///
/// `t[[0:2, 4:6], :]` of a (6, 8) tensor of bytes, to a destination with strides {32, 1}, has one
/// ByteRuns with two loops:
///
///     tensor         0 [-----] 8 [-----] ...   32 [-----] 40 [-----]
///     destination    0 [-----] 32 [-----]      64 [-----] 96 [-----]
///
/// Throws: Error kIndexOutOfBounds if the region reaches past `shape`; kMisalignedSlice if a run of
///   a sub-byte dtype does not start and end on byte boundaries, in the tensor or the destination;
///   kInvalidArgument if region.axes, region.shape or `to_strides` does not fit, or the result
///   takes more than 2^20 ByteRuns; kOverflow if a size does not fit in 64 bits;
///   kUnsupportedDtype if `dtype` is none of Dtype's enumerators.
[[nodiscard]] SAFETENSORS_API std::vector<ByteRuns> byte_runs(
    const Region& region, std::span<const std::uint64_t> shape, Dtype dtype,
    std::span<const std::uint64_t> to_strides = {});

/// The part of a tensor that an index expression with lists selects, as elements and as bytes.
struct RegionPart {
  Region region;
  std::vector<ByteRuns> runs;

  /// Returns the size of the part.
  [[nodiscard]] std::uint64_t nbytes() const noexcept { return nbytes_of(runs); }
};

/// Returns the part of the tensor `info` that `entries` select, for a dense destination.
///
/// Throws: what resolve and byte_runs throw. The texts name the tensor.
[[nodiscard]] SAFETENSORS_API RegionPart select_part(const TensorInfo& info,
                                                     std::span<const IndexEntry> entries);

}  // namespace safetensors
