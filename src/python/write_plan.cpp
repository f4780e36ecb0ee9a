#include "write_plan.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "to_torch.hpp"

namespace safetensors::python {

OwnSpec spec_of(py::handle name, py::handle dtype, py::handle shape) {
  OwnSpec spec;
  spec.name = text_of(name, "name");
  const std::string_view code = text_of(dtype, "dtype");
  const std::optional<Dtype> known = parse_dtype(code);
  if (!known) {
    throw Error(ErrorCode::kUnsupportedDtype,
                "the format has no dtype `" + std::string(code) + "`: tensor `" + spec.name + "`",
                ErrorContext{.subject = spec.name});
  }
  spec.dtype = *known;
  spec.shape = dims_of(shape);
  return spec;
}

std::vector<OwnSpec> specs_of(py::handle rows) {
  std::vector<OwnSpec> specs;
  if (PyDict_Check(rows.ptr())) {
    const py::dict named = copy_of(rows);
    specs.reserve(named.size());
    for (const auto& [name, value] : named) {
      const auto fields = py::cast<py::tuple>(value);
      specs.push_back(spec_of(name, fields[0], fields[1]));
    }
    return specs;
  }
  for (const py::handle item : rows) {
    const auto fields = py::cast<py::tuple>(item);
    specs.push_back(spec_of(fields[0], fields[1], fields[2]));
  }
  return specs;
}

py::object specs_of_torch(const py::dict& tensors, py::handle type) {
  const std::optional<TorchTensors> collected = collect_torch(tensors);
  if (!collected) return py::none();
  const GcPause pause;
  auto* const tuple_type = reinterpret_cast<PyTypeObject*>(type.ptr());
  std::array<py::object, kDtypeCount> dtypes;
  py::tuple shape;
  std::span<const std::uint64_t> its_sizes;
  py::dict specs = copy_of(collected->tensors);  // has its final size, and the hashes
  std::size_t i = 0;
  for (const auto& [name, tensor] : collected->tensors) {
    const TensorData& data = collected->data[i];
    py::object& dtype = dtypes[static_cast<std::size_t>(data.dtype)];
    if (!dtype) dtype = to_str(safetensors::name(data.dtype));
    // Tensors of the same shape that follow each other share it.
    if (i == 0 || !std::ranges::equal(its_sizes, data.shape)) {
      shape = py::tuple(data.shape.size());
      for (std::size_t axis = 0; axis < data.shape.size(); ++axis) {
        shape[axis] = to_int(data.shape[axis]);
      }
      its_sizes = data.shape;
    }
    const auto spec = py::reinterpret_steal<py::object>(tuple_type->tp_alloc(tuple_type, 2));
    if (!spec) throw py::error_already_set();
    PyTuple_SET_ITEM(spec.ptr(), 0, dtype.inc_ref().ptr());
    PyTuple_SET_ITEM(spec.ptr(), 1, shape.inc_ref().ptr());
    if (PyDict_SetItem(specs.ptr(), name.ptr(), spec.ptr()) != 0) throw py::error_already_set();
    ++i;
  }
  return specs;
}

LayoutPlan plan_of(std::span<const OwnSpec> specs, const std::optional<Metadata>& metadata,
                   Layout layout, std::uint64_t data_begin) {
  std::vector<safetensors::TensorSpec> views;
  views.reserve(specs.size());
  for (const OwnSpec& spec : specs) views.push_back(spec.view());
  return plan_file(views, metadata ? &*metadata : nullptr, layout, data_begin);
}

Layout layout_of(py::handle object) {
  const std::string_view name = text_of(object, "layout");
  if (name == "canonical") return Layout::kCanonical;
  if (name == "blocks") return Layout::kBlocks;
  if (name == "given") return Layout::kGiven;
  throw py::value_error("layout is \"canonical\", \"blocks\" or \"given\", not \"" +
                        std::string(name) + "\"");
}

}  // namespace safetensors::python
