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

/// How tensors come to a device.
enum class Way : std::uint8_t {
  kNothing,  ///< the meta device: there are no bytes
  kHost,     ///< read to where they belong
  kCuda,     ///< by the engine
  kTorch,    ///< by torch's own copies
};

/// A device, as loads see it.
struct Target {
  Way way = Way::kHost;
  int index = 0;      ///< of a CUDA device
  py::object object;  ///< what torch.empty takes
};
/// Whether torch was built for AMD devices, which it also calls "cuda". The engine does not know
/// them: torch copies to them.
[[nodiscard]] bool is_rocm_torch();
[[nodiscard]] Target target_of(const Device& device);
/// The engine's device, by the host's or the CUDA way.
[[nodiscard]] safetensors::Device engine_device(const Target& target);

/// Makes the tensors that are not there: of memory of ours on the CPU, as get_tensor() does; else
/// by torch on the target's device, whose memory is warmed first. Raises SafetensorError while a
/// graph is being captured, MemoryError, and what torch raises when memory runs out.
void make_tensors(std::span<Request> requests, const Target& target);

/// The current stream of torch's for the device; nullptr but for CUDA.
[[nodiscard]] void* current_stream(const Target& target);

/// The load's view of a request with a tensor; `source` is its file's number.
[[nodiscard]] LoadTensor load_tensor_of(const Request& request, std::uint32_t source);
/// What goes to one device, by any way but torch's.
struct RequestGroup {
  const Target& target;
  std::span<Request> requests;
};
/// Loads the groups' tensors, side by side. When it raises, nothing of it is under way any more.
void load_requests(std::span<const RequestGroup> groups, const Load::Progress& progress);
/// Loads to one device.
inline void load_requests(std::span<Request> requests, const Target& target) {
  const RequestGroup group{target, requests};
  load_requests({&group, 1}, {});
}

}  // namespace safetensors::python
