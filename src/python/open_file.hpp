// An open file with the framework and device it was opened for.
#pragma once

#include <memory>
#include <mutex>
#include <utility>

#include "device_spec.hpp"
#include "python.hpp"

namespace safetensors::python {

enum class Framework : std::uint8_t { kTorch, kNumpy, kTensorflow, kFlax, kMlx, kPaddle };

/// Both raise SafetensorError for an unknown name.
[[nodiscard]] Framework framework_of(py::handle object);
[[nodiscard]] const char* name(Framework framework) noexcept;
[[nodiscard]] Backend backend_of(py::handle object);

/// Immutable, shared by a handle and the slices taken from it.
class OpenFile {
 public:
  OpenFile(SafeOpen file, Framework framework, DeviceSpec device);

  [[nodiscard]] const SafeOpen& file() const noexcept { return file_; }
  [[nodiscard]] Framework framework() const noexcept { return framework_; }
  [[nodiscard]] const DeviceSpec& device() const noexcept { return device_; }
  [[nodiscard]] bool is_mapped() const noexcept { return file_.backend() == Backend::kMmap; }

  /// The tensor as an object of the framework, on the device.
  [[nodiscard]] py::object to_framework(const TensorInfo& info) const;
  /// A view that was read or mapped before, likewise.
  [[nodiscard]] py::object to_framework(const TensorView& view) const;
  /// What to_array made of a tensor of type `dtype`, or a part of it, as an object of the
  /// framework, on the device.
  [[nodiscard]] py::object to_framework(py::object array, Dtype dtype) const;
  /// The tensor in memory; the GIL is released while it is read.
  [[nodiscard]] TensorView view(const TensorInfo& info) const;
  /// Likewise all of them.
  [[nodiscard]] std::vector<TensorView> views() const;
  /// The view as an array of NumPy, or a tensor of torch, on the CPU.
  [[nodiscard]] py::object to_array(const TensorView& view) const;

 private:
  SafeOpen file_;
  Framework framework_;
  DeviceSpec device_;
  py::object memory_;     // what NumPy arrays over the mapping hold
  py::object converter_;  // from a NumPy array and its dtype to the framework, for the rest
};

/// The object behind `safe_open`. Only closing changes it.
class Handle {
 public:
  explicit Handle(std::shared_ptr<const OpenFile> file) : file_(std::move(file)) {}

  /// Raises SafetensorError once closed.
  [[nodiscard]] std::shared_ptr<const OpenFile> file() const;
  void close();
  /// Its path, framework and number of tensors; or path, and that it is closed.
  [[nodiscard]] std::string describe() const;

 private:
  mutable std::mutex mutex_;  // held for a copy only
  std::shared_ptr<const OpenFile> file_;
  std::filesystem::path path_;  // once closed
};

}  // namespace safetensors::python
