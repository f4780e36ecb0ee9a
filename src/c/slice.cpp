// Parts of tensors.
#include "safetensors/slice.hpp"

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "c/file.hpp"
#include "c/guard.hpp"

using safetensors::ErrorCode;
using safetensors::fail;
using safetensors::Index;
using safetensors::Part;
using safetensors::TensorInfo;
using safetensors::c::check_pointer;
using safetensors::c::guarded;

namespace {

Index index_of(const safetensors_index& index) {
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
    default:
      fail(ErrorCode::kInvalidArgument,
           "no kind of index has number " + std::to_string(index.kind));
  }
}

std::vector<Index> expression_of(const safetensors_index* indices, std::size_t count) {
  check_pointer(indices, count, "indices");
  std::vector<Index> expression;
  expression.reserve(count);
  for (std::size_t i = 0; i < count; ++i) expression.push_back(index_of(indices[i]));
  return expression;
}

Part part_of(const safetensors_file& file, const TensorInfo& info,
             std::span<const Index> expression) {
  return file.open_file() ? file.open_file()->select_part(info, expression)
                          : safetensors::select_part(info, expression);
}

}  // namespace

std::int32_t safetensors_slice(const safetensors_file* file, const safetensors_tensor* tensor,
                               const safetensors_index* indices, std::size_t index_count,
                               std::uint64_t* shape, safetensors_tensor* part,
                               safetensors_error* error) {
  return guarded(error, [&] {
    check_pointer(file, 1, "file");
    check_pointer(part, 1, "part");
    const TensorInfo& info = safetensors::c::entry_of(*file, tensor);
    const Part taken = part_of(*file, info, expression_of(indices, index_count));
    check_pointer(shape, taken.selection.shape.size(), "shape");
    const std::span<const std::byte> whole = file->in_memory(info.begin, info.end);
    safetensors_tensor result = *tensor;
    result.name = info.name.data();
    result.name_size = info.name.size();
    result.shape = shape;
    result.rank = taken.selection.shape.size();
    result.nbytes = taken.runs.nbytes();
    const bool together = taken.runs.loops.empty();
    result.data = together && whole.data() != nullptr ? whole.data() + taken.runs.first : nullptr;
    // kScattered makes safetensors_read refuse a part whose bytes are not contiguous.
    result.begin = together ? info.begin + taken.runs.first : safetensors::c::kScattered;
    std::copy(taken.selection.shape.begin(), taken.selection.shape.end(), shape);
    *part = result;
  });
}

std::int32_t safetensors_read_slice(const safetensors_file* file, const safetensors_tensor* tensor,
                                    const safetensors_index* indices, std::size_t index_count,
                                    void* to, std::size_t room, safetensors_error* error) {
  return guarded(error, [&] {
    check_pointer(file, 1, "file");
    const TensorInfo& info = safetensors::c::entry_of(*file, tensor);
    const Part taken = part_of(*file, info, expression_of(indices, index_count));
    check_pointer(to, room, "to");
    safetensors::detail::check_size(info, taken.runs.nbytes(), room, &file->readable().path());
    file->readable().read(info, taken.runs, {static_cast<std::byte*>(to), room});
  });
}
