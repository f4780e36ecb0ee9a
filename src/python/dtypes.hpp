// What torch, NumPy and ml_dtypes call the types of the format: one table for all bindings.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "dlpack.hpp"
#include "errors.hpp"
#include "python.hpp"

namespace safetensors::python {

/// The names of one type outside this library. A name is nullptr where that library lacks the type.
struct DtypeNames {
  Dtype dtype;
  /// Attribute of the module `torch`. TensorSpec takes types by this name or that of ml_dtypes,
  /// whatever the framework.
  const char* torch;
  /// Position of `torch`, from 1, in the list of upstream's error text, which has another order.
  unsigned position;
  dlpack::DataType dlpack;  ///< of a torch tensor
  /// Type string of NumPy's array interface. Little-endian, as files are, on every machine.
  const char* numpy;
  const char* ml_dtypes;  ///< attribute of the module `ml_dtypes`, for types that NumPy lacks
};

/// Returns the row of a type.
[[nodiscard]] const DtypeNames& names_of(Dtype dtype) noexcept;

/// Returns the type that torch exchanges under this DLPack type; nothing if the format lacks it.
[[nodiscard]] std::optional<Dtype> dtype_of_dlpack(dlpack::DataType type) noexcept;

/// Returns the type that torch or ml_dtypes has under this name. Raises SafetensorError for an
/// unknown name.
[[nodiscard]] Dtype dtype_of_name(std::string_view name);

/// Throws Error kUnsupportedDtype, which names the tensor, its file and its type, and says why it
/// cannot be returned.
[[noreturn]] void fail_dtype(Dtype dtype, const std::string& why, const TensorOrigin& origin);

/// Returns the type that files have under this name, a str. Raises SafetensorError for an unknown
/// name.
[[nodiscard]] Dtype dtype_of_code(py::handle name);

/// Returns the name that files use, such as "F32", as a str that all callers share.
[[nodiscard]] py::object to_str(Dtype dtype);

}  // namespace safetensors::python
