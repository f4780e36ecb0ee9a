#include "write_plan.hpp"

#include <utility>

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
  for (const py::handle dim : shape) spec.shape.push_back(size_of(dim, "shape"));
  return spec;
}

std::vector<OwnSpec> specs_of(py::handle list) {
  std::vector<OwnSpec> specs;
  for (const py::handle item : list) {
    const auto fields = py::cast<py::tuple>(item);
    specs.push_back(spec_of(fields[0], fields[1], fields[2]));
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

LayoutPlan plan_of_one(std::string prologue, std::uint64_t data_nbytes) {
  const std::uint64_t begin = prologue.size();
  return {.prologue = std::move(prologue),
          .order = {0},
          .places = {{begin, data_nbytes}},
          .total_nbytes = begin + data_nbytes};
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
