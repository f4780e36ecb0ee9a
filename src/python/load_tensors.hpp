// Loading many tensors at once, to torch's tensors on any device.
#pragma once

#include <optional>
#include <vector>

#include "open_file.hpp"
#include "python.hpp"

namespace safetensors::python {

/// A tensor that is asked for, whole or a part of it.
struct Request {
  std::shared_ptr<const OpenFile> file;  // keeps the name
  const TensorInfo* info = nullptr;
  std::optional<ByteRuns> runs;     ///< of a part
  std::vector<std::int64_t> shape;  ///< torch's, of what is asked for
  std::uint64_t nbytes = 0;
  py::object tensor;          ///< where it goes; empty: one is made
  std::uint64_t address = 0;  ///< of its memory; 0: the tensor is asked
};

/// `index` is None or an expression of integers, slices, "..." and None. Raises SafetensorError for
/// others, for a name the file lacks, and for a type that torch lacks.
[[nodiscard]] Request make_request(std::shared_ptr<const OpenFile> file, std::string_view name,
                                   py::handle index);
[[nodiscard]] Request make_request(std::shared_ptr<const OpenFile> file, const TensorInfo& info);
/// A part that is known as runs; `shape` is that of the part in the file's elements.
[[nodiscard]] Request make_request(std::shared_ptr<const OpenFile> file, const TensorInfo& info,
                                   ByteRuns runs, std::span<const std::uint64_t> shape);

/// The module of what loads ask of torch, which tests replace.
[[nodiscard]] py::module_ torch_hooks();

/// How the bytes of tensors get to a device.
enum class TransferMode : std::uint8_t {
  kMeta,   ///< not at all: the meta device has no bytes
  kHost,   ///< the core reads them into CPU memory
  kCuda,   ///< the core's engine copies them to a CUDA device
  kTorch,  ///< torch copies them
};

/// A device and how tensors get there.
struct LoadTarget {
  TransferMode mode = TransferMode::kHost;
  DeviceSpec device;

  /// Returns the index of a CUDA device. An index that no device can have is left to torch or the
  /// driver to refuse.
  [[nodiscard]] int index() const noexcept;
  /// Returns the device as the `Device` of safetensors._torch.
  [[nodiscard]] py::object to_torch() const;
};
/// Whether torch was built for AMD devices, which it also calls "cuda". The engine does not know
/// them: torch copies to them.
[[nodiscard]] bool is_rocm_torch();
/// Imports torch for a device that is given by its index alone, and for a CUDA device.
[[nodiscard]] LoadTarget load_target_of(const DeviceSpec& device);
/// Returns the core's device for the modes kHost and kCuda.
[[nodiscard]] safetensors::Device engine_device(const LoadTarget& target);

/// Makes the tensors that are not there: of memory of ours on the CPU, as get_tensor() does; else
/// by torch on the target's device, whose memory is warmed first. Raises SafetensorError while a
/// graph is being captured, MemoryError, and what torch raises when memory runs out.
void make_tensors(std::span<Request> requests, const LoadTarget& target);

/// The current stream of torch's for the device; nullptr but for CUDA.
[[nodiscard]] void* current_stream(const LoadTarget& target);

/// The load's view of a request with a tensor; `source` is its file's number.
[[nodiscard]] LoadTensor load_tensor_of(const Request& request, std::uint32_t source);
/// What goes to one device, by any way but torch's.
struct RequestGroup {
  const LoadTarget& target;
  std::span<Request> requests;
};
/// Loads the groups' tensors, side by side. When it raises, nothing of it is under way any more.
void load_requests(std::span<const RequestGroup> groups, const Load::Progress& progress);
/// Loads to one device.
inline void load_requests(std::span<Request> requests, const LoadTarget& target) {
  const RequestGroup group{target, requests};
  load_requests({&group, 1}, {});
}

}  // namespace safetensors::python
