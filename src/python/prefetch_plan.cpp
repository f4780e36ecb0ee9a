#include "prefetch_plan.hpp"

#include <algorithm>

#include "errors.hpp"
#include "to_torch.hpp"

namespace safetensors::python {
namespace {

/// Returns one bound of a slice, counted from the first row; `otherwise` if it is None.
std::uint64_t bound_of(py::handle bound, const char* which, std::string_view name,
                       std::uint64_t rows, std::uint64_t otherwise) {
  if (bound.is_none()) return otherwise;
  const auto fail_type = [&] {
    raise_safetensor_error(
        ErrorCode::kInvalidArgument,
        "prefetch plan slice bounds for " + std::string(name) + " must be integers or None", name);
  };
  const auto number = py::reinterpret_steal<py::object>(PyNumber_Index(bound.ptr()));
  if (!number) {
    PyErr_Clear();
    fail_type();
  }
  const long long value = PyLong_AsLongLong(number.ptr());
  if (value == -1 && PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    fail_type();
  }
  const auto count = static_cast<long long>(rows);
  if (value > count || value < -count) {
    raise_safetensor_error(ErrorCode::kInvalidArgument,
                           "prefetch plan slice " + std::string(which) + " " +
                               std::to_string(value) + " for " + std::string(name) +
                               " is out of range for " + std::to_string(rows) + " rows",
                           name);
  }
  return static_cast<std::uint64_t>(value < 0 ? value + count : value);
}

void check_step(py::handle slice, std::string_view name) {
  const py::object step = slice.attr("step");
  if (step.is_none()) return;
  const auto number = py::reinterpret_steal<py::object>(PyNumber_Index(step.ptr()));
  if (!number) {
    PyErr_Clear();
    raise_safetensor_error(ErrorCode::kInvalidArgument,
                           "invalid prefetch plan slice for " + std::string(name) +
                               ": TypeError: slice indices must be integers or None or have an "
                               "__index__ method",
                           name);
  }
  const std::string text = py::cast<std::string>(py::str(number));
  if (text == "0") {
    raise_safetensor_error(ErrorCode::kInvalidArgument,
                           "invalid prefetch plan slice for " + std::string(name) +
                               ": ValueError: slice step cannot be zero",
                           name);
  }
  if (text != "1") {
    raise_safetensor_error(
        ErrorCode::kInvalidArgument,
        "prefetch plan slices must have step 1, got " + text + " for " + std::string(name), name);
  }
}

Request rows_of(const std::shared_ptr<const OpenFile>& file, const TensorInfo& info,
                py::handle slice) {
  check_step(slice, info.name);
  if (info.shape.empty()) {
    raise_safetensor_error(ErrorCode::kInvalidArgument,
                           "cannot slice rows of the 0-d tensor " + std::string(info.name),
                           info.name);
  }
  const std::uint64_t rows = info.shape[0];
  const std::uint64_t start = bound_of(slice.attr("start"), "start", info.name, rows, 0);
  const std::uint64_t stop = bound_of(slice.attr("stop"), "stop", info.name, rows, rows);
  Selection selection;
  selection.shape.assign(info.shape.begin(), info.shape.end());
  for (const std::uint64_t dim : info.shape) selection.axes.push_back({0, dim, 1});
  selection.axes[0] = {start, stop - std::min(start, stop), 1};
  selection.shape[0] = selection.axes[0].count;
  return make_request(file, info, {byte_runs(selection, info.shape, info.dtype)}, selection.shape);
}

/// Raises upstream's error for a type that torch lacks.
void check_dtype(const OpenFile& file, const TensorInfo& info) {
  if (find_torch_dtype(info.dtype)) return;
  const std::string tensor(info.name);
  fail(ErrorCode::kUnsupportedDtype,
       "prefetch cannot hand out dtype " + std::string(safetensors::name(info.dtype)) + " of " +
           tensor + ": torch has no such type",
       {.path = file.file().path(), .subject = tensor});
}

}  // namespace

std::vector<Request> requests_of_plan(const std::shared_ptr<const OpenFile>& file,
                                      py::handle plan) {
  std::vector<Request> requests;
  if (plan.is_none()) {
    for (const TensorInfo& info : file->file().header().tensors()) {
      check_dtype(*file, info);
      requests.push_back(make_request(file, info));
    }
  } else {
    if (!PyDict_Check(plan.ptr())) raise_wrong_type(plan, "plan", "dict");
    for (const auto& [key, value] : copy_of(plan)) {
      if (!PyUnicode_Check(key.ptr())) {
        raise_safetensor_error(ErrorCode::kInvalidArgument,
                               "prefetch plan keys must be tensor names");
      }
      const TensorInfo& info = file->file().at(text_of(key, "plan"));
      const bool is_rows = PySlice_Check(value.ptr());
      const bool is_part = !is_rows && !value.is_none() && py::hasattr(value, "part");
      if (!value.is_none() && !is_rows && !is_part) {
        raise_safetensor_error(ErrorCode::kInvalidArgument,
                               "prefetch plan values must be None or a slice, got " +
                                   py::cast<std::string>(py::str(py::type::of(value))) + " for " +
                                   std::string(info.name),
                               info.name);
      }
      check_dtype(*file, info);
      requests.push_back(value.is_none() ? make_request(file, info)
                         : is_part       ? make_request(file, info.name, value)
                                         : rows_of(file, info, value));
    }
    if (requests.empty())
      raise_safetensor_error(ErrorCode::kInvalidArgument, "prefetch plan selects no tensors");
  }
  std::sort(requests.begin(), requests.end(), [](const Request& a, const Request& b) {
    return a.info->begin != b.info->begin ? a.info->begin < b.info->begin
                                          : a.info->end < b.info->end;
  });
  return requests;
}

}  // namespace safetensors::python
