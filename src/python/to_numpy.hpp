// NumPy arrays over tensors, without a copy. All functions require the GIL.
#pragma once

#include "dtypes.hpp"
#include "python.hpp"

namespace safetensors::python {

/// Returns a Python object that owns the memory behind arrays, and exports it by the buffer
/// protocol. Arrays keep a reference to it, and so neither to the file's header nor to its handle.
[[nodiscard]] py::object make_memory(std::shared_ptr<const void> owner, std::span<std::byte> bytes);

/// How arrays represent types that NumPy itself lacks.
enum class MlDtypesMode : std::uint8_t {
  kMlDtypes,  ///< as types of ml_dtypes
  kBits,      ///< as unsigned integers of the same size; not possible for F4
};

/// Returns an array over the view's bytes. `memory`, made by make_memory(), owns them; without it,
/// one is made. F4 is copied to one element a byte, because NumPy has no type of half a byte.
/// `file` is the view's, if there is one, for errors. Raises SafetensorError if NumPy, with
/// ml_dtypes if that is installed, has no such type.
[[nodiscard]] py::object to_numpy(const TensorView& view,
                                  const std::filesystem::path* file = nullptr,
                                  py::object memory = {},
                                  MlDtypesMode mode = MlDtypesMode::kMlDtypes);
/// Returns whether to_numpy() can represent the type, if ml_dtypes is installed.
[[nodiscard]] bool has_array_type(Dtype dtype, MlDtypesMode mode) noexcept;

/// Returns the type that the array has in a file; nothing if there is no such type, or if the
/// array's byte order or packing differs from that of files.
[[nodiscard]] std::optional<Dtype> dtype_of_array(py::handle array);

}  // namespace safetensors::python
