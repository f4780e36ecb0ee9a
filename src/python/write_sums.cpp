#include "write_sums.hpp"

#include <string>
#include <utility>

#include "gil.hpp"
#include "save_target.hpp"

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
  return std::move(result);
}

}  // namespace

detail::WriteSums to_write_sums(py::handle given) {
  if (given.is_none()) return {};
  const auto fields = py::cast<py::tuple>(given);
  const py::object make = fields[1];
  return {
      optional_path_of(fields[0], "sums"),
      [make](const std::filesystem::path& complete,
             const std::vector<detail::WriteSums::Written>* written) -> std::optional<std::string> {
        const GilAcquire gil;
        const py::object made = make(to_object(complete), to_dict(written));
        if (made.is_none()) return std::nullopt;
        return py::cast<std::string>(py::cast<py::bytes>(made));
      }};
}

}  // namespace safetensors::python
