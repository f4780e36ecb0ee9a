// _encode_patch, _whole_patch and _PatchRecord: what changed between two states of a tensor.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "digests.hpp"
#include "dtypes.hpp"
#include "errors.hpp"
#include "fast_def.hpp"
#include "gil.hpp"
#include "register.hpp"

namespace safetensors::python {
namespace {

std::vector<std::uint64_t> patch_shape(py::handle shape) {
  std::vector<std::uint64_t> dims;
  for (const py::handle each : py::iter(shape)) dims.push_back(size_of(each, "shape"));
  return dims;
}

std::optional<Digest> optional_digest(py::handle text, const char* argument) {
  if (text.is_none()) return std::nullopt;
  return Digest::parse(text_of(text, argument));
}

py::bytes to_bytes(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

py::object to_text(const std::optional<Digest>& digest) {
  return digest ? py::object(to_str(digest->text())) : py::none();
}

py::tuple encode(py::handle base, py::handle target, py::handle dtype, py::handle shape,
                 bool set_values, py::handle base_digest, py::handle target_digest) {
  const BufferView old_bytes(base, "base");
  const BufferView new_bytes(target, "target");
  const Dtype type = dtype_of_code(dtype);
  const std::vector<std::uint64_t> dims = patch_shape(shape);
  const PatchOptions options{set_values, optional_digest(base_digest, "base_digest"),
                             optional_digest(target_digest, "target_digest")};
  const Interrupt interrupt = python_interrupt();
  EncodedPatch encoded;
  {
    const GilRelease release;
    encoded = encode_patch(type, dims, old_bytes.bytes(), new_bytes.bytes(), options, interrupt);
  }
  return py::make_tuple(to_bytes(encoded.record), to_bytes(encoded.values),
                        to_int(encoded.changed));
}

py::bytes whole(py::handle target, py::handle dtype, py::handle shape, py::handle base_digest,
                py::handle target_digest) {
  const PatchOptions options{false, optional_digest(base_digest, "base_digest"),
                             optional_digest(target_digest, "target_digest")};
  if (target.is_none()) {
    if (!options.base) {
      fail(ErrorCode::kInvalidArgument, "the record of a removed tensor needs base_digest");
    }
    return to_bytes(removed_patch(*options.base));
  }
  const BufferView bytes(target, "target");
  const Dtype type = dtype_of_code(dtype);
  const std::vector<std::uint64_t> dims = patch_shape(shape);
  std::vector<std::byte> record;
  {
    const GilRelease release;
    record = whole_patch(type, dims, bytes.bytes(), options);
  }
  return to_bytes(record);
}

/// A PatchRecord, and the buffers that it reads.
class PyPatchRecord {
 public:
  PyPatchRecord(py::handle record, py::handle values, py::handle dtype, py::handle algorithm,
                py::handle label)
      : record_bytes_(record, "record"),
        value_bytes_(values, "values"),
        dtype_(dtype_of_code(dtype)),
        record_(read(record_bytes_.bytes(), value_bytes_.bytes(), dtype_,
                     algorithm_of(text_of(algorithm, "algorithm")),
                     std::string(text_of(label, "label")))) {}

  [[nodiscard]] const PatchRecord& record() const noexcept { return record_; }

  /// Returns what hashes `tensor` by the record's algorithm, if the core cannot do it.
  [[nodiscard]] PatchRecord::Hash hash_of(std::span<const std::byte> tensor) const {
    if (!record_.target() || record_.target()->algorithm() != DigestAlgorithm::kSha256) return {};
    return
        [this, tensor] { return sha256_by_hashlib(digest_start(dtype_, record_.shape()), tensor); };
  }

 private:
  static DigestAlgorithm algorithm_of(std::string_view text) {
    for (const DigestAlgorithm each : {DigestAlgorithm::kXxh3_128, DigestAlgorithm::kSha256}) {
      if (text == name(each)) return each;
    }
    fail(ErrorCode::kInvalidArgument,
         "algorithm " + std::string(text) + " is not xxh3-128 or sha256");
  }

  static PatchRecord read(std::span<const std::byte> record, std::span<const std::byte> values,
                          Dtype dtype, DigestAlgorithm algorithm, std::string label) {
    const Interrupt interrupt = python_interrupt();
    const GilRelease release;
    return {record, values, dtype, algorithm, std::move(label), interrupt};
  }

  BufferView record_bytes_;
  BufferView value_bytes_;
  Dtype dtype_;
  PatchRecord record_;
};

std::unique_ptr<PyPatchRecord> make_record(py::handle record, py::handle values, py::handle dtype,
                                           py::handle algorithm, py::handle label) {
  return std::make_unique<PyPatchRecord>(record, values, dtype, algorithm, label);
}

const char* kind_of(const PyPatchRecord& self) {
  switch (self.record().kind()) {
    case PatchKind::kRemoved:
      return "removed";
    case PatchKind::kWhole:
      return "whole";
    case PatchKind::kBlocks:
      break;
  }
  return "blocks";
}

py::dict codes_of(const PyPatchRecord& self) {
  const PatchCodes& codes = self.record().codes();
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

py::str check(const PyPatchRecord& self, py::handle tensor) {
  const BufferView bytes(tensor, "tensor");
  const PatchRecord::Hash hash = self.hash_of(bytes.bytes());
  const Interrupt interrupt = python_interrupt();
  PatchState state{};
  {
    const GilRelease release;
    state = self.record().check(bytes.bytes(), hash, interrupt);
  }
  return state == PatchState::kBase ? "base" : "applied";
}

void apply(const PyPatchRecord& self, py::handle tensor) {
  const WritableBuffer bytes(tensor);
  const PatchRecord::Hash hash = self.hash_of(bytes.bytes());
  const Interrupt interrupt = python_interrupt();
  const GilRelease release;
  self.record().apply(bytes.bytes(), hash, interrupt);
}

/// Applies records that were checked. All of them, unless one of the tensors has changed since.
void apply_all(const py::list& pairs) {
  std::vector<const PatchRecord*> records;
  std::vector<std::unique_ptr<WritableBuffer>> tensors;
  for (const py::handle pair : pairs) {
    const auto both = py::cast<py::tuple>(pair);
    records.push_back(&py::cast<const PyPatchRecord&>(both[0]).record());
    tensors.push_back(std::make_unique<WritableBuffer>(both[1]));
  }
  const GilRelease release;
  for (std::size_t i = 0; i < records.size(); ++i) records[i]->apply(tensors[i]->bytes());
}

void overwrite(const PyPatchRecord& self, py::handle tensor) {
  const WritableBuffer bytes(tensor);
  const GilRelease release;
  self.record().overwrite(bytes.bytes());
}

void positions(const PyPatchRecord& self, py::handle out) {
  const WritableBuffer view(out);
  const std::span<std::int64_t> to = view.values<std::int64_t>();
  const GilRelease release;
  self.record().positions(to);
}

void new_values(const PyPatchRecord& self, py::handle base, py::handle out) {
  const WritableBuffer view(out);
  std::optional<BufferView> bytes;
  if (!base.is_none()) bytes.emplace(base, "base");
  const std::span<const std::byte> old_bytes =
      bytes ? bytes->bytes() : std::span<const std::byte>();
  const GilRelease release;
  self.record().new_units(old_bytes, view.bytes());
}

}  // namespace

void register_patch(py::module_& module) {
  define(module, "_encode_patch", &encode, py::arg("base"), py::arg("target"), py::arg("dtype"),
         py::arg("shape"), py::kw_only(), py::arg("set_values") = false,
         py::arg("base_digest") = py::none(), py::arg("target_digest") = py::none(),
         "_encode_patch(base, target, dtype, shape, *, set_values=False, base_digest=None, "
         "target_digest=None)\n--\n\nReturns the record that makes target of base, its values, and "
         "how many units it changes.");
  define(module, "_whole_patch", &whole, py::arg("target"), py::arg("dtype"), py::arg("shape"),
         py::kw_only(), py::arg("base_digest"), py::arg("target_digest") = py::none(),
         "_whole_patch(target, dtype, shape, *, base_digest, target_digest=None)\n--\n\n"
         "Returns the record of a whole tensor; for None, of a removed one.");
  define(module, "_apply_patches", &apply_all, py::arg("pairs"),
         "_apply_patches(pairs)\n--\n\nApplies pairs of a _PatchRecord and a tensor, in their "
         "order. Ctrl-C does not interrupt it.");
  Class<PyPatchRecord>(module, "_PatchRecord", "A record and its values, which are valid.")
      .constructor(&make_record, py::arg("record"), py::arg("values"), py::arg("dtype"),
                   py::arg("algorithm"), py::arg("label") = "")
      .property("kind", &kind_of)
      .property("unit", [](const PyPatchRecord& self) { return self.record().unit(); })
      .property("units", [](const PyPatchRecord& self) { return self.record().units(); })
      .property("shape",
                [](const PyPatchRecord& self) { return py::tuple(to_list(self.record().shape())); })
      .property("changed", [](const PyPatchRecord& self) { return self.record().changed(); })
      .property("has_base",
                [](const PyPatchRecord& self) { return self.record().base().has_value(); })
      .property("base", [](const PyPatchRecord& self) { return to_text(self.record().base()); })
      .property("target", [](const PyPatchRecord& self) { return to_text(self.record().target()); })
      .property("codes", &codes_of)
      .method("check", &check, py::arg("tensor"),
              "check(tensor)\n--\n\nReturns \"base\" or \"applied\".")
      .method("apply", &apply, py::arg("tensor"),
              "apply(tensor)\n--\n\nChanges the tensor, or raises and leaves it as it was.")
      .method("overwrite", &overwrite, py::arg("tensor"),
              "overwrite(tensor)\n--\n\nWrites the new units without looking at the old ones.")
      .method("positions", &positions, py::arg("out"),
              "positions(out)\n--\n\nWrites the numbers of the changed units as int64.")
      .method("new_values", &new_values, py::arg("base"), py::arg("out"),
              "new_values(base, out)\n--\n\nWrites the new units at these positions.");
}

}  // namespace safetensors::python
