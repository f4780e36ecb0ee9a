#include "open_source.hpp"

#include <utility>

#include "gil.hpp"
#include "python_source.hpp"

namespace safetensors::python {
namespace {

SafeOpen open_reader(py::object reader) {
  std::shared_ptr<const PythonSource> source = PythonSource::open(std::move(reader));
  const GilRelease release;
  const std::filesystem::path name = source->name();
  return SafeOpen(std::move(source), name);
}

}  // namespace

SafeOpen open_any(py::handle file, const OpenOptions& options, py::handle storage_options) {
  if (is_url(file)) {
    const py::object open = py::module_::import("safetensors._remote.open").attr("open_reader");
    return open_reader(open(file, storage_options));
  }
  if (!storage_options.is_none()) {
    throw py::type_error("storage_options are settings for a URL, which filename is not");
  }
  if (is_range_reader(file)) return open_reader(py::reinterpret_borrow<py::object>(file));
  const std::filesystem::path path = path_of(file, "filename");
  const GilRelease release;
  return SafeOpen(path, options);
}

}  // namespace safetensors::python
