#include "safetensors/slice.hpp"

#include <algorithm>
#include <limits>
#include <string>

#include "base/checked.hpp"
#include "base/text.hpp"
#include "format/dtype_text.hpp"
#include "format/tensor_error.hpp"
#include "safetensors/error.hpp"

namespace safetensors {
namespace {

/// Returns an expression in upstream's notation, with `whole` colons for the ellipsis.
std::string shown(std::span<const Index> indices, std::size_t whole) {
  std::string text = "[";
  for (const Index& index : indices) {
    if (index.kind == Index::Kind::kEllipsis) {
      for (std::size_t i = 0; i < whole; ++i) text += text.size() > 1 ? ", :" : ":";
      continue;
    }
    if (text.size() > 1) text += ", ";
    switch (index.kind) {
      case Index::Kind::kInteger:
        text += std::to_string(index.integer);
        break;
      case Index::Kind::kEllipsis:
        break;
      case Index::Kind::kNewAxis:
        text += "None";
        break;
      case Index::Kind::kSlice:
        if (index.start) text += std::to_string(*index.start);
        text += ':';
        if (index.stop) text += std::to_string(*index.stop);
        if (index.step != 1) text += ":" + std::to_string(index.step);
    }
  }
  return text + "]";
}

/// Returns a bound of a slice on an axis of `size`, as Python's slice.indices does: negative bounds
/// count from the end, and both kinds are clipped to [0, size].
std::uint64_t clip(std::int64_t bound, std::uint64_t size) noexcept {
  if (bound >= 0) return std::min(static_cast<std::uint64_t>(bound), size);
  const std::uint64_t back = std::uint64_t{0} - static_cast<std::uint64_t>(bound);
  return back >= size ? 0 : size - back;
}

Selection::Axis select_slice(const Index& index, std::uint64_t size) noexcept {
  const std::uint64_t start = index.start ? clip(*index.start, size) : 0;
  const std::uint64_t stop = index.stop ? clip(*index.stop, size) : size;
  const auto step = static_cast<std::uint64_t>(index.step);
  const std::uint64_t count = start < stop ? (stop - start - 1) / step + 1 : 0;
  return {start, count, step};
}

}  // namespace

Selection resolve(std::span<const Index> indices, std::span<const std::uint64_t> shape) {
  std::size_t used = 0;  // axes that have an index
  std::size_t ellipses = 0;
  const auto refuse = [&](ErrorCode code, const std::string& why) {
    const std::size_t whole = shape.size() - std::min(used, shape.size());
    fail(code, "Error during slicing " + shown(indices, whole) + " with shape " + shown(shape) +
                   ": " + why);
  };
  for (const Index& index : indices) {
    used += index.kind == Index::Kind::kInteger || index.kind == Index::Kind::kSlice ? 1U : 0U;
    ellipses += index.kind == Index::Kind::kEllipsis ? 1U : 0U;
    if (index.kind == Index::Kind::kSlice && index.step < 1) {
      fail(ErrorCode::kInvalidSlice,
           "Slice step must be a positive integer, got " + std::to_string(index.step));
    }
  }
  if (ellipses > 1) {
    fail(ErrorCode::kTooManyIndices, "Only one ellipsis (...) is allowed in slice index");
  }
  if (used > shape.size()) {
    refuse(ErrorCode::kTooManyIndices, "more slicing indexes than dimensions in tensor");
  }

  Selection selection;
  selection.axes.reserve(shape.size());
  const auto take_whole = [&](std::size_t count) {
    for (; count > 0; --count) {
      const std::uint64_t size = shape[selection.axes.size()];
      selection.axes.push_back({0, size, 1});
      selection.shape.push_back(size);
    }
  };
  for (const Index& index : indices) {
    const std::size_t axis = selection.axes.size();
    switch (index.kind) {
      case Index::Kind::kNewAxis:
        selection.shape.push_back(1);
        break;
      case Index::Kind::kEllipsis:
        take_whole(shape.size() - used);
        break;
      case Index::Kind::kSlice:
        selection.axes.push_back(select_slice(index, shape[axis]));
        selection.shape.push_back(selection.axes.back().count);
        break;
      case Index::Kind::kInteger: {
        const bool negative = index.integer < 0;
        const std::uint64_t distance =
            negative ? std::uint64_t{0} - static_cast<std::uint64_t>(index.integer)
                     : static_cast<std::uint64_t>(index.integer);
        if (negative && distance > shape[axis]) {
          fail(ErrorCode::kIndexOutOfBounds, "Invalid index " + std::to_string(index.integer) +
                                                 " for dimension " + std::to_string(axis) +
                                                 " of size " + std::to_string(shape[axis]));
        }
        if (!negative && distance >= shape[axis]) {
          refuse(ErrorCode::kIndexOutOfBounds, "index " + std::to_string(index.integer) +
                                                   " out of bounds for tensor dimension #" +
                                                   std::to_string(axis) + " of size " +
                                                   std::to_string(shape[axis]));
        }
        selection.axes.push_back({negative ? shape[axis] - distance : distance, 1, 1});
        break;
      }
    }
  }
  take_whole(shape.size() - selection.axes.size());
  return selection;
}

std::uint64_t ByteRuns::run_count() const noexcept {
  std::uint64_t count = 1;
  for (const Loop& loop : loops) count *= loop.count;
  return count;
}

void ByteRuns::concatenate() noexcept {
  to_first = 0;
  std::uint64_t stride = run_nbytes;
  for (auto loop = loops.rbegin(); loop != loops.rend(); ++loop) {
    loop->to_stride = stride;
    stride *= loop->count;
  }
}

std::uint64_t nbytes_of(std::span<const ByteRuns> parts) noexcept {
  std::uint64_t nbytes = 0;
  for (const ByteRuns& runs : parts) nbytes += runs.nbytes();
  return nbytes;
}

ByteRuns byte_runs(const Selection& selection, std::span<const std::uint64_t> shape, Dtype dtype) {
  const std::uint64_t bits = bit_size(dtype);
  if (bits == 0) fail(ErrorCode::kUnsupportedDtype, no_dtype_text(dtype));
  ByteRuns runs;
  const auto is_empty = [](const Selection::Axis& axis) { return axis.count == 0; };
  if (std::any_of(selection.axes.begin(), selection.axes.end(), is_empty)) return runs;

  // In bits, as elements of some dtypes share bytes. The shape was validated against the file, so
  // no product overflows.
  //
  // From the innermost axis outwards: as long as everything further in is selected completely and
  // is one run, a contiguous range of the axis extends the run. The first other axis, and all
  // outside it, become loops.
  std::uint64_t first = 0;
  std::uint64_t run = bits;
  std::uint64_t stride = bits;  // from one element to the next along this axis
  bool whole = true;            // the axes further in are selected completely, as one run
  std::vector<ByteRuns::Loop> loops;
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    const Selection::Axis& taken = selection.axes[axis];
    first += taken.start * stride;
    if (whole && (taken.step == 1 || taken.count == 1)) {
      run *= taken.count;
    } else if (taken.count > 1) {
      const std::uint64_t step = taken.step * stride;
      // If this loop continues where the inner loop ends, both are one loop.
      if (!loops.empty() && loops.back().count * loops.back().stride == step) {
        loops.back().count *= taken.count;
      } else {
        loops.push_back({taken.count, step, 0});
      }
    }
    whole = whole && taken.count == shape[axis];
    stride *= shape[axis];
  }
  const auto is_split = [](std::uint64_t nbits) { return nbits % 8 != 0; };
  if (is_split(first) || is_split(run) ||
      std::any_of(loops.begin(), loops.end(),
                  [&](const ByteRuns::Loop& loop) { return is_split(loop.stride); })) {
    fail(ErrorCode::kMisalignedSlice,
         "The slice is slicing for subbytes dtypes, and the slice does not end up at a byte "
         "boundary, this is invalid.");
  }
  runs.first = first / 8;
  runs.run_nbytes = run / 8;
  for (auto loop = loops.rbegin(); loop != loops.rend(); ++loop) {
    runs.loops.push_back({loop->count, loop->stride / 8, 0});
  }
  runs.concatenate();
  return runs;
}

Part select_part(const TensorInfo& info, std::span<const Index> indices) {
  try {
    Part part;
    part.selection = resolve(indices, info.shape);
    part.runs = byte_runs(part.selection, info.shape, info.dtype);
    return part;
  } catch (const Error& error) {
    fail_tensor(error, info.name);
  }
}

}  // namespace safetensors
