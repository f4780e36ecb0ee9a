// An open file together with the framework and device that it was opened for.
#pragma once

#include <memory>
#include <mutex>
#include <utility>

#include "device_spec.hpp"
#include "errors.hpp"
#include "python.hpp"

namespace safetensors::python {

class PythonSource;

enum class Framework : std::uint8_t { kTorch, kNumpy, kTensorflow, kFlax, kMlx, kPaddle };

/// Both parse an argument, and raise SafetensorError for an unknown name.
[[nodiscard]] Framework framework_of(py::handle object);
[[nodiscard]] Backend backend_of(py::handle object);
/// Returns the name of the framework's module in this package.
[[nodiscard]] const char* name(Framework framework) noexcept;

/// Immutable, so that threads share it without a lock. A handle and the slices taken from it own it
/// together; tensors own only the memory behind them.
/// Requires: the GIL, also to destroy it.
class OpenFile {
 public:
  OpenFile(SafeOpen file, Framework framework, DeviceSpec device);

  [[nodiscard]] const SafeOpen& file() const noexcept { return file_; }
  /// Returns what errors about a tensor of the file name.
  [[nodiscard]] TensorOrigin origin_of(const TensorInfo& info) const noexcept {
    return {info.name, &file_.path()};
  }
  [[nodiscard]] Framework framework() const noexcept { return framework_; }
  [[nodiscard]] const DeviceSpec& device() const noexcept { return device_; }
  [[nodiscard]] bool is_mapped() const noexcept { return file_.backend() == Backend::kMmap; }

  /// Returns the tensor as an object of the framework, on the device.
  [[nodiscard]] py::object to_framework(const TensorInfo& info) const;
  /// The same for a view, which was read or mapped before.
  [[nodiscard]] py::object to_framework(const TensorView& view) const;
  /// The same for what to_array() returned for a tensor of this dtype and name, or a part of that.
  [[nodiscard]] py::object to_framework(py::object array, Dtype dtype, std::string_view name) const;
  /// Returns the callback that reads of the file take: Ctrl-C interrupts them.
  [[nodiscard]] Interrupt interrupt() const;
  /// Returns the source if it is a PythonSource; nullptr for others.
  [[nodiscard]] std::shared_ptr<const PythonSource> python_source() const;
  /// Returns the tensor in memory. Releases the GIL while it reads 64 KiB or more.
  [[nodiscard]] TensorView view(const TensorInfo& info) const;
  /// Returns all tensors in memory. Releases the GIL while it reads.
  [[nodiscard]] std::vector<TensorView> views() const;
  /// Returns a view of the file as a NumPy array or a torch tensor, on the CPU.
  [[nodiscard]] py::object to_array(const TensorView& view) const {
    return to_array(view, memory_);
  }
  /// The same for a view of a buffer of its own.
  [[nodiscard]] py::object buffer_to_array(const TensorView& view) const {
    return to_array(view, py::object());
  }

 private:
  [[nodiscard]] py::object to_array(const TensorView& view, py::object memory) const;

  SafeOpen file_;
  Framework framework_;
  DeviceSpec device_;
  py::object memory_;     // what NumPy arrays over the mapping own
  py::object converter_;  // for frameworks other than torch and NumPy: see _frameworks.py
};

/// The object behind `safe_open`. Only closing changes it.
class Handle {
 public:
  explicit Handle(std::shared_ptr<const OpenFile> file) : file_(std::move(file)) {}

  /// Returns the file. Raises SafetensorError after close().
  [[nodiscard]] std::shared_ptr<const OpenFile> file() const;
  void close();
  /// Visits what only this handle owns, for the garbage collector.
  [[nodiscard]] int traverse(visitproc visit, void* argument) const;
  /// Returns what errors name: the path, or the URL without secrets. Also after close().
  [[nodiscard]] std::filesystem::path path() const;
  /// Returns the path, framework and number of tensors for repr(), or the path and "closed".
  [[nodiscard]] std::string describe() const;

 private:
  // Held only to copy or swap file_. The holder does not release the GIL, and os.fork() needs it:
  // so a forked process never inherits this mutex locked.
  mutable std::mutex mutex_;
  std::shared_ptr<const OpenFile> file_;
  std::filesystem::path path_;  // set by close()
};

}  // namespace safetensors::python
