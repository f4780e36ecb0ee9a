#include "tensor_spec.hpp"

#include "dtypes.hpp"
#include "errors.hpp"
#include "fast_def.hpp"
#include "not_pickled.hpp"
#include "register.hpp"

namespace safetensors::python {
namespace {

std::vector<std::uint64_t> shape_of(py::handle object, bool packs_pairs) {
  if (PyUnicode_Check(object.ptr())) {
    throw py::type_error("argument 'shape': Can't extract `str` to `Vec`");
  }
  if (PySequence_Check(object.ptr()) == 0) raise_wrong_type(object, "shape", "Sequence");
  std::vector<std::uint64_t> shape = dims_of(object);
  if (packs_pairs && !shape.empty()) {
    if (shape.back() > UINT64_MAX / 2) {
      raise_safetensor_error(ErrorCode::kOverflow, "F4 last-dim " + std::to_string(shape.back()) +
                                                       " doubled to logical shape overflows usize");
    }
    shape.back() *= 2;
  }
  return shape;
}

}  // namespace

TensorSpec::TensorSpec(py::handle dtype, py::handle shape, py::handle data_ptr, py::handle data_len)
    : dtype_(dtype_of_name(text_of(dtype, "dtype"))),
      shape_(shape_of(shape, text_of(dtype, "dtype") == names_of(Dtype::kF4).torch)),
      data_ptr_(size_of(data_ptr, "data_ptr")),
      data_len_(size_of(data_len, "data_len")) {}

TensorData TensorSpec::data(std::string_view tensor_name) const {
  return {.name = tensor_name,
          .shape = shape_,
          .bytes = {reinterpret_cast<const std::byte*>(static_cast<std::uintptr_t>(data_ptr_)),
                    static_cast<std::size_t>(data_len_)},
          .dtype = dtype_};
}

void register_specs(py::module_& module) {
  Class<TensorSpec>(
      module, "TensorSpec",
      "A tensor to be written: its type, shape, and the address of its bytes.\n\n"
      "The memory must stay valid and unchanged until serialize or serialize_file returns.")
      .method("__repr__",
              [](const TensorSpec& spec) {
                return py::str("TensorSpec(dtype={!r}, shape={!r}, data_ptr={}, data_len={})")
                    .format(to_unicode(name(spec.dtype())), to_list(spec.shape()), spec.data_ptr(),
                            spec.data_len());
              })
      .constructor(
          [](py::handle dtype, py::handle shape, py::handle data_ptr, py::handle data_len) {
            return TensorSpec(dtype, shape, data_ptr, data_len);
          },
          py::kw_only(), py::arg("dtype"), py::arg("shape"), py::arg("data_ptr"),
          py::arg("data_len"),
          "__init__(self, *, dtype, shape, data_ptr, data_len)\n--\n\n"
          "dtype: torch's name of the type, such as \"float32\" or \"bfloat16\", or the name of\n"
          "ml_dtypes.\n"
          "shape: a sequence of int. For torch's \"float4_e2m1fn_x2\", which packs pairs, that of\n"
          "the pairs: its last dimension is doubled.\n"
          "data_ptr: address of the first byte; C order, little-endian.\n"
          "data_len: number of bytes.")
      .property(
          "dtype", [](const TensorSpec& spec) { return to_unicode(name(spec.dtype())); },
          "The type as files name it: \"F32\", \"BF16\".")
      .property(
          "shape", [](const TensorSpec& spec) { return to_list(spec.shape()); },
          "The shape in a file: a list of int.")
      .property("data_ptr", &TensorSpec::data_ptr, "Address of the first byte.")
      .property("data_len", &TensorSpec::data_len, "Number of bytes.")
      .method("__reduce__", &refuse_pickle<kHasAddress>)
      .attr("__module__") = "safetensors";
}

}  // namespace safetensors::python
