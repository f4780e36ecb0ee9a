#include "dtypes.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <string>
#include <vector>

#include "fast_def.hpp"
#include "register.hpp"
#include "safetensors/cast.hpp"

namespace safetensors::python {
namespace {

using dlpack::DataType;

// In the order of the enumeration.
constexpr DtypeNames kRows[] = {
    {Dtype::kU64, "uint64", 9, {dlpack::kUInt, 64, 1}, "<u8", nullptr},
    {Dtype::kI64, "int64", 8, {dlpack::kInt, 64, 1}, "<i8", nullptr},
    {Dtype::kF64, "float64", 12, {dlpack::kFloat, 64, 1}, "<f8", nullptr},
    {Dtype::kC64, "complex64", 20, {dlpack::kComplex, 64, 1}, "<c8", nullptr},
    {Dtype::kF32, "float32", 11, {dlpack::kFloat, 32, 1}, "<f4", nullptr},
    {Dtype::kU32, "uint32", 7, {dlpack::kUInt, 32, 1}, "<u4", nullptr},
    {Dtype::kI32, "int32", 6, {dlpack::kInt, 32, 1}, "<i4", nullptr},
    {Dtype::kBF16, "bfloat16", 13, {dlpack::kBfloat, 16, 1}, nullptr, "bfloat16"},
    {Dtype::kF16, "float16", 10, {dlpack::kFloat, 16, 1}, "<f2", nullptr},
    {Dtype::kU16, "uint16", 5, {dlpack::kUInt, 16, 1}, "<u2", nullptr},
    {Dtype::kI16, "int16", 4, {dlpack::kInt, 16, 1}, "<i2", nullptr},
    {Dtype::kF8E5M2FNUZ,
     "float8_e5m2fnuz",
     17,
     {dlpack::kFloat8E5M2FNUZ, 8, 1},
     nullptr,
     "float8_e5m2fnuz"},
    {Dtype::kF8E4M3FNUZ,
     "float8_e4m3fnuz",
     15,
     {dlpack::kFloat8E4M3FNUZ, 8, 1},
     nullptr,
     "float8_e4m3fnuz"},
    {Dtype::kF8E8M0,
     "float8_e8m0fnu",
     18,
     {dlpack::kFloat8E8M0FNU, 8, 1},
     nullptr,
     "float8_e8m0fnu"},
    {Dtype::kF8E4M3, "float8_e4m3fn", 14, {dlpack::kFloat8E4M3FN, 8, 1}, nullptr, "float8_e4m3fn"},
    {Dtype::kF8E5M2, "float8_e5m2", 16, {dlpack::kFloat8E5M2, 8, 1}, nullptr, "float8_e5m2"},
    {Dtype::kI8, "int8", 2, {dlpack::kInt, 8, 1}, "|i1", nullptr},
    {Dtype::kU8, "uint8", 3, {dlpack::kUInt, 8, 1}, "|u1", nullptr},
    {Dtype::kF6E3M2, nullptr, 0, {}, nullptr, nullptr},
    {Dtype::kF6E2M3, nullptr, 0, {}, nullptr, nullptr},
    // torch's type is a pair of elements. One of ml_dtypes takes a whole byte for each.
    {Dtype::kF4, "float4_e2m1fn_x2", 19, {dlpack::kFloat4E2M1FN, 4, 2}, nullptr, "float4_e2m1fn"},
    {Dtype::kBool, "bool", 1, {dlpack::kBool, 8, 1}, "|b1", nullptr},
};

constexpr bool rows_are_in_order() {
  for (std::size_t i = 0; i < std::size(kRows); ++i) {
    if (kRows[i].dtype != static_cast<Dtype>(i)) return false;
  }
  return true;
}
static_assert(std::size(kRows) == kDtypeCount, "a type of the format has no row");
static_assert(rows_are_in_order());

/// Returns "bool, int8, ...": the names that TensorSpec takes, as upstream lists them.
std::string known_names() {
  std::vector<const DtypeNames*> rows;
  for (const DtypeNames& row : kRows) {
    if (row.torch != nullptr) rows.push_back(&row);
  }
  std::sort(rows.begin(), rows.end(),
            [](const auto* a, const auto* b) { return a->position < b->position; });
  std::string text;
  for (const DtypeNames* const row : rows) {
    text += (text.empty() ? "" : ", ") + std::string(row->torch);
  }
  return text;
}

/// Strong references, set once while the module is made and never released.
std::array<PyObject*, kDtypeCount> file_names;

py::dict table() {
  py::dict rows;
  for (const DtypeNames& names : kRows) {
    py::dict row;
    row["bits"] = bit_size(names.dtype);
    row["torch"] = names.torch;
    row["numpy"] = names.numpy;
    row["ml_dtypes"] = names.ml_dtypes;
    row["castable"] = is_castable(names.dtype);
    rows[to_str(names.dtype)] = row;
  }
  return rows;
}

py::bytes to_float_bytes(py::handle dtype_name, py::handle data) {
  const Dtype dtype = dtype_of_code(dtype_name);
  const BufferView elements(data, "data");
  const std::size_t count = elements.bytes().size() * 8 / bit_size(dtype);
  auto floats = py::reinterpret_steal<py::bytes>(
      PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(count * sizeof(float))));
  if (!floats) throw py::error_already_set();
  to_float(dtype, elements.bytes(),
           {reinterpret_cast<float*>(PyBytes_AS_STRING(floats.ptr())), count});
  return floats;
}

}  // namespace

const DtypeNames& names_of(Dtype dtype) noexcept { return kRows[static_cast<std::size_t>(dtype)]; }

Dtype dtype_of_code(py::handle name) {
  const std::string_view text = text_of(name, "dtype");
  const std::optional<Dtype> dtype = parse_dtype(text);
  if (!dtype) {
    raise_safetensor_error(ErrorCode::kUnsupportedDtype,
                           "dtype " + std::string(text) + " is invalid");
  }
  return *dtype;
}

void fail_dtype(Dtype dtype, const std::string& why, const TensorOrigin& origin) {
  throw tensor_error(ErrorCode::kUnsupportedDtype,
                     "Dtype not understood: " + std::string(name(dtype)) + ": " + why, origin);
}

std::optional<Dtype> dtype_of_dlpack(DataType type) noexcept {
  for (const DtypeNames& row : kRows) {
    if (row.torch != nullptr && row.dlpack == type) return row.dtype;
  }
  return std::nullopt;
}

Dtype dtype_of_name(std::string_view name) {
  for (const DtypeNames& row : kRows) {
    if (row.torch != nullptr && name == row.torch) return row.dtype;
    if (row.ml_dtypes != nullptr && name == row.ml_dtypes) return row.dtype;
  }
  raise_safetensor_error(
      ErrorCode::kUnsupportedDtype,
      "Unknown dtype \"" + std::string(name) + "\". Supported dtypes: " + known_names());
}

py::object to_str(Dtype dtype) {
  return py::reinterpret_borrow<py::object>(file_names[static_cast<std::size_t>(dtype)]);
}

void register_dtypes(py::module_& module) {
  for (const Dtype dtype : all_dtypes()) {
    file_names[static_cast<std::size_t>(dtype)] = to_unicode(name(dtype)).release().ptr();
  }
  define(
      module, "_dtypes", &table,
      "_dtypes()\n--\n\n"
      "Returns the types of the format, by their names in files, in layout order. For each:\n"
      "bits: the size of an element.\n"
      "torch: the name of torch's type, which TensorSpec takes; None if torch has no such type.\n"
      "numpy: NumPy's little-endian type string; None if NumPy has no such type.\n"
      "ml_dtypes: the name that ml_dtypes gives a type that NumPy lacks, or None.\n"
      "castable: whether casts lead to it.");
  define(module, "_to_float", &to_float_bytes, py::arg("dtype"), py::arg("data"),
         "_to_float(dtype, data)\n--\n\n"
         "Returns the elements of `data`, floats of 4 to 32 bits as files store them, as float32.");
}

}  // namespace safetensors::python
