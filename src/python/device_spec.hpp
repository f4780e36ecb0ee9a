// The devices that callers name.
#pragma once

#include <string>

#include "python.hpp"

namespace safetensors::python {

/// A device to load tensors to. Each call parses its argument `device` once.
struct DeviceSpec {
  enum class Kind : std::uint8_t {
    kCpu,
    kMeta,
    kCuda,
    kOther,    ///< such as "mps" or "xpu:1"
    kOfIndex,  ///< given as an int: torch or Paddle chooses the type
  };
  Kind kind = Kind::kCpu;
  std::string type = "cpu";  ///< the name without the index: "cuda"; empty for kOfIndex
  std::uint64_t index = 0;
  py::object object = py::str("cpu");  ///< what the framework takes: a str, an int, a torch.device

  /// Returns "cuda:0", "mps", or "1" for an index.
  [[nodiscard]] std::string name() const;
};

/// Parses a str, an int, a torch.device, or None, which is the CPU. Does not import torch.
/// Raises SafetensorError for a device that upstream does not know, and ValueError for an index
/// that is not a number, both with upstream's texts.
[[nodiscard]] DeviceSpec parse_device(py::handle object);

/// Returns the device under Paddle's name for it. Paddle calls CUDA devices gpu:0, gpu:1.
[[nodiscard]] DeviceSpec to_paddle_device(const DeviceSpec& device);

/// Asks torch for the type of a device that is given by its index alone; returns others unchanged.
/// Imports torch.
[[nodiscard]] DeviceSpec resolve_index(const DeviceSpec& device);

}  // namespace safetensors::python
