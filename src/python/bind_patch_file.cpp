// _read_patch, _PatchChange and _apply_patches: what is in a patch file, and what it does to
// tensors.
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "digests.hpp"
#include "dtypes.hpp"
#include "errors.hpp"
#include "fast_def.hpp"
#include "gil.hpp"
#include "open_file.hpp"
#include "register.hpp"

namespace safetensors::python {
namespace {

DigestAlgorithm algorithm_of(std::string_view text) {
  for (const DigestAlgorithm each : {DigestAlgorithm::kXxh3_128, DigestAlgorithm::kSha256}) {
    if (text == name(each)) return each;
  }
  fail(ErrorCode::kInvalidArgument,
       "algorithm " + std::string(text) + " is not xxh3-128 or sha256");
}

std::string_view state_name(PatchState state) noexcept {
  return state == PatchState::kBase ? "base" : "applied";
}

py::object to_text(const std::optional<Digest>& digest) {
  return digest ? py::object(to_str(digest->text())) : py::none();
}

py::dict codes_of(const PatchCodes& codes) {
  py::dict dict;
  const auto add = [&](const char* code, std::uint64_t count) {
    if (count != 0) dict[code] = to_int(count);
  };
  add("same", codes.same);
  add("gap8", codes.gap8);
  add("pos16", codes.pos16);
  add("bitmap", codes.bitmap);
  add("runs", codes.runs);
  add("set", codes.set);
  add("add8", codes.add8);
  return dict;
}

void write_positions(const PatchChange& self, py::handle out) {
  const WritableBuffer view(out);
  const std::span<std::int64_t> to = view.values<std::int64_t>();
  const GilRelease release;
  self.record().positions(to);
}

void write_new_values(const PatchChange& self, py::handle base, py::handle out) {
  const WritableBuffer view(out);
  std::optional<BufferView> bytes;
  if (!base.is_none()) bytes.emplace(base, "base");
  const std::span<const std::byte> old_bytes =
      bytes ? bytes->bytes() : std::span<const std::byte>();
  const GilRelease release;
  self.record().new_units(old_bytes, view.bytes());
}

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
      .property("kind", [](const PatchChange& self) { return to_str(name(self.kind())); })
      .property("path", [](const PatchChange& self) { return to_object(self.path()); })
      .property("dtype", &dtype_of_change,
                "The dtype of the target's tensor; None if it is removed or of a type below a byte "
                "with blocks.")
      .property("shape", [](const PatchChange& self) { return py::tuple(to_list(self.shape())); })
      .property("unit", [](const PatchChange& self) { return self.record().unit(); })
      .property("units", [](const PatchChange& self) { return self.units(); })
      .property("changed", [](const PatchChange& self) { return self.changed(); })
      .property("nbytes", [](const PatchChange& self) { return self.nbytes(); })
      .property("base", [](const PatchChange& self) { return to_text(self.record().base()); })
      .property("target", [](const PatchChange& self) { return to_text(self.record().target()); })
      .property("codes", [](const PatchChange& self) { return codes_of(self.record().codes()); })
      .method("values", &values_of, "values()\n--\n\nReturns the values as a new bytearray.")
      .method("positions", &write_positions, py::arg("out"),
              "positions(out)\n--\n\nWrites the numbers of the changed units as int64.")
      .method("new_values", &write_new_values, py::arg("base"), py::arg("out"),
              "new_values(base, out)\n--\n\nWrites the new units at these positions.")
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
}

}  // namespace safetensors::python
