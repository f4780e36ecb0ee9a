// _read_patch, _PatchChange and _apply_patches: what is in a patch file, and what it does to
// tensors.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "digests.hpp"
#include "dtypes.hpp"
#include "errors.hpp"
#include "fast_def.hpp"
#include "gil.hpp"
#include "open_file.hpp"
#include "patch_fields.hpp"
#include "register.hpp"

namespace safetensors::python {
namespace {

py::object optional_text(const std::optional<std::string_view>& text) {
  return text ? to_unicode(*text) : py::none();
}

py::object optional_metadata(const std::optional<Metadata>& metadata) {
  if (!metadata) return py::none();
  py::dict dict;
  for (const auto& [key, value] : *metadata) dict[to_unicode(key)] = to_unicode(value);
  return dict;
}

py::tuple read_patch(const Handle& handle) {
  const auto opened = handle.file();
  const PatchFile patch = [&] {
    const GilRelease release;
    return PatchFile(opened->file());
  }();
  const GcPause pause;
  py::list names(patch.size());
  for (std::size_t i = 0; i < patch.size(); ++i) {
    PyList_SET_ITEM(names.ptr(), static_cast<Py_ssize_t>(i),
                    to_unicode(patch.name(i)).release().ptr());
  }
  return py::make_tuple(to_str(patch.base().text()), to_str(patch.target().text()),
                        optional_text(patch.base_label()), optional_text(patch.target_label()),
                        optional_metadata(patch.metadata()), to_str(name(patch.algorithm())),
                        names);
}

std::unique_ptr<PatchChange> read_change(const Handle& handle, py::handle tensor,
                                         py::handle algorithm) {
  const auto opened = handle.file();
  const std::string_view name = text_of(tensor, "name");
  const DigestAlgorithm used = algorithm_of(text_of(algorithm, "algorithm"));
  const Interrupt interrupt = opened->interrupt();
  const GilRelease release;
  return std::make_unique<PatchChange>(opened->file(), name, used, interrupt);
}

PatchChecks checks_of(bool digests) {
  return {.digests = digests, .sha256 = &sha256_by_hashlib, .interrupt = python_interrupt()};
}

py::str check_tensor(const PatchChange& self, py::handle dtype, py::handle shape, py::handle tensor,
                     bool digests) {
  const BufferView bytes(tensor, "tensor");
  const Dtype type = dtype_of_code(dtype);
  const std::vector<std::uint64_t> dims = dims_of(shape);
  const PatchChecks checks = checks_of(digests);
  PatchState state{};
  {
    const GilRelease release;
    state = self.check({{}, dims, bytes.bytes(), type}, checks);
  }
  return to_str(state_name(state));
}

void check_target(const PatchChange& self, py::handle dtype, py::handle shape, py::handle tensor) {
  const BufferView bytes(tensor, "tensor");
  const Dtype type = dtype_of_code(dtype);
  const std::vector<std::uint64_t> dims = dims_of(shape);
  const PatchChecks checks = checks_of(true);
  const GilRelease release;
  self.check_target({{}, dims, bytes.bytes(), type}, checks);
}

void apply_change(const PatchChange& self, py::handle tensor) {
  const WritableBuffer bytes(tensor);
  const PatchChecks checks = checks_of(false);
  const GilRelease release;
  self.apply(bytes.bytes(), checks);
}

/// Applies changes that were checked. All of them, unless one of the tensors has changed since.
void apply_all(const py::list& pairs) {
  std::vector<const PatchChange*> changes;
  std::vector<std::unique_ptr<WritableBuffer>> tensors;
  for (const py::handle pair : pairs) {
    const auto both = py::cast<py::tuple>(pair);
    changes.push_back(&py::cast<const PatchChange&>(both[0]));
    tensors.push_back(std::make_unique<WritableBuffer>(both[1]));
  }
  const GilRelease release;
  for (std::size_t i = 0; i < changes.size(); ++i) {
    changes[i]->apply(tensors[i]->bytes(), {.sha256 = &sha256_by_hashlib});
  }
}

py::object values_of(const PatchChange& self) {
  const std::span<const std::byte> values = self.values();
  auto made = py::reinterpret_steal<py::object>(PyByteArray_FromStringAndSize(
      reinterpret_cast<const char*>(values.data()), static_cast<Py_ssize_t>(values.size())));
  if (!made) throw py::error_already_set();
  return made;
}

py::object dtype_of_change(const PatchChange& self) {
  const std::optional<Dtype>& dtype = self.dtype();
  return dtype ? to_str(*dtype) : py::none();
}

}  // namespace

void register_patch_file(py::module_& module) {
  define(module, "_read_patch", &read_patch, py::arg("handle"),
         "_read_patch(handle)\n--\n\nChecks the header of a patch file. Returns (base, target, "
         "base_label, target_label, metadata, algorithm, names).");
  define(module, "_apply_patches", &apply_all, py::arg("pairs"),
         "_apply_patches(pairs)\n--\n\nApplies pairs of a _PatchChange and a tensor, in their "
         "order. Ctrl-C does not interrupt it.");
  Class<PatchChange> change(module, "_PatchChange",
                            "What a patch file does to a tensor: a record and values, valid.");
  change.constructor(&read_change, py::arg("handle"), py::arg("name"), py::arg("algorithm"))
      .property("name", [](const PatchChange& self) { return to_unicode(self.name()); })
      .property("path", [](const PatchChange& self) { return to_object(self.path()); })
      .property("dtype", &dtype_of_change,
                "The dtype of the target's tensor; None if it is removed or of a type below a byte "
                "with blocks.")
      .property("shape", [](const PatchChange& self) { return py::tuple(to_list(self.shape())); })
      .property("units", [](const PatchChange& self) { return self.units(); })
      .property("changed", [](const PatchChange& self) { return self.changed(); })
      .property("nbytes", [](const PatchChange& self) { return self.nbytes(); })
      .method("values", &values_of, "values()\n--\n\nReturns the values as a new bytearray.")
      .method("check", &check_tensor, py::arg("dtype"), py::arg("shape"), py::arg("tensor"),
              py::arg("digests"),
              "check(dtype, shape, tensor, digests)\n--\n\nReturns \"base\" or \"applied\".")
      .method(
          "check_absent",
          [](const PatchChange& self) { return to_str(state_name(self.check_absent())); },
          "check_absent()\n--\n\nReturns \"base\" or \"applied\" of a model without the tensor.")
      .method("apply", &apply_change, py::arg("tensor"),
              "apply(tensor)\n--\n\nMakes the target's tensor of the base's.")
      .method(
          "check_target", &check_target, py::arg("dtype"), py::arg("shape"), py::arg("tensor"),
          "check_target(dtype, shape, tensor)\n--\n\nRaises unless the digest is the target's.");
  add_record(change);
}

}  // namespace safetensors::python
