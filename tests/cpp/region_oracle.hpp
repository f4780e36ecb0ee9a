// Regions element by element, as a reference for the library's.
#pragma once

#include "slice_oracle.hpp"

namespace test {

/// Bits that are copied together: where they begin in the tensor and in the destination.
struct Move {
  std::uint64_t to;
  std::uint64_t from;
  std::uint64_t nbits;
  auto operator<=>(const Move&) const = default;
};

/// Returns the moves in the order of the destination. Moves that continue each other on both sides
/// are one.
inline std::vector<Move> joined(std::vector<Move> moves) {
  std::sort(moves.begin(), moves.end());
  std::vector<Move> result;
  for (const Move& move : moves) {
    if (!result.empty() && result.back().to + result.back().nbits == move.to &&
        result.back().from + result.back().nbits == move.from) {
      result.back().nbits += move.nbits;
    } else {
      result.push_back(move);
    }
  }
  return result;
}

/// Returns the elements as moves. `strides` are in bits, one for each axis of the result.
inline std::vector<Move> moves_of(const Expected& expected, std::span<const std::uint64_t> strides,
                                  unsigned bits) {
  std::vector<Move> moves;
  for (std::size_t i = 0; i < expected.elements.size(); ++i) {
    std::uint64_t to = 0;
    std::uint64_t rest = i;
    for (std::size_t axis = expected.shape.size(); axis-- > 0;) {
      to += rest % expected.shape[axis] * strides[axis];
      rest /= expected.shape[axis];
    }
    moves.push_back({to, expected.elements[i] * bits, bits});
  }
  return joined(std::move(moves));
}

/// Returns the runs as moves, in their order.
inline std::vector<Move> moves_of(const ByteRuns& runs) {
  std::vector<Move> moves = {{8 * runs.to_first, 8 * runs.first, 8 * runs.run_nbytes}};
  for (const ByteRuns::Loop& loop : runs.loops) {
    std::vector<Move> next;
    for (const Move& move : moves) {
      for (std::uint64_t i = 0; i < loop.count; ++i) {
        next.push_back(
            {move.to + 8 * i * loop.to_stride, move.from + 8 * i * loop.stride, move.nbits});
      }
    }
    moves = std::move(next);
  }
  if (runs.run_nbytes == 0) moves.clear();
  return moves;
}

/// The memory that a region is copied to.
enum class Layout : std::uint8_t {
  kDense,    ///< C order, no strides are given
  kPadded,   ///< C order, a gap after each row of each axis
  kReversed  ///< the first axis is the fastest
};

/// Returns strides in bits for a destination. With a dtype of less than a byte, the last axis of
/// more than one element is dense, and rows of it begin on byte boundaries unless all is dense.
inline std::vector<std::uint64_t> strides_of(std::span<const std::uint64_t> shape, unsigned bits,
                                             Layout layout) {
  std::vector<std::size_t> order(shape.size());  // innermost first
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = shape.size() - 1 - i;
  if (layout == Layout::kReversed) std::reverse(order.begin(), order.end());
  if (bits % 8 != 0 && layout != Layout::kDense) {
    const auto last =
        std::find_if(shape.rbegin(), shape.rend(), [](std::uint64_t size) { return size != 1; });
    const auto axis = static_cast<std::size_t>(shape.rend() - last);
    if (axis > 0) {
      order.erase(std::find(order.begin(), order.end(), axis - 1));
      order.insert(order.begin(), axis - 1);
    }
  }
  std::vector<std::uint64_t> strides(shape.size());
  std::uint64_t stride = bits;
  for (const std::size_t axis : order) {
    strides[axis] = stride;
    stride *= shape[axis];
    if (layout == Layout::kPadded) stride += 64;
    if (layout != Layout::kDense) stride = (stride + 7) / 8 * 8;
  }
  return strides;
}

/// Returns how resolve and byte_runs of a region differ from the reference; empty if they do not.
template <typename OutcomeOf>
std::string region_difference(std::span<const IndexEntry> entries,
                              std::span<const std::uint64_t> shape, Dtype dtype, Layout layout,
                              const OutcomeOf& outcome_of) {
  const Expected expected = expect_elements(entries, shape);
  safetensors::Region region;
  const std::string outcome = outcome_of([&] { region = safetensors::resolve(entries, shape); });
  if (outcome != (expected.error.empty() ? "ok" : expected.error)) return "resolve: " + outcome;
  if (outcome != "ok") return {};
  if (region.shape != expected.shape) return "the result's shape";

  const unsigned bits = safetensors::bit_size(dtype);
  const std::vector<std::uint64_t> strides = strides_of(expected.shape, bits, layout);
  const std::vector<Move> wanted = moves_of(expected, strides, bits);
  const bool is_split = std::any_of(wanted.begin(), wanted.end(), [](const Move& move) {
    return move.to % 8 != 0 || move.from % 8 != 0 || move.nbits % 8 != 0;
  });
  std::vector<std::uint64_t> to_strides;
  if (layout != Layout::kDense) {
    for (const std::uint64_t stride : strides) to_strides.push_back(stride / 8);
  }
  std::vector<ByteRuns> all;
  const std::string runs_outcome =
      outcome_of([&] { all = safetensors::byte_runs(region, shape, dtype, to_strides); });
  if (runs_outcome != (is_split ? "kMisalignedSlice" : "ok")) return "byte_runs: " + runs_outcome;
  if (is_split) return {};
  std::vector<Move> moves;
  for (const ByteRuns& runs : all) {
    std::uint64_t end = 0;
    for (const Move& move : moves_of(runs)) {
      if (move.from < end) return "runs that do not ascend";
      end = move.from + move.nbits;
      moves.push_back(move);
    }
  }
  if (joined(std::move(moves)) != wanted) return "the runs";
  if (all.empty()) return "no runs";
  return {};
}

}  // namespace test
