// Indexing element by element, as a reference for the library's.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "safetensors/region.hpp"

namespace test {

using safetensors::ByteRuns;
using safetensors::Dtype;
using safetensors::Index;
using safetensors::IndexEntry;
using safetensors::Selection;

/// Returns the positions that a slice selects on an axis, as Python's range(*slice.indices(size)).
inline std::vector<std::uint64_t> positions_of(const Index& slice, std::int64_t size) {
  const auto bound = [&](std::optional<std::int64_t> given, std::int64_t otherwise) {
    if (!given) return otherwise;
    const std::int64_t from_start = *given < 0 ? *given + size : *given;
    return std::clamp<std::int64_t>(from_start, 0, size);
  };
  std::vector<std::uint64_t> positions;
  const std::int64_t stop = bound(slice.stop, size);
  for (std::int64_t at = bound(slice.start, 0); at < stop; at += slice.step) {
    positions.push_back(static_cast<std::uint64_t>(at));
    if (slice.step >= stop - at) break;
  }
  return positions;
}

/// The expected result of indexing: an error's name, or elements and shape.
struct Expected {
  std::string error;
  std::vector<std::uint64_t> shape;
  std::vector<std::uint64_t> elements;  // their numbers in C order
};

/// Returns the positions that an integer or a slice selects on an axis; nothing if it is out of
/// bounds.
inline std::optional<std::vector<std::uint64_t>> positions_or_none(const Index& index,
                                                                   std::int64_t size) {
  if (index.kind != Index::Kind::kInteger) return positions_of(index, size);
  if (index.integer >= size || index.integer < -size) return std::nullopt;
  return {{static_cast<std::uint64_t>(index.integer < 0 ? index.integer + size : index.integer)}};
}

inline Expected expect_elements(std::span<const IndexEntry> entries,
                                std::span<const std::uint64_t> shape) {
  using Kind = Index::Kind;
  using Items = std::vector<Index>;
  const auto is_kind = [](const IndexEntry& entry, Kind kind) {
    const Index* const index = std::get_if<Index>(&entry);
    return index != nullptr && index->kind == kind;
  };
  std::size_t used = 0;
  std::size_t ellipses = 0;
  for (const IndexEntry& entry : entries) {
    if (is_kind(entry, Kind::kSlice) && std::get<Index>(entry).step < 1) {
      return {"kInvalidSlice", {}, {}};
    }
    ellipses += is_kind(entry, Kind::kEllipsis) ? 1U : 0U;
    used += is_kind(entry, Kind::kEllipsis) || is_kind(entry, Kind::kNewAxis) ? 0U : 1U;
  }
  if (ellipses > 1 || used > shape.size()) return {"kTooManyIndices", {}, {}};

  std::vector<IndexEntry> whole(entries.begin(), entries.end());
  const std::vector<IndexEntry> rest(shape.size() - used, Index::all());
  auto at = std::find_if(whole.begin(), whole.end(),
                         [&](const IndexEntry& entry) { return is_kind(entry, Kind::kEllipsis); });
  if (at != whole.end()) at = whole.erase(at);
  whole.insert(at, rest.begin(), rest.end());

  // An error outside of lists is found before those in lists.
  for (const bool in_lists : {false, true}) {
    std::size_t axis = 0;
    for (const IndexEntry& entry : whole) {
      if (is_kind(entry, Kind::kNewAxis)) continue;
      const auto size = static_cast<std::int64_t>(shape[axis++]);
      const Items* const list = std::get_if<Items>(&entry);
      if ((list != nullptr) != in_lists) continue;
      for (const Index& item : list != nullptr ? *list : Items{std::get<Index>(entry)}) {
        if (item.kind == Kind::kEllipsis || item.kind == Kind::kNewAxis) {
          return {"kInvalidArgument", {}, {}};
        }
        if (item.kind == Kind::kSlice && item.step < 1) return {"kInvalidSlice", {}, {}};
        if (!positions_or_none(item, size)) return {"kIndexOutOfBounds", {}, {}};
      }
    }
  }

  Expected expected;
  expected.elements = {0};
  std::size_t axis = 0;
  for (const IndexEntry& entry : whole) {
    if (is_kind(entry, Kind::kNewAxis)) {
      expected.shape.push_back(1);
      continue;
    }
    const auto size = static_cast<std::int64_t>(shape[axis++]);
    const Items* const list = std::get_if<Items>(&entry);
    std::vector<std::uint64_t> positions;
    for (const Index& item : list != nullptr ? *list : Items{std::get<Index>(entry)}) {
      const auto more = *positions_or_none(item, size);
      positions.insert(positions.end(), more.begin(), more.end());
    }
    if (!is_kind(entry, Kind::kInteger)) expected.shape.push_back(positions.size());
    std::vector<std::uint64_t> next;
    for (const std::uint64_t element : expected.elements) {
      for (const std::uint64_t position : positions) {
        next.push_back(element * static_cast<std::uint64_t>(size) + position);
      }
    }
    expected.elements = std::move(next);
  }
  return expected;
}

inline Expected expect_elements(std::span<const Index> indices,
                                std::span<const std::uint64_t> shape) {
  return expect_elements(std::vector<IndexEntry>(indices.begin(), indices.end()), shape);
}

/// A contiguous range of a tensor, in bits.
struct Stretch {
  std::uint64_t begin;
  std::uint64_t end;
  bool operator==(const Stretch&) const = default;
};

/// Adds a range, and joins it with the last one if it begins where that ends.
inline void append(std::vector<Stretch>& stretches, Stretch more) {
  if (!stretches.empty() && stretches.back().end == more.begin) {
    stretches.back().end = more.end;
  } else {
    stretches.push_back(more);
  }
}

/// Returns the elements as joined ranges of bits.
inline std::vector<Stretch> stretches_of(std::span<const std::uint64_t> elements, unsigned bits) {
  std::vector<Stretch> stretches;
  for (const std::uint64_t element : elements) {
    append(stretches, {element * bits, (element + 1) * bits});
  }
  return stretches;
}

/// Returns where each run begins, in bytes.
inline std::vector<std::uint64_t> begins_of(const ByteRuns& runs) {
  std::vector<std::uint64_t> begins = {runs.first};
  for (const ByteRuns::Loop& loop : runs.loops) {
    std::vector<std::uint64_t> next;
    for (const std::uint64_t begin : begins) {
      for (std::uint64_t i = 0; i < loop.count; ++i) next.push_back(begin + i * loop.stride);
    }
    begins = std::move(next);
  }
  return begins;
}

/// Returns the runs as joined ranges of bits.
inline std::vector<Stretch> stretches_of(const ByteRuns& runs) {
  std::vector<Stretch> stretches;
  for (const std::uint64_t begin : begins_of(runs)) {
    if (runs.run_nbytes != 0) append(stretches, {8 * begin, 8 * (begin + runs.run_nbytes)});
  }
  return stretches;
}

/// Returns how resolve and byte_runs differ from the reference; empty if they do not.
template <typename OutcomeOf>
std::string slice_difference(std::span<const Index> indices, std::span<const std::uint64_t> shape,
                             Dtype dtype, const OutcomeOf& outcome_of) {
  const Expected expected = expect_elements(indices, shape);
  Selection selection;
  const std::string outcome = outcome_of([&] { selection = safetensors::resolve(indices, shape); });
  if (outcome != (expected.error.empty() ? "ok" : expected.error)) return "resolve: " + outcome;
  if (outcome != "ok") return {};
  if (selection.shape != expected.shape) return "the result's shape";
  if (selection.axes.size() != shape.size()) return "the number of axes";

  const std::vector<Stretch> wanted = stretches_of(expected.elements, safetensors::bit_size(dtype));
  const bool split = std::any_of(wanted.begin(), wanted.end(), [](const Stretch& stretch) {
    return stretch.begin % 8 != 0 || stretch.end % 8 != 0;
  });
  ByteRuns runs;
  const std::string runs_outcome =
      outcome_of([&] { runs = safetensors::byte_runs(selection, shape, dtype); });
  if (runs_outcome != (split ? "kMisalignedSlice" : "ok")) return "byte_runs: " + runs_outcome;
  if (split) return {};
  if (stretches_of(runs) != wanted) return "the runs";
  if (runs.nbytes() * 8 != expected.elements.size() * safetensors::bit_size(dtype)) {
    return "the number of bytes";
  }
  if (wanted.size() == 1 && !runs.loops.empty()) return "loops around a single run";
  return {};
}

}  // namespace test
