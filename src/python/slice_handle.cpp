#include "slice_handle.hpp"

#include <algorithm>

#include "errors.hpp"
#include "gil.hpp"
#include "python_index.hpp"
#include "to_torch.hpp"

namespace safetensors::python {
namespace {

constexpr std::uint64_t kRowsNbytes = std::uint64_t{4} << 20;  // read at once by an iteration

py::object get_item_of(const py::object& array, py::handle index) {
  auto item = py::reinterpret_steal<py::object>(PyObject_GetItem(array.ptr(), index.ptr()));
  if (!item) throw py::error_already_set();
  return item;
}

/// Returns a view of `array` with the marked axes reversed.
py::object reverse_axes(const py::object& array, const std::vector<bool>& reversed) {
  py::tuple index(reversed.size());
  for (std::size_t axis = 0; axis < reversed.size(); ++axis) {
    index[axis] = py::slice(py::none(), py::none(), py::int_(reversed[axis] ? -1 : 1));
  }
  return get_item_of(array, index);
}

/// Indexes a NumPy array. NumPy returns a scalar if all indices are integers; upstream returns an
/// array, which an additional "..." gives.
py::object index_numpy(const py::object& array, py::handle index) {
  py::object item = get_item_of(array, index);
  // Only arrays have this attribute. Reading it from the array would make an object of ctypes.
  if (py::hasattr(py::type::of(item), "ctypes")) return item;
  const py::object ellipsis = py::reinterpret_borrow<py::object>(Py_Ellipsis);
  const py::tuple items = py::isinstance<py::tuple>(index)
                              ? py::reinterpret_borrow<py::tuple>(index)
                              : py::make_tuple(index);
  return get_item_of(array, items + py::make_tuple(ellipsis));
}

}  // namespace

py::object SliceHandle::whole() const { return file_->to_array(file_->view(*info_)); }

/// Lets the framework index the whole tensor. With a mapped file, this reads only the pages used.
py::object SliceHandle::index_whole(py::handle index) const {
  const py::object array = whole();
  if (file_->framework() == Framework::kTorch) return get_item_of(array, index);
  try {
    return index_numpy(array, index);
  } catch (py::error_already_set& error) {
    const bool is_value_error = error.matches(PyExc_ValueError);  // such as a step of 0
    if (!is_value_error && !error.matches(PyExc_IndexError)) throw;
    // Raises upstream's error if the index is one that upstream supports.
    (void)select_part(file_->file(), *info_, index, true);
    raise_both(
        is_value_error ? PyExc_ValueError : PyExc_IndexError,
        tensor_error(ErrorCode::kInvalidArgument,
                     "Error during slicing: " + py::cast<std::string>(py::str(error.value())),
                     file_->origin_of(*info_)));
  }
}

py::object SliceHandle::read_part(std::span<const ByteRuns> runs,
                                  std::span<const std::uint64_t> shape) const {
  auto buffer = std::make_shared<const Buffer>(static_cast<std::size_t>(nbytes_of(runs)));
  {
    const Interrupt interrupt = file_->interrupt();
    const GilRelease release;
    file_->file().read(*info_, runs, buffer->bytes(), interrupt);
  }
  const std::span<std::byte> bytes = buffer->bytes();
  return file_->buffer_to_array(
      TensorView(info_->name, info_->dtype, shape, bytes, nullptr, std::move(buffer)));
}

/// Returns the CUDA device that the engine loads parts to; nothing if there is none.
std::optional<LoadTarget> SliceHandle::engine_target() const {
  const bool is_on_device = file_->device().kind != DeviceSpec::Kind::kCpu;
  if (file_->framework() != Framework::kTorch || !is_on_device) return std::nullopt;
  LoadTarget target = load_target_of(file_->device());
  if (target.mode != TransferMode::kCuda) return std::nullopt;
  return target;
}

/// Loads only the part's bytes to a CUDA device.
py::object SliceHandle::load_part(std::vector<ByteRuns> runs, std::span<const std::uint64_t> shape,
                                  const LoadTarget& target) const {
  Request request = make_request(file_, *info_, std::move(runs), shape);
  load_requests({&request, 1}, target);
  return std::move(request.tensor);
}

py::object SliceHandle::get_region(py::handle index) const {
  auto [region, runs] = select_region(file_->file(), *info_, index);
  if (const auto target = engine_target()) return load_part(std::move(runs), region.shape, *target);
  return file_->to_framework(read_part(runs, region.shape), info_->dtype, info_->name);
}

std::uint64_t SliceHandle::length(const char* what) const {
  if (info_->shape.empty()) {
    const std::string name(info_->name);
    raise_both(PyExc_TypeError, Error(ErrorCode::kInvalidArgument,
                                      std::string(what) + " a 0-d tensor: `" + name + "`",
                                      {.path = file_->file().path(), .subject = name}));
  }
  const bool is_packed = info_->dtype == Dtype::kF4 && file_->framework() == Framework::kTorch;
  if (!is_packed) return info_->shape[0];
  return static_cast<std::uint64_t>(
      torch_shape(info_->dtype, info_->shape, file_->origin_of(*info_))[0]);
}

SliceHandle::Rows SliceHandle::rows_from(std::uint64_t begin) const {
  const std::uint64_t count = length("iteration over");
  const bool is_f4 = info_->dtype == Dtype::kF4;
  const auto target = is_f4 ? std::nullopt : engine_target();
  if (!target && (is_f4 || file_->is_mapped())) return {0, count, whole(), true};
  const std::uint64_t row_nbytes = std::max<std::uint64_t>(info_->nbytes() / count, 1);
  const std::uint64_t end =
      begin + std::min(count - begin, std::max<std::uint64_t>(kRowsNbytes / row_nbytes, 1));
  const py::slice index(to_int(begin), to_int(end), py::none());
  auto [selection, runs] = select_part(file_->file(), *info_, index, false).value().part;
  py::object array = target ? load_part({std::move(runs)}, selection.shape, *target)
                            : read_part({&runs, 1}, selection.shape);
  return {begin, end, std::move(array), end - begin == 1};
}

/// Copies a row of several that were read at once, because a view would keep the others, too.
py::object SliceHandle::row_of(const Rows& rows, std::uint64_t row) const {
  const bool is_torch = file_->framework() == Framework::kTorch;
  const py::object index = to_int(row - rows.begin);
  py::object item = is_torch ? get_item_of(rows.array, index) : index_numpy(rows.array, index);
  if (!rows.is_shared) item = item.attr(is_torch ? "clone" : "copy")();
  return file_->to_framework(std::move(item), info_->dtype, info_->name);
}

std::shared_ptr<const SliceHandle::Rows> SliceRows::rows_with(std::uint64_t row) {
  std::shared_ptr<const Rows> rows;
  {
    const std::scoped_lock lock(mutex_);
    rows = rows_;
  }
  if (rows == nullptr || row < rows->begin || row >= rows->end) {
    rows = std::make_shared<const Rows>(slice_.rows_from(row));
    std::shared_ptr<const Rows> old = rows;
    const std::scoped_lock lock(mutex_);
    rows_.swap(old);
  }
  return rows;
}

py::object SliceRows::next() {
  const std::uint64_t row = next_.fetch_add(1);
  if (row >= length_) {
    next_ = length_;
    throw py::stop_iteration();
  }
  try {
    return slice_.row_of(*rows_with(row), row);
  } catch (...) {
    next_ = length_;
    throw;
  }
}

py::object SliceHandle::get_item(py::handle given) const {
  const py::object index = resolve_part(given, info_->shape);
  if (has_intervals(index)) return get_region(index);
  // Elements of F4 share bytes, and each framework has its own layout for them.
  const bool is_f4 = info_->dtype == Dtype::kF4;
  const auto target = is_f4 ? std::nullopt : engine_target();
  if (!target && (is_f4 || file_->is_mapped())) {
    return file_->to_framework(index_whole(index), info_->dtype, info_->name);
  }
  const bool may_reverse = file_->framework() != Framework::kTorch;  // torch rejects negative steps
  auto selected = select_part(file_->file(), *info_, index, may_reverse);
  if (!selected) return file_->to_framework(index_whole(index), info_->dtype, info_->name);
  auto& [selection, runs] = selected->part;
  if (target) return load_part({std::move(runs)}, selection.shape, *target);
  py::object array = read_part({&runs, 1}, selection.shape);
  if (selected->any_reversed) array = reverse_axes(array, selected->reversed);
  return file_->to_framework(std::move(array), info_->dtype, info_->name);
}

}  // namespace safetensors::python
