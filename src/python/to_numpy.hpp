// Tensors as NumPy arrays, without a copy.
#pragma once

#include "python.hpp"

namespace safetensors::python {

/// A Python object that holds the memory behind arrays, and shows it by the buffer protocol.
[[nodiscard]] py::object make_memory(std::shared_ptr<const void> owner, std::span<std::byte> bytes);

/// How arrays show the types that NumPy has through ml_dtypes only.
enum class MlDtypesMode : std::uint8_t {
  kMlDtypes,  ///< as ml_dtypes has them
  kBits,      ///< as unsigned integers of the same size, for frameworks that take those; not F4
};

/// An array over the view's bytes; `memory` (made by make_memory, or null to make one) keeps them.
/// F4 is unpacked, since NumPy has no type of half a byte: that copies.
/// Raises SafetensorError when NumPy, with ml_dtypes if installed, has no such type.
[[nodiscard]] py::object to_numpy(const TensorView& view, py::object memory = {},
                                  MlDtypesMode mode = MlDtypesMode::kMlDtypes);
[[nodiscard]] bool has_array_type(Dtype dtype, MlDtypesMode mode) noexcept;

/// The array's type in a file; nothing when it has none, or is not stored as files store it.
[[nodiscard]] std::optional<Dtype> dtype_of_array(py::handle array);

}  // namespace safetensors::python
