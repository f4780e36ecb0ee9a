// _outline: the tree and the totals of tensors, for displays.
#include <deque>
#include <memory>
#include <string_view>
#include <vector>

#include "errors.hpp"
#include "fast_def.hpp"
#include "open_file.hpp"
#include "register.hpp"
#include "safetensors/detail/outline.hpp"

namespace safetensors::python {
namespace {

using detail::OutlineRow;
using detail::OutlineTensor;

/// The tensors to list, and what owns their texts.
struct Listed {
  std::vector<OutlineTensor> tensors;
  std::deque<std::vector<std::uint64_t>> shapes;
  std::vector<std::shared_ptr<const OpenFile>> files;

  void add_file(std::shared_ptr<const OpenFile> file) {
    for (const TensorInfo& info : file->file().header().tensors()) {
      tensors.push_back({info.name, name(info.dtype), info.shape, info.nbytes()});
    }
    files.push_back(std::move(file));
  }

  void add_row(const py::tuple& row) {
    if (row.size() != 4) throw py::value_error("tensors: not (name, type, shape, nbytes)");
    const std::vector<std::uint64_t>& shape = shapes.emplace_back(dims_of(row[2]));
    tensors.push_back(
        {text_of(row[0], "name"), text_of(row[1], "type"), shape, size_of(row[3], "nbytes")});
  }
};

py::list to_rows(const std::vector<OutlineRow>& rows, const Listed& listed) {
  py::list made;
  for (const OutlineRow& row : rows) {
    py::object type = py::none();
    py::object shape = py::none();
    if (row.tensor != OutlineRow::kGroup) {
      type = to_unicode(listed.tensors[row.tensor].type);
      shape = py::tuple(to_list(listed.tensors[row.tensor].shape));
    }
    made.append(py::make_tuple(to_unicode(row.first), to_unicode(row.last), to_int(row.alike), type,
                               shape, to_int(row.tensors), to_int(row.elements), to_int(row.nbytes),
                               to_rows(row.rows, listed)));
  }
  return made;
}

py::tuple outline(py::handle tensors, py::handle rows, py::handle depth) {
  // The list owns the rows, and they their texts.
  const py::list given(py::reinterpret_borrow<py::object>(tensors));
  Listed listed;
  for (const py::handle each : given) {
    if (PyTuple_Check(each.ptr())) {
      listed.add_row(py::reinterpret_borrow<py::tuple>(each));
    } else {
      if (!py::isinstance<Handle>(each)) raise_wrong_type(each, "tensors", "safe_open or tuple");
      listed.add_file(py::cast<const Handle&>(each).file());
    }
  }
  detail::OutlineLimits limits;
  if (!rows.is_none()) limits.rows = size_of(rows, "rows");
  if (!depth.is_none()) limits.depth = size_of(depth, "depth");
  const detail::Outline made = outline_of(listed.tensors, limits);
  const GcPause pause;
  py::list types;
  for (const detail::OutlineType& type : made.types) {
    types.append(py::make_tuple(to_unicode(type.type), to_int(type.tensors), to_int(type.elements),
                                to_int(type.nbytes)));
  }
  return py::make_tuple(types, to_rows(made.rows, listed), to_int(made.omitted));
}

}  // namespace

void register_outline(py::module_& module) {
  define(
      module, "_outline", &outline, py::arg("tensors"), py::arg("rows") = py::none(),
      py::arg("depth") = py::none(),
      "_outline(tensors, rows=None, depth=None)\n--\n\n"
      "tensors: handles, whose tensors are listed, and tuples (name, type, shape, nbytes).\n"
      "Returns the types, as (type, tensors, elements, nbytes); the rows, as (first name, last\n"
      "name, how many are alike, type or None, shape or None, tensors, elements, nbytes, rows);\n"
      "and how many tensors exceed the limit of rows.");
}

}  // namespace safetensors::python
