#include "python_index.hpp"

#include <utility>

#include "errors.hpp"

namespace safetensors::python {
namespace {

/// Whether the item indexes as an integer: an int, a NumPy integer, an array or tensor without
/// dimensions. A bool does not: it is a mask. Nor does an array of one element, although it
/// converts.
bool is_integer(py::handle item) {
  if (PyBool_Check(item.ptr())) return false;
  if (PyLong_Check(item.ptr())) return true;
  if (PyIndex_Check(item.ptr()) == 0) return false;
  const py::object shape = py::getattr(item, "shape", py::none());
  if (shape.is_none()) return true;
  const py::object dtype = py::getattr(item, "dtype", py::none());
  return py::len(shape) == 0 &&
         py::cast<std::string>(py::str(dtype)).find("bool") == std::string::npos;
}

std::int64_t integer_of(py::handle item, std::size_t position, const TensorInfo& info) {
  const auto number = py::reinterpret_steal<py::object>(PyNumber_Index(item.ptr()));
  if (!number) throw py::error_already_set();
  const long long value = PyLong_AsLongLong(number.ptr());
  if (value == -1 && PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    throw tensor_error(ErrorCode::kIndexOutOfBounds,
                       "Unsupported slice index at position " + std::to_string(position) +
                           ": expected slice, int, or ellipsis: the int is too large",
                       {info.name});
  }
  return value;
}

struct SliceBounds {
  Index index;
  bool reversed;
};

SliceBounds slice_of(py::handle item, std::uint64_t size, bool may_reverse) {
  Py_ssize_t start = 0;
  Py_ssize_t stop = 0;
  Py_ssize_t step = 0;
  if (PySlice_Unpack(item.ptr(), &start, &stop, &step) != 0) {
    if (!PyErr_ExceptionMatches(PyExc_ValueError)) throw py::error_already_set();
    PyErr_Clear();
    return {Index::slice(0, 0, 0), false};  // which the core refuses, and names the tensor
  }
  if (step > 0 || !may_reverse) {
    // PySlice_Unpack clips bounds to 64 bits. That loses nothing: the axis is shorter.
    const auto* const slice = reinterpret_cast<const PySliceObject*>(item.ptr());
    Index index = Index::slice(start, stop, step);
    if (slice->start == Py_None) index.start.reset();
    if (slice->stop == Py_None) index.stop.reset();
    return {index, false};
  }
  const Py_ssize_t count =
      PySlice_AdjustIndices(static_cast<Py_ssize_t>(size), &start, &stop, step);
  if (count == 0) return {Index::slice(0, 0), true};
  return {Index::slice(start + (count - 1) * step, start + 1, -step), true};
}

/// Returns one entry of an expression, or one item of a list in it.
Index index_of(py::handle item, std::size_t position, const TensorInfo& info) {
  if (item.is_none()) return Index::new_axis();
  if (item.ptr() == Py_Ellipsis) return Index::ellipsis();
  if (PySlice_Check(item.ptr())) return slice_of(item, 0, false).index;
  if (is_integer(item)) return Index::at(integer_of(item, position, info));
  throw tensor_error(ErrorCode::kInvalidArgument,
                     "Unsupported slice index at position " + std::to_string(position) +
                         ": an index with lists holds integers and slices only, not " +
                         type_name(item),
                     {info.name});
}

std::vector<IndexEntry> entries_of(py::handle index, const TensorInfo& info) {
  const py::tuple items = py::isinstance<py::tuple>(index)
                              ? py::reinterpret_borrow<py::tuple>(index)
                              : py::make_tuple(index);
  std::vector<IndexEntry> entries;
  for (const py::handle item : items) {
    const std::size_t position = entries.size();
    if (!PyList_Check(item.ptr())) {
      entries.emplace_back(index_of(item, position, info));
      continue;
    }
    // A copy: the conversion of an integer may run code that changes the list.
    const py::tuple copy(py::reinterpret_borrow<py::list>(item));
    std::vector<Index> list;
    for (const py::handle each : copy) list.push_back(index_of(each, position, info));
    entries.emplace_back(std::move(list));
  }
  return entries;
}

/// Returns whether the expression has a list that `is_wanted` accepts.
template <typename IsWanted>
bool has_list(py::handle index, const IsWanted& is_wanted) {
  const auto accepts = [&](PyObject* item) { return PyList_Check(item) && is_wanted(item); };
  if (!PyTuple_Check(index.ptr())) return accepts(index.ptr());
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(index.ptr()); ++i) {
    if (accepts(PyTuple_GET_ITEM(index.ptr(), i))) return true;
  }
  return false;
}

struct PythonIndex {
  std::vector<Index> indices;
  std::vector<bool> reversed;
  bool any_reversed = false;
};

std::optional<PythonIndex> basic_index(py::handle index, const TensorInfo& info, bool may_reverse) {
  const std::span<const std::uint64_t> shape = info.shape;
  const py::tuple items = py::isinstance<py::tuple>(index)
                              ? py::reinterpret_borrow<py::tuple>(index)
                              : py::make_tuple(index);
  std::size_t used = 0;  // axes that integers and slices take; "..." stands for the others
  for (const py::handle item : items) {
    if (PySlice_Check(item.ptr()) || is_integer(item)) {
      ++used;
    } else if (!item.is_none() && item.ptr() != Py_Ellipsis) {
      return std::nullopt;
    }
  }
  PythonIndex result;
  std::size_t axis = 0;
  for (const py::handle item : items) {
    if (item.is_none()) {
      result.indices.push_back(Index::new_axis());
      result.reversed.push_back(false);
    } else if (item.ptr() == Py_Ellipsis) {
      result.indices.push_back(Index::ellipsis());
      for (std::size_t rest = shape.size() - std::min(used, shape.size()); rest > 0; --rest) {
        result.reversed.push_back(false);
        ++axis;
      }
    } else if (PySlice_Check(item.ptr())) {
      const SliceBounds bounds = slice_of(item, axis < shape.size() ? shape[axis] : 0, may_reverse);
      result.indices.push_back(bounds.index);
      result.reversed.push_back(bounds.reversed);
      result.any_reversed = result.any_reversed || bounds.reversed;
      ++axis;
    } else {
      result.indices.push_back(Index::at(integer_of(item, result.indices.size(), info)));
      ++axis;
    }
  }
  return result;
}

}  // namespace

py::object resolve_part(py::handle index, std::span<const std::uint64_t> shape) {
  PyObject* const object = index.ptr();
  const bool is_plain = PySlice_Check(object) || PyTuple_Check(object) || PyList_Check(object) ||
                        PyIndex_Check(object) || index.is_none() || object == Py_Ellipsis;
  if (is_plain || !py::hasattr(py::type::handle_of(index), "part")) {
    return py::reinterpret_borrow<py::object>(index);
  }
  return index.attr("part")(py::tuple(to_list(shape)));
}

bool has_intervals(py::handle index) {
  return has_list(index, [](PyObject* list) {
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); ++i) {
      if (PySlice_Check(PyList_GET_ITEM(list, i))) return true;
    }
    return false;
  });
}

bool has_lists(py::handle index) {
  return has_list(index, [](PyObject*) { return true; });
}

namespace {

/// Throws for a part of F4 without the whole last axis: two elements share a byte, and torch's
/// shape counts pairs along this axis.
void check_last_axis(const TensorInfo& info, bool is_whole) {
  if (info.dtype != Dtype::kF4 || is_whole) return;
  fail(ErrorCode::kInvalidArgument,
       "tensor `" + std::string(info.name) +
           "`: a part of an F4 tensor must include the whole last axis",
       {.subject = std::string(info.name)});
}

}  // namespace

RegionPart select_region(const SafeOpen& file, const TensorInfo& info, py::handle index) {
  try {
    RegionPart part = safetensors::select_part(info, entries_of(index, info));
    const auto& axes = part.region.axes;
    check_last_axis(info, axes.size() >= 2 && axes.back().size() == 1 &&
                              axes.back()[0].count == info.shape.back());
    return part;
  } catch (const Error& error) {
    throw error.with_context({}, file.path());
  }
}

std::optional<SelectedPart> select_part(const SafeOpen& file, const TensorInfo& info,
                                        py::handle index, bool may_reverse) {
  try {
    std::optional<PythonIndex> basic = basic_index(index, info, may_reverse);
    if (!basic) return std::nullopt;
    return SelectedPart{file.select_part(info, basic->indices), std::move(basic->reversed),
                        basic->any_reversed};
  } catch (const Error& error) {
    throw error.with_context({}, file.path());
  }
}

LoadPart select_load_part(const SafeOpen& file, const TensorInfo& info, py::handle given) {
  const py::object index = resolve_part(given, info.shape);
  if (index.is_none()) return {{}, {info.shape.begin(), info.shape.end()}};
  if (has_lists(index)) {
    auto [region, runs] = select_region(file, info, index);
    return {std::move(runs), std::move(region.shape)};
  }
  std::optional<SelectedPart> selected = select_part(file, info, index, false);
  if (!selected) {
    raise_safetensor_error(
        ErrorCode::kInvalidArgument,
        "tensor `" + std::string(info.name) +
            "`: the index of a part consists of integers, slices and lists of them, not of " +
            type_name(index),
        info.name);
  }
  auto& [selection, runs] = selected->part;
  const auto& axes = selection.axes;
  check_last_axis(info, axes.size() >= 2 && axes.back().count == info.shape.back());
  return {{std::move(runs)}, std::move(selection.shape)};
}

std::optional<Part> select_part(const TensorInfo& info, py::handle index) {
  const std::optional<PythonIndex> basic = basic_index(index, info, false);
  if (!basic) return std::nullopt;
  return safetensors::select_part(info, basic->indices);
}

}  // namespace safetensors::python
