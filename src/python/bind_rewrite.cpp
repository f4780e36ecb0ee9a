// _write_with_header: writes a file that has the data of another one; _updated_names: which tensors
// an updated file has.
#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "errors.hpp"
#include "fast_def.hpp"
#include "gil.hpp"
#include "open_file.hpp"
#include "register.hpp"
#include "safetensors/detail/updated_specs.hpp"
#include "save_arguments.hpp"
#include "save_target.hpp"
#include "write_plan.hpp"

namespace safetensors::python {
namespace {

/// Throws Error kInvalidTensorInfo unless both headers describe the same tensors, but for names.
void check_same_tensors(const Header& old, const Header& now) {
  const auto is_same = [](const TensorInfo& a, const TensorInfo& b) {
    return a.begin == b.begin && a.end == b.end && a.dtype == b.dtype &&
           std::ranges::equal(a.shape, b.shape);
  };
  if (!std::ranges::equal(old.tensors(), now.tensors(), is_same)) {
    fail(ErrorCode::kInvalidTensorInfo, "the new header does not describe the same tensors");
  }
}

/// Returns the bytes before the data: the header's length, and the header.
std::string prologue_of(std::span<const std::byte> header) {
  std::string prologue;
  for (std::size_t i = 0; i < kLengthSize; ++i) {
    prologue += static_cast<char>(header.size() >> (8 * i) & 0xFF);
  }
  prologue.append(reinterpret_cast<const char*>(header.data()), header.size());
  return prologue;
}

void write_with_header(py::handle path, const Handle& handle, py::handle header,
                       py::handle options) {
  const SaveTarget target(path, "path");
  const std::shared_ptr<const OpenFile> opened = handle.file();
  const SafeOpen& file = opened->file();
  const BufferView json(header, "header");
  const SaveArguments arguments(options);
  detail::WriteSums& sums = *arguments.sums;
  WriterOptions how = arguments.writer_options();
  saving(target.path(), [&] {
    const GilRelease release;
    const std::shared_ptr<const ByteSource> source = file.source();
    const std::uint64_t begin = file.data_offset();
    const std::uint64_t nbytes = source->size() - begin;
    check_same_tensors(file.header(), Header::parse(json.bytes(), nbytes));
    FileWriter writer(target.make_sink(python_interrupt(), sums.before_rename(target.path())),
                      plan_data(prologue_of(json.bytes()), nbytes), std::move(how));
    const TensorCopy data{0, begin};
    writer.copy(*source, {&data, 1});
    writer.commit();
    sums.commit(arguments.fsync);
  });
}

std::vector<safetensors::TensorSpec> views_of(const std::vector<OwnSpec>& specs) {
  std::vector<safetensors::TensorSpec> views;
  views.reserve(specs.size());
  for (const OwnSpec& spec : specs) views.push_back(spec.view());
  return views;
}

py::list updated_names(py::handle path, py::handle old, py::handle now, const py::list& removed,
                       bool add) {
  const std::vector<OwnSpec> before = specs_of(old);
  const std::vector<OwnSpec> given = specs_of(now);
  std::vector<std::string_view> gone;
  for (const py::handle name : removed) gone.push_back(text_of(name, "remove"));
  py::list names;
  try {
    for (const safetensors::TensorSpec& spec : detail::updated_specs(
             path_of(path, "filename"), views_of(before), views_of(given), gone, add)) {
      names.append(to_unicode(spec.name));
    }
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kTensorNotFound) raise_both(PyExc_KeyError, error);
    throw;
  }
  return names;
}

}  // namespace

void register_rewrite(py::module_& module) {
  define(
      module, "_updated_names", &updated_names, py::arg("path"), py::arg("old"), py::arg("now"),
      py::arg("removed"), py::arg("add"),
      "_updated_names(path, old, now, removed, add)\n--\n\n"
      "Returns the names of the tensors of a file after update_file(), in their order. Raises its\n"
      "errors about names, dtypes and shapes.");
  define(module, "_write_with_header", &write_with_header, py::arg("path"), py::arg("file"),
         py::arg("header"), py::arg("options"),
         "_write_with_header(path, file, header, options)\n--\n\n"
         "Writes a file with the data of an open one. The header describes the same tensors, but\n"
         "for their names.");
}

}  // namespace safetensors::python
