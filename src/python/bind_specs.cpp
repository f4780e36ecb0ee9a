// TensorSpec.
#include "define.hpp"
#include "errors.hpp"
#include "tensor_spec.hpp"

namespace safetensors::python {
namespace {

struct Word {
  const char* word;
  Dtype dtype;
};

// Upstream's words, in the order in which its error text lists them.
constexpr Word kWords[] = {
    {"bool", Dtype::kBool},
    {"int8", Dtype::kI8},
    {"uint8", Dtype::kU8},
    {"int16", Dtype::kI16},
    {"uint16", Dtype::kU16},
    {"int32", Dtype::kI32},
    {"uint32", Dtype::kU32},
    {"int64", Dtype::kI64},
    {"uint64", Dtype::kU64},
    {"float16", Dtype::kF16},
    {"float32", Dtype::kF32},
    {"float64", Dtype::kF64},
    {"bfloat16", Dtype::kBF16},
    {"float8_e4m3fn", Dtype::kF8E4M3},
    {"float8_e4m3fnuz", Dtype::kF8E4M3FNUZ},
    {"float8_e5m2", Dtype::kF8E5M2},
    {"float8_e5m2fnuz", Dtype::kF8E5M2FNUZ},
    {"float8_e8m0fnu", Dtype::kF8E8M0},
    {"float4_e2m1fn_x2", Dtype::kF4},
    {"complex64", Dtype::kC64},
};

Dtype dtype_of_word(std::string_view word) {
  std::string known;
  for (const Word& row : kWords) {
    if (word == row.word) return row.dtype;
    known += (known.empty() ? "" : ", ") + std::string(row.word);
  }
  raise_safetensor_error("Unknown dtype \"" + std::string(word) + "\". Supported dtypes: " + known);
}

std::vector<std::uint64_t> shape_of(py::handle object, bool packs_pairs) {
  if (PyUnicode_Check(object.ptr())) {
    throw py::type_error("argument 'shape': Can't extract `str` to `Vec`");
  }
  if (PySequence_Check(object.ptr()) == 0) raise_wrong_type(object, "shape", "Sequence");
  std::vector<std::uint64_t> shape;
  for (const py::handle item : py::reinterpret_borrow<py::sequence>(object)) {
    shape.push_back(size_of(item, "shape"));
  }
  if (packs_pairs && !shape.empty()) {
    if (shape.back() > UINT64_MAX / 2) {
      raise_safetensor_error("F4 last-dim " + std::to_string(shape.back()) +
                             " doubled to logical shape overflows usize");
    }
    shape.back() *= 2;
  }
  return shape;
}

}  // namespace

TensorSpec::TensorSpec(py::handle dtype, py::handle shape, py::handle data_ptr, py::handle data_len)
    : dtype_(dtype_of_word(text_of(dtype, "dtype"))),
      shape_(shape_of(shape, dtype_ == Dtype::kF4)),
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
      "A tensor to be written: type, shape, and where its bytes are.\n\n"
      "The memory must stay valid and unchanged until serialize or serialize_file is done.")
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
          "dtype: a framework's word, as \"float32\" or \"bfloat16\".\n"
          "shape: a sequence of int. For \"float4_e2m1fn_x2\", which packs pairs, that of the\n"
          "pairs: its last dimension is doubled.\n"
          "data_ptr: address of the first byte; C order, little-endian.\n"
          "data_len: number of bytes.")
      .property(
          "dtype", [](const TensorSpec& spec) { return to_unicode(name(spec.dtype())); },
          "The type as a file has it: \"F32\", \"BF16\".")
      .property(
          "shape", [](const TensorSpec& spec) { return to_list(spec.shape()); },
          "The shape as a file has it: a list of int.")
      .property("data_ptr", &TensorSpec::data_ptr, "Address of the first byte.")
      .property("data_len", &TensorSpec::data_len, "Number of bytes.")
      .attr("__module__") = "safetensors";
}

}  // namespace safetensors::python
