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
#include "patch_fields.hpp"
#include "register.hpp"

namespace safetensors::python {
namespace {

std::optional<Digest> optional_digest(py::handle text, const char* argument) {
  if (text.is_none()) return std::nullopt;
  return Digest::parse(text_of(text, argument));
}

py::bytes to_bytes(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

py::tuple encode(py::handle base, py::handle target, py::handle dtype, py::handle shape,
                 bool set_values, py::handle base_digest, py::handle target_digest) {
  const BufferView old_bytes(base, "base");
  const BufferView new_bytes(target, "target");
  const Dtype type = dtype_of_code(dtype);
  const std::vector<std::uint64_t> dims = dims_of(shape);
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
  const std::vector<std::uint64_t> dims = dims_of(shape);
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

py::str check(const PyPatchRecord& self, py::handle tensor) {
  const BufferView bytes(tensor, "tensor");
  const PatchRecord::Hash hash = self.hash_of(bytes.bytes());
  const Interrupt interrupt = python_interrupt();
  PatchState state{};
  {
    const GilRelease release;
    state = self.record().check(bytes.bytes(), hash, interrupt);
  }
  return to_str(state_name(state));
}

void apply(const PyPatchRecord& self, py::handle tensor) {
  const WritableBuffer bytes(tensor);
  const PatchRecord::Hash hash = self.hash_of(bytes.bytes());
  const Interrupt interrupt = python_interrupt();
  const GilRelease release;
  self.record().apply(bytes.bytes(), hash, interrupt);
}

void overwrite(const PyPatchRecord& self, py::handle tensor) {
  const WritableBuffer bytes(tensor);
  const GilRelease release;
  self.record().overwrite(bytes.bytes());
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
  Class<PyPatchRecord> record(module, "_PatchRecord", "A record and its values, which are valid.");
  record
      .constructor(&make_record, py::arg("record"), py::arg("values"), py::arg("dtype"),
                   py::arg("algorithm"), py::arg("label") = "")
      .property("units", [](const PyPatchRecord& self) { return self.record().units(); })
      .property("shape",
                [](const PyPatchRecord& self) { return py::tuple(to_list(self.record().shape())); })
      .property("changed", [](const PyPatchRecord& self) { return self.record().changed(); })
      .method("check", &check, py::arg("tensor"),
              "check(tensor)\n--\n\nReturns \"base\" or \"applied\".")
      .method("apply", &apply, py::arg("tensor"),
              "apply(tensor)\n--\n\nChanges the tensor, or raises and leaves it as it was.")
      .method("overwrite", &overwrite, py::arg("tensor"),
              "overwrite(tensor)\n--\n\nWrites the new units without looking at the old ones.");
  add_record(record);
}

}  // namespace safetensors::python
