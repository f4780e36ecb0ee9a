// Tensors of torch, made and read through DLPack, without linking torch.
#pragma once

#include <vector>

#include "open_file.hpp"
#include "python.hpp"

namespace safetensors::python {

/// Imports torch, which takes a while the first time. Raises ImportError when there is none.
void import_torch();

/// A CPU tensor over the view's bytes, which it keeps; its storage is exactly those bytes.
/// Raises SafetensorError when torch has no such type.
[[nodiscard]] py::object to_torch(const TensorView& view);
/// Likewise over bytes in the machine's own order, of torch's shape (see torch_shape).
[[nodiscard]] py::object to_torch(Dtype dtype, std::span<const std::int64_t> shape,
                                  std::span<std::byte> bytes, std::shared_ptr<const void> owner);

/// torch's dtype object. Raises SafetensorError when torch has no such type.
[[nodiscard]] py::object torch_dtype(Dtype dtype);

/// The shape torch gives the tensor: that of the file, but for F4, which torch packs in pairs
/// along the last axis. Raises SafetensorError when the pairs do not come out even.
[[nodiscard]] std::vector<std::int64_t> torch_shape(Dtype dtype,
                                                    std::span<const std::uint64_t> shape);

/// A tensor of the file on a device that is not the CPU.
[[nodiscard]] py::object to_torch_device(const SafeOpen& file, const TensorInfo& info,
                                         const DeviceSpec& device);

/// A CPU tensor moved to the device; itself when that is the CPU.
[[nodiscard]] py::object move_to_device(py::object tensor, const DeviceSpec& device);

/// Views of the tensors in `tensors`, a dict of str to Tensor; nothing when one of them is not a
/// plain contiguous CPU tensor with memory of its own. `shapes` backs the views, and so does
/// `tensors`: a copy of the dict, which other threads may change.
struct TorchTensors {
  std::vector<TensorData> data;
  std::vector<std::vector<std::uint64_t>> shapes;
  py::dict tensors;
};
[[nodiscard]] std::optional<TorchTensors> collect_torch(const py::dict& tensors);

/// For tests: whether the C exchange API is used where torch has it. True at first.
void use_torch_exchange(bool use);

}  // namespace safetensors::python
