#include "open_source.hpp"

#include <utility>

#include "gil.hpp"
#include "python_source.hpp"
#include "typed_path.hpp"

namespace safetensors::python {
namespace {

SafeOpen open_reader(py::object reader, const std::optional<FileDigests>& digests) {
  const std::shared_ptr<const PythonSource> opened = PythonSource::open(std::move(reader));
  const GilRelease release;
  std::shared_ptr<const ByteSource> source = opened;
  if (digests) source = checked_source(opened, *digests, opened->name());
  return SafeOpen(std::move(source), opened->name());
}

SafeOpen open_path(const std::filesystem::path& path, const OpenOptions& options,
                   const std::optional<FileDigests>& digests) {
  const GilRelease release;
  if (!digests) return SafeOpen(path, options);
  return SafeOpen(checked_source(open_source(path, options), *digests, path), path);
}

}  // namespace

SafeOpen open_any(py::handle file, const OpenOptions& options, py::handle storage_options,
                  const std::optional<FileDigests>& digests) {
  if (is_url(file)) {
    const py::object open = py::module_::import("safetensors._remote.open").attr("open_url");
    py::object opened = open(file, storage_options);
    if (is_range_reader(opened)) return open_reader(std::move(opened), digests);
    return open_path(path_of(opened, "filename"), options, digests);
  }
  if (!storage_options.is_none()) {
    throw py::type_error("storage_options are settings for a URL, which filename is not");
  }
  if (is_range_reader(file)) return open_reader(py::reinterpret_borrow<py::object>(file), digests);
  return open_path(path_to_read(file, "filename"), options, digests);
}

}  // namespace safetensors::python
