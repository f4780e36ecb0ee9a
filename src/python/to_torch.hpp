// torch tensors, made and read through DLPack, without linking torch. All functions require the
// GIL.
#pragma once

#include <vector>

#include "dtypes.hpp"
#include "open_file.hpp"
#include "python.hpp"

namespace safetensors::python {

/// Imports torch. Raises ImportError if it is not installed.
void import_torch();

/// Returns a CPU tensor over the view's bytes. Its storage is exactly these bytes.
/// Lifetime: the tensor owns `view.owner()`, and so keeps the pages but not the file's handle.
/// `file` is the view's, if there is one, for errors. Raises SafetensorError if torch has no such
/// type.
[[nodiscard]] py::object to_torch(const TensorView& view,
                                  const std::filesystem::path* file = nullptr);
/// The same over bytes in the machine's byte order. `shape` is torch's (see torch_shape).
/// Requires: torch has the type.
[[nodiscard]] py::object to_torch(Dtype dtype, std::span<const std::int64_t> shape,
                                  std::span<std::byte> bytes, std::shared_ptr<const void> owner);

/// Returns torch's dtype object; an empty object if torch has no such type.
[[nodiscard]] py::object find_torch_dtype(Dtype dtype);
/// The same. Raises SafetensorError, which names the tensor, if torch has no such type.
[[nodiscard]] py::object torch_dtype(Dtype dtype, const TensorOrigin& origin);

/// Returns the shape that torch gives the tensor: that of the file, except for F4, of which torch
/// counts pairs along the last axis. Raises SafetensorError, which names the tensor, if that axis
/// is odd.
[[nodiscard]] std::vector<std::int64_t> torch_shape(Dtype dtype,
                                                    std::span<const std::uint64_t> shape,
                                                    const TensorOrigin& origin);

/// Loads a tensor to a device that is not the CPU, by torch's copy. Releases the GIL while it
/// reads.
[[nodiscard]] py::object to_torch_device(const SafeOpen& file, const TensorInfo& info,
                                         const DeviceSpec& device);

/// Returns a CPU tensor moved to the device; the same tensor if that is the CPU.
[[nodiscard]] py::object move_to_device(py::object tensor, const DeviceSpec& device);

/// The bytes of a torch tensor.
/// Lifetime: those of the tensor.
struct TorchBytes {
  std::vector<std::uint64_t> shape;  ///< as files have it
  std::span<const std::byte> bytes;
  Dtype dtype;
};

/// Returns the bytes of a plain contiguous CPU tensor; nothing for any other object.
[[nodiscard]] std::optional<TorchBytes> bytes_of_torch(py::handle tensor);

/// The bytes of torch tensors that are to be saved.
struct TorchTensors {
  std::vector<TensorData> data;  ///< points into `shapes` and `tensors`
  std::vector<std::vector<std::uint64_t>> shapes;
  py::dict tensors;  ///< a copy of the caller's dict, which other threads may change
};
/// Collects a dict of str to Tensor. Returns nothing if one of them is not a plain contiguous CPU
/// tensor, or if two share memory.
[[nodiscard]] std::optional<TorchTensors> collect_torch(const py::dict& tensors);

/// Sets whether torch's C exchange functions are used if torch has them. The default is true; tests
/// set false.
void use_torch_exchange(bool use);

}  // namespace safetensors::python
