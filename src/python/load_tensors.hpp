// Loading many tensors at once, as torch tensors on any device. All functions require the GIL.
#pragma once

#include <optional>
#include <vector>

#include "open_file.hpp"
#include "python.hpp"

namespace safetensors::python {

/// A tensor to load, or a part of one.
struct Request {
  std::shared_ptr<const OpenFile> file;  ///< owns `info`
  const TensorInfo* info = nullptr;
  std::vector<ByteRuns> runs;       ///< the bytes of a part; none for a whole tensor
  std::vector<std::int64_t> shape;  ///< that torch gives the tensor or part
  std::uint64_t nbytes = 0;
  py::object tensor;          ///< the destination; empty until make_tensors() makes one
  std::uint64_t address = 0;  ///< of the destination; 0: to be read from `tensor`
};

/// Returns a request for a tensor, or for the part that `index` takes: an expression of integers,
/// slices, "...", None and lists of integers and slices; an object with a method `part(shape)` that
/// returns one; or None for all. Raises SafetensorError for another index, for a name that the file
/// lacks, and for a type that torch lacks.
[[nodiscard]] Request make_request(std::shared_ptr<const OpenFile> file, std::string_view name,
                                   py::handle index);
[[nodiscard]] Request make_request(std::shared_ptr<const OpenFile> file, const TensorInfo& info);
/// Returns a request for a part that is given as runs. `shape` counts elements of the file.
[[nodiscard]] Request make_request(std::shared_ptr<const OpenFile> file, const TensorInfo& info,
                                   std::vector<ByteRuns> runs,
                                   std::span<const std::uint64_t> shape);

/// Returns a request for a part as above, to a destination with strides: the bytes between
/// neighbours of each axis of the part.
[[nodiscard]] Request make_request(std::shared_ptr<const OpenFile> file, std::string_view name,
                                   py::handle index, std::span<const std::uint64_t> to_strides);

/// Returns safetensors._torch.transfer: the functions of torch that loads use. Tests replace them.
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
/// Returns whether torch was built for AMD devices, which it also calls "cuda". The engine does not
/// support them: torch copies to them.
[[nodiscard]] bool is_rocm_torch();
/// Returns how tensors get to the device. Imports torch for a CUDA device, and for a device that is
/// given by its index alone.
[[nodiscard]] LoadTarget load_target_of(const DeviceSpec& device);
/// Returns the core's device for the modes kHost and kCuda.
[[nodiscard]] safetensors::Device engine_device(const LoadTarget& target);

/// Makes the tensors of requests that have neither one nor an address. On the CPU the core
/// allocates their memory, as for get_tensor(); on a device torch does, after it has reserved one
/// segment for all of them. Raises SafetensorError while a CUDA graph is being captured,
/// MemoryError, and what torch raises when the device's memory runs out.
void make_tensors(std::span<Request> requests, const LoadTarget& target);

/// Returns torch's current stream for a CUDA device; nullptr for other devices.
[[nodiscard]] void* current_stream(const LoadTarget& target);

/// Returns the core's form of a request that has a tensor. `source` is the index of its file among
/// the sources of the load.
[[nodiscard]] LoadTensor load_tensor_of(const Request& request, std::uint32_t source);
/// The requests for one device, in any mode but kTorch.
struct RequestGroup {
  const LoadTarget& target;
  std::span<Request> requests;
};
/// Loads the tensors of all groups concurrently, and blocks until they are ready. Releases the GIL.
/// When it raises, no copy is in flight.
void load_requests(std::span<const RequestGroup> groups, const Load::Progress& progress);
/// The same for one device.
inline void load_requests(std::span<Request> requests, const LoadTarget& target) {
  const RequestGroup group{target, requests};
  load_requests({&group, 1}, {});
}

/// Throws Error kDamaged that names all damage of the tensors of the requests. Returns if none is
/// compared with digests, or none differs.
/// Requires: no GIL.
void fail_with_all_damage(std::span<const RequestGroup> groups);

}  // namespace safetensors::python
