// _explain: what loads of parts would read.
#include <algorithm>
#include <optional>
#include <vector>

#include "errors.hpp"
#include "fast_def.hpp"
#include "open_file.hpp"
#include "python_index.hpp"
#include "register.hpp"

namespace safetensors::python {
namespace {

py::tuple explain_file(const SafeOpen& file, py::handle parts,
                       std::optional<std::uint64_t> gap_bytes) {
  std::vector<LoadTensor> tensors;
  std::string_view largest;
  std::uint64_t most = 0;
  for (const py::handle each : parts) {
    const auto pair = py::cast<py::tuple>(each);
    const py::object name = pair[0];
    const TensorInfo& info = file.at(text_of(name, "name"));
    std::vector<ByteRuns> runs = select_load_part(file, info, pair[1]).runs;
    const std::uint64_t nbytes = runs.empty() ? info.nbytes() : nbytes_of(runs);
    if (largest.empty() || nbytes > most) largest = info.name;
    most = std::max(most, nbytes);
    tensors.push_back({.name = info.name,
                       .offset = file.position(info),
                       .nbytes = nbytes,
                       .runs = std::move(runs)});
  }
  const std::shared_ptr<const ByteSource> source = file.source();
  const PlannedReads reads = planned_reads({&source, 1}, tensors, gap_bytes).front();
  return py::make_tuple(reads.wanted_nbytes, reads.read_nbytes, reads.read_count,
                        to_unicode(largest));
}

py::list explain(py::handle files, py::handle gap_bytes) {
  std::optional<std::uint64_t> gap;
  if (!gap_bytes.is_none()) gap = size_of(gap_bytes, "gap_bytes");
  py::list result;
  for (const py::handle each : files) {
    const auto pair = py::cast<py::tuple>(each);
    const std::shared_ptr<const OpenFile> file = py::cast<const Handle&>(pair[0]).file();
    result.append(explain_file(file->file(), pair[1], gap));
  }
  return result;
}

}  // namespace

void register_explain(py::module_& module) {
  define(module, "_explain", &explain, py::arg("files"), py::arg("gap_bytes") = py::none(),
         "_explain(files, gap_bytes=None)\n--\n\n"
         "files: pairs of a handle and a list of (name, index or None).\n"
         "Returns for each (wanted bytes, read bytes, reads, the name of the largest part).");
}

}  // namespace safetensors::python
