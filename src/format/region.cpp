#include "safetensors/region.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "base/checked.hpp"
#include "base/text.hpp"
#include "format/dtype_text.hpp"
#include "format/tensor_error.hpp"
#include "safetensors/error.hpp"

namespace safetensors {
namespace {

constexpr std::size_t kMaxByteRuns = std::size_t{1} << 20;

[[noreturn]] void fail_overflow() {
  fail(ErrorCode::kOverflow, "the size of a tensor's part does not fit in 64 bits");
}

std::uint64_t add(std::uint64_t a, std::uint64_t b) {
  const auto sum = checked_add(a, b);
  if (!sum) fail_overflow();
  return *sum;
}

std::uint64_t multiply(std::uint64_t a, std::uint64_t b) {
  const auto product = checked_multiply(a, b);
  if (!product) fail_overflow();
  return *product;
}

/// Appends a range to those of an axis, or extends the last one by it.
void append(std::vector<Selection::Axis>& ranges, const Selection::Axis& more) {
  if (more.count == 0) return;
  if (!ranges.empty()) {
    Selection::Axis& last = ranges.back();
    const auto has_step = [](const Selection::Axis& range, std::uint64_t step) {
      return range.step == step || range.count == 1;
    };
    const std::uint64_t step = last.count > 1 ? last.step : more.count > 1 ? more.step : 1;
    if (has_step(more, step) && more.start > last.start &&
        more.start - last.start == last.count * step) {
      last.count += more.count;
      last.step = step;
      return;
    }
  }
  ranges.push_back({more.start, more.count, more.count == 1 ? 1 : more.step});
}

/// Ranges of an axis at equal distances, each of `count` elements:
///
///     [x.x.]....[x.x.]....[x.x.]....     first 0, ranges 3, distance 10, count 2, step 2
struct RangeLoop {
  std::uint64_t first = 0;     ///< element of the tensor
  std::uint64_t to_first = 0;  ///< element of the result
  std::uint64_t ranges = 1;
  std::uint64_t distance = 0;
  std::uint64_t count = 0;
  std::uint64_t step = 1;
};

std::vector<RangeLoop> range_loops(const std::vector<Selection::Axis>& ranges) {
  std::vector<RangeLoop> loops;
  std::uint64_t to = 0;
  for (const Selection::Axis& range : ranges) {
    if (!loops.empty()) {
      RangeLoop& last = loops.back();
      const std::uint64_t span = (last.count - 1) * last.step + 1;
      const std::uint64_t newest = last.first + (last.ranges - 1) * last.distance;
      if (range.count == last.count && (range.count == 1 || range.step == last.step) &&
          range.start > newest && range.start - newest >= span &&
          (last.ranges == 1 || range.start - newest == last.distance)) {
        last.distance = range.start - newest;
        ++last.ranges;
        to += range.count;
        continue;
      }
    }
    loops.push_back({range.start, to, 1, 0, range.count, range.step});
    to += range.count;
  }
  return loops;
}

/// One axis of a region. Strides are in bits.
struct RegionAxis {
  std::vector<RangeLoop> loops;
  std::uint64_t count = 0;
  std::uint64_t stride = 0;
  std::uint64_t to_stride = 0;
};

void check_range(const Selection::Axis& range, std::size_t axis, std::uint64_t size) {
  const bool is_inside =
      range.count == 0 ||
      (range.start < size &&
       (range.count == 1 ||
        (range.step != 0 && range.count - 1 <= (size - 1 - range.start) / range.step)));
  if (is_inside) return;
  fail(ErrorCode::kIndexOutOfBounds, counted(range.count, "element") + " from " +
                                         std::to_string(range.start) + " with step " +
                                         std::to_string(range.step) + " are not all in dimension " +
                                         std::to_string(axis) + " of size " + std::to_string(size));
}

/// Returns the axes with their ranges, which it checks.
std::vector<RegionAxis> axes_of(const Region& region, std::span<const std::uint64_t> shape) {
  if (region.axes.size() != shape.size()) {
    fail(ErrorCode::kInvalidArgument,
         counted(region.axes.size(), "list") + " of ranges for a tensor of shape " + shown(shape));
  }
  std::vector<RegionAxis> axes(shape.size());
  for (std::size_t i = 0; i < shape.size(); ++i) {
    std::vector<Selection::Axis> ranges;
    for (const Selection::Axis& range : region.axes[i]) {
      check_range(range, i, shape[i]);
      append(ranges, range);
      axes[i].count = add(axes[i].count, range.count);
    }
    axes[i].loops = range_loops(ranges);
  }
  return axes;
}

/// Gives the axes their strides in the tensor and the destination.
void set_strides(std::vector<RegionAxis>& axes, const Region& region,
                 std::span<const std::uint64_t> shape, std::uint64_t bits,
                 std::span<const std::uint64_t> to_strides) {
  std::uint64_t stride = bits;
  std::uint64_t to_stride = bits;
  // Axes of one element need no stride, and the others are the same in the tensor and the result.
  std::size_t to_axis = region.shape.size();
  for (std::size_t i = axes.size(); i-- > 0;) {
    RegionAxis& axis = axes[i];
    axis.stride = stride;
    axis.to_stride = to_stride;
    stride = multiply(stride, shape[i]);
    to_stride = multiply(to_stride, axis.count);
    if (axis.count == 1) continue;
    while (to_axis > 0 && region.shape[to_axis - 1] == 1) --to_axis;
    if (to_axis == 0 || region.shape[to_axis - 1] != axis.count) {
      fail(ErrorCode::kInvalidArgument, "a region's ranges do not give its shape " +
                                            shown(std::span<const std::uint64_t>(region.shape)));
    }
    --to_axis;
    const bool is_last = to_stride == bits * axis.count;
    if (!to_strides.empty() && (!is_last || bits % 8 == 0)) {
      axis.to_stride = multiply(to_strides[to_axis], 8);
    }
  }
}

/// The ranges of all axes in nested loops, which become a ByteRuns. All sizes are in bits.
class RunBuilder {
 public:
  explicit RunBuilder(std::uint64_t bits) : run_(bits) {}

  /// Adds a loop around those that were added before. Positions of the first iteration are given by
  /// add_first().
  void add_loop(std::uint64_t count, std::uint64_t stride, std::uint64_t to_stride) {
    if (count == 1) return;
    if (loops_.empty() && stride == run_ && to_stride == run_) {
      run_ *= count;
      return;
    }
    if (!loops_.empty()) {
      ByteRuns::Loop& inner = loops_.back();
      // If this loop continues where the inner loop ends, both are one loop.
      if (inner.count * inner.stride == stride && inner.count * inner.to_stride == to_stride) {
        inner.count *= count;
        return;
      }
    }
    loops_.push_back({count, stride, to_stride});
  }
  void add_first(std::uint64_t first, std::uint64_t to_first) {
    first_ += first;
    to_first_ += to_first;
  }

  [[nodiscard]] ByteRuns result() const {
    ByteRuns runs;
    runs.first = bytes_of(first_);
    runs.to_first = bytes_of(to_first_);
    runs.run_nbytes = bytes_of(run_);
    runs.loops.reserve(loops_.size());
    for (auto loop = loops_.rbegin(); loop != loops_.rend(); ++loop) {
      runs.loops.push_back({loop->count, bytes_of(loop->stride), bytes_of(loop->to_stride)});
    }
    return runs;
  }

 private:
  static std::uint64_t bytes_of(std::uint64_t bits) {
    if (bits % 8 != 0) {
      fail(ErrorCode::kMisalignedSlice,
           "a part of a tensor whose elements are smaller than a byte does not start and end on "
           "byte boundaries");
    }
    return bits / 8;
  }

  std::uint64_t first_ = 0;
  std::uint64_t to_first_ = 0;
  std::uint64_t run_;
  std::vector<ByteRuns::Loop> loops_;  // innermost first
};

std::size_t used_axes(std::span<const IndexEntry> entries) {
  return static_cast<std::size_t>(
      std::count_if(entries.begin(), entries.end(), [](const IndexEntry& entry) {
        const Index* const index = std::get_if<Index>(&entry);
        return index == nullptr || index->kind == Index::Kind::kInteger ||
               index->kind == Index::Kind::kSlice;
      }));
}

}  // namespace

Region resolve(std::span<const IndexEntry> entries, std::span<const std::uint64_t> shape) {
  // An expression without lists, then one for each item of each list.
  std::vector<Index> indices;
  for (const IndexEntry& entry : entries) {
    const Index* const index = std::get_if<Index>(&entry);
    indices.push_back(index != nullptr ? *index : Index::all());
  }
  Selection whole = resolve(std::span<const Index>(indices), shape);
  Region region;
  region.shape = std::move(whole.shape);
  for (const Selection::Axis& axis : whole.axes) region.axes.emplace_back(1, axis);

  std::size_t axis = 0;  // of the tensor
  std::size_t dim = 0;   // of the result
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (const Index* const index = std::get_if<Index>(&entries[i])) {
      const bool is_ellipsis = index->kind == Index::Kind::kEllipsis;
      const std::size_t rest = is_ellipsis ? shape.size() - used_axes(entries) : 1;
      if (index->kind != Index::Kind::kNewAxis) axis += rest;
      if (index->kind != Index::Kind::kInteger) dim += rest;
      continue;
    }
    std::vector<Selection::Axis>& ranges = region.axes[axis];
    ranges.clear();
    std::uint64_t count = 0;
    for (const Index& item : std::get<std::vector<Index>>(entries[i])) {
      if (item.kind != Index::Kind::kInteger && item.kind != Index::Kind::kSlice) {
        fail(ErrorCode::kInvalidArgument, "a list in an index holds integers and slices only");
      }
      indices[i] = item;
      const Selection::Axis range = resolve(std::span<const Index>(indices), shape).axes[axis];
      append(ranges, range);
      count = add(count, range.count);
    }
    indices[i] = Index::all();
    region.shape[dim++] = count;
    ++axis;
  }
  return region;
}

Region shard(std::span<const std::uint64_t> shape, std::int64_t dim, std::uint64_t rank,
             std::uint64_t world_size, std::span<const std::uint64_t> blocks) {
  const auto axes = static_cast<std::int64_t>(shape.size());
  if (dim < -axes || dim >= axes) {
    fail(ErrorCode::kIndexOutOfBounds,
         "no dimension " + std::to_string(dim) + " in shape " + shown(shape));
  }
  if (rank >= world_size) {
    fail(ErrorCode::kInvalidArgument,
         "no rank " + std::to_string(rank) + " of " + std::to_string(world_size));
  }
  const auto axis = static_cast<std::size_t>(dim < 0 ? dim + axes : dim);
  const std::uint64_t size = shape[axis];
  const std::span<const std::uint64_t> sizes =
      blocks.empty() ? std::span<const std::uint64_t>(&size, 1) : blocks;
  Region region;
  region.shape.assign(shape.begin(), shape.end());
  for (const std::uint64_t whole : shape) region.axes.push_back({{0, whole, 1}});
  region.axes[axis].clear();
  region.shape[axis] = 0;
  std::uint64_t begin = 0;
  for (const std::uint64_t block : sizes) {
    if (block > size - begin) {
      begin = size + 1;
      break;
    }
    const std::uint64_t share = block / world_size + (block % world_size != 0 ? 1 : 0);
    if (share != 0 && rank <= (block - 1) / share) {
      const std::uint64_t count = std::min(share, block - rank * share);
      append(region.axes[axis], {begin + rank * share, count, 1});
      region.shape[axis] += count;
    }
    begin += block;
  }
  if (begin != size) {
    fail(ErrorCode::kInvalidArgument, "blocks of " + shown(blocks) +
                                          " do not add up to dimension " + std::to_string(dim) +
                                          " of shape " + shown(shape));
  }
  return region;
}

std::vector<ByteRuns> byte_runs(const Region& region, std::span<const std::uint64_t> shape,
                                Dtype dtype, std::span<const std::uint64_t> to_strides) {
  const std::uint64_t bits = bit_size(dtype);
  if (bits == 0) fail(ErrorCode::kUnsupportedDtype, no_dtype_text(dtype));
  if (!to_strides.empty() && to_strides.size() != region.shape.size()) {
    fail(ErrorCode::kInvalidArgument, counted(to_strides.size(), "stride") +
                                          " for a result of shape " +
                                          shown(std::span<const std::uint64_t>(region.shape)));
  }
  std::vector<RegionAxis> axes = axes_of(region, shape);
  const auto is_empty = [](const RegionAxis& axis) { return axis.count == 0; };
  if (std::any_of(axes.begin(), axes.end(), is_empty)) return {ByteRuns{}};
  set_strides(axes, region, shape, bits, to_strides);

  std::size_t count = 1;
  std::uint64_t to_end = bits;  // of the destination
  for (const RegionAxis& axis : axes) {
    to_end = add(to_end, multiply(axis.count - 1, axis.to_stride));
    if (axis.loops.size() > kMaxByteRuns / count) {
      fail(ErrorCode::kInvalidArgument, "a part of a tensor takes more than " +
                                            grouped(kMaxByteRuns) + " combinations of ranges");
    }
    count *= axis.loops.size();
  }
  // Each combination of one RangeLoop of each axis, the last axis fastest.
  std::vector<ByteRuns> all;
  all.reserve(count);
  std::vector<std::size_t> at(axes.size());
  for (; count > 0; --count) {
    RunBuilder runs(bits);
    for (std::size_t i = axes.size(); i-- > 0;) {
      const RegionAxis& axis = axes[i];
      const RangeLoop& loop = axis.loops[at[i]];
      runs.add_loop(loop.count, loop.step * axis.stride, axis.to_stride);
      runs.add_loop(loop.ranges, loop.distance * axis.stride, loop.count * axis.to_stride);
      runs.add_first(loop.first * axis.stride, loop.to_first * axis.to_stride);
    }
    all.push_back(runs.result());
    for (std::size_t i = axes.size(); i-- > 0;) {
      if (++at[i] < axes[i].loops.size()) break;
      at[i] = 0;
    }
  }
  return all;
}

RegionPart select_part(const TensorInfo& info, std::span<const IndexEntry> entries) {
  try {
    RegionPart part;
    part.region = resolve(entries, info.shape);
    part.runs = byte_runs(part.region, info.shape, info.dtype);
    return part;
  } catch (const Error& error) {
    fail_tensor(error, info.name);
  }
}

}  // namespace safetensors
