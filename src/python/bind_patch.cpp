// _encode_patch and _whole_patch: what changed between two states of a tensor.
#include <optional>
#include <span>
#include <vector>

#include "dtypes.hpp"
#include "errors.hpp"
#include "fast_def.hpp"
#include "gil.hpp"
#include "register.hpp"
#include "safetensors/detail/patch_entries.hpp"

namespace safetensors::python {
namespace {

std::optional<Digest> optional_digest(py::handle text, const char* argument) {
  if (text.is_none()) return std::nullopt;
  return Digest::parse(text_of(text, argument));
}

py::bytes to_bytes(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

py::object encode(py::handle base, py::handle target, py::handle dtype, py::handle shape,
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
  if (!encoded.base || !encoded.target) return py::none();  // the tensors are equal
  return py::make_tuple(to_bytes(encoded.record), to_bytes(encoded.values), to_int(encoded.changed),
                        to_str(encoded.base->text()), to_str(encoded.target->text()));
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

}  // namespace

void register_patch(py::module_& module) {
  module.add_object("_RECORD_PREFIX", to_str(detail::kRecordPrefix));
  module.add_object("_VALUES_PREFIX", to_str(detail::kValuesPrefix));
  module.add_object("_MAX_LABEL_NBYTES", to_int(detail::kMaxLabelSize));
  define(module, "_encode_patch", &encode, py::arg("base"), py::arg("target"), py::arg("dtype"),
         py::arg("shape"), py::kw_only(), py::arg("set_values") = false,
         py::arg("base_digest") = py::none(), py::arg("target_digest") = py::none(),
         "_encode_patch(base, target, dtype, shape, *, set_values=False, base_digest=None, "
         "target_digest=None)\n--\n\nReturns the record that makes target of base, its values, how "
         "many units it changes, and both digests; None if they are equal.");
  define(module, "_whole_patch", &whole, py::arg("target"), py::arg("dtype"), py::arg("shape"),
         py::kw_only(), py::arg("base_digest"), py::arg("target_digest") = py::none(),
         "_whole_patch(target, dtype, shape, *, base_digest, target_digest=None)\n--\n\n"
         "Returns the record of a whole tensor; for None, of a removed one.");
}

}  // namespace safetensors::python
