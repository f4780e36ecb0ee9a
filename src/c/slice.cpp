// Parts of tensors.
#include "c/slice.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "c/file.hpp"
#include "c/guard.hpp"
#include "safetensors/region.hpp"

using safetensors::ErrorCode;
using safetensors::fail;
using safetensors::Index;
using safetensors::IndexEntry;
using safetensors::Part;
using safetensors::RegionPart;
using safetensors::TensorInfo;
using safetensors::c::check_pointer;
using safetensors::c::guarded;
using safetensors::c::OneOrMany;
using safetensors::c::Taken;

namespace {

Index index_of(const safetensors_index& index) {
  if (index.count != 0 && index.kind != SAFETENSORS_LIST) {
    fail(ErrorCode::kInvalidArgument, "an index that is no list has a `count` that is not 0");
  }
  switch (index.kind) {
    case SAFETENSORS_ALL:
      return Index::all();
    case SAFETENSORS_ONE:
      return Index::at(index.start);
    case SAFETENSORS_RANGE:
      return Index::slice(index.start, index.stop, index.step == 0 ? 1 : index.step);
    case SAFETENSORS_ELLIPSIS:
      return Index::ellipsis();
    case SAFETENSORS_NEW_AXIS:
      return Index::new_axis();
    case SAFETENSORS_LIST:
      fail(ErrorCode::kInvalidArgument, "a list holds integers and ranges, and no list");
    default:
      fail(ErrorCode::kInvalidArgument,
           "no kind of index has number " + std::to_string(index.kind));
  }
}

bool is_list(const safetensors_index& index) noexcept { return index.kind == SAFETENSORS_LIST; }

std::vector<Index> expression_of(std::span<const safetensors_index> indices) {
  std::vector<Index> expression;
  expression.reserve(indices.size());
  for (const safetensors_index& index : indices) expression.push_back(index_of(index));
  return expression;
}

/// Returns an expression with lists. `select_part` checks what a list holds.
std::vector<IndexEntry> entries_of(std::span<const safetensors_index> indices) {
  std::vector<IndexEntry> entries;
  for (std::size_t i = 0; i < indices.size(); ++i) {
    if (!is_list(indices[i])) {
      entries.emplace_back(index_of(indices[i]));
      continue;
    }
    const std::size_t size = indices[i].count;
    if (size > indices.size() - i - 1) {
      fail(ErrorCode::kInvalidArgument, "a list of " + std::to_string(size) +
                                            " entries reaches past the last of the " +
                                            std::to_string(indices.size()) + " indices");
    }
    entries.emplace_back(expression_of(indices.subspan(i + 1, size)));
    i += size;
  }
  return entries;
}

}  // namespace

Taken safetensors::c::take(const safetensors_file& file, std::uint32_t number,
                           const TensorInfo& info, const safetensors_index* indices,
                           std::size_t count) {
  check_pointer(indices, count, "indices");
  const std::span<const safetensors_index> all(indices, count);
  const bool has_lists = std::ranges::any_of(all, is_list);
  try {
    if (has_lists) {
      RegionPart part = safetensors::select_part(info, entries_of(all));
      return {std::move(part.region.shape), OneOrMany(std::move(part.runs))};
    }
    std::array<Index, 4> few{};  // most expressions need no memory of the heap
    const bool are_few = all.size() <= few.size();
    if (are_few) std::ranges::transform(all, few.begin(), index_of);
    Part part = are_few ? safetensors::select_part(info, std::span(few).first(all.size()))
                        : safetensors::select_part(info, expression_of(all));
    return {std::move(part.selection.shape), OneOrMany(std::move(part.runs))};
  } catch (const Error& error) {
    const std::string* const path = file.path(number);
    if (path == nullptr) throw;
    throw error.with_context({}, file.file(number).path());
  }
}

std::int32_t safetensors_slice(const safetensors_file* file, const safetensors_tensor* tensor,
                               const safetensors_index* indices, std::size_t index_count,
                               std::uint64_t* shape, safetensors_tensor* part,
                               safetensors_error* error) {
  return guarded(error, [&] {
    check_pointer(file, 1, "file");
    check_pointer(part, 1, "part");
    const TensorInfo& info = safetensors::c::entry_of(*file, tensor);
    const Taken taken = safetensors::c::take(*file, tensor->file, info, indices, index_count);
    check_pointer(shape, taken.shape.size(), "shape");
    const std::span<const std::byte> whole = file->in_memory(tensor->file, info.begin, info.end);
    const std::uint64_t first = taken.runs.all().front().first;
    const bool together = taken.is_contiguous();
    safetensors_tensor result = *tensor;
    result.name = info.name.data();
    result.name_size = info.name.size();
    result.shape = shape;
    result.rank = taken.shape.size();
    result.nbytes = safetensors::nbytes_of(taken.runs.all());
    result.data = together && whole.data() != nullptr ? whole.data() + first : nullptr;
    // kScattered makes safetensors_read refuse a part whose bytes are not contiguous.
    result.begin = together ? info.begin + first : safetensors::c::kScattered;
    std::copy(taken.shape.begin(), taken.shape.end(), shape);
    *part = result;
  });
}
