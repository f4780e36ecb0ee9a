#include "save_arguments.hpp"

#include <string>
#include <utility>

#include "gil.hpp"
#include "write_plan.hpp"

namespace safetensors::python {
namespace {

py::object to_dict(const std::vector<detail::WriteSums::Written>* written) {
  if (written == nullptr) return py::none();
  py::dict result;
  for (const detail::WriteSums::Written& each : *written) {
    if (!each.digest) {
      result[to_unicode(each.name)] = py::none();
      continue;
    }
    const std::string text = each.digest->text();
    std::string blocks;
    for (const std::uint64_t block : each.blocks) {
      for (unsigned i = 0; i < 8; ++i) blocks += static_cast<char>(block >> (8 * i) & 0xFF);
    }
    result[to_unicode(each.name)] =
        py::make_tuple(to_str(text.substr(text.find(':') + 1)), py::bytes(blocks));
  }
  return result;
}

std::unique_ptr<detail::WriteSums> to_write_sums(py::handle given) {
  if (given.is_none()) return std::make_unique<detail::WriteSums>();
  const auto fields = py::cast<py::tuple>(given);
  const py::object make = fields[1];
  return std::make_unique<detail::WriteSums>(
      optional_path_of(fields[0], "sums"),
      [make](const std::filesystem::path& complete,
             const std::vector<detail::WriteSums::Written>* written) -> std::optional<std::string> {
        const GilAcquire gil;
        const py::object made = make(to_object(complete), to_dict(written));
        if (made.is_none()) return std::nullopt;
        return py::cast<std::string>(py::cast<py::bytes>(made));
      });
}

}  // namespace

SaveArguments::SaveArguments(py::handle given_metadata, bool given_fsync, py::object given_progress)
    : metadata(metadata_of(given_metadata)),
      fsync(given_fsync),
      progress(std::move(given_progress)),
      sums(to_write_sums(py::none())) {}

SaveArguments::SaveArguments(py::handle options)
    : metadata(metadata_of(options.attr("metadata"))),
      fsync(py::cast<bool>(options.attr("fsync"))),
      progress(options.attr("progress")),
      sums(to_write_sums(options.attr("make_sums"))),
      layout(layout_of(options.attr("layout"))),
      data_begin(size_of(options.attr("data_begin"), "data_begin")) {
  const py::object budget = options.attr("budget_bytes");
  if (!budget.is_none()) budget_nbytes = size_of(budget, "budget_bytes");
}

SaveOptions SaveArguments::save_options() const {
  return {.fsync = fsync, .interrupt = python_interrupt(), .progress = python_progress(progress)};
}

WriterOptions SaveArguments::writer_options() const {
  WriterOptions options{
      .fsync = fsync, .interrupt = python_interrupt(), .progress = python_progress(progress)};
  if (budget_nbytes) options.budget_nbytes = *budget_nbytes;
  return options;
}

}  // namespace safetensors::python
