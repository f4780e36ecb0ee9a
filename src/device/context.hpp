// One device of one driver: what all loads to it share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "device/cuda_driver.hpp"

namespace safetensors::device {

/// Returns a device address, or a host address held as a number, as a pointer.
[[nodiscard]] inline void* pointer_of(std::uint64_t address) noexcept {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the purpose of this function
  return reinterpret_cast<void*>(static_cast<std::uintptr_t>(address));
}

/// Never destroyed: copies may be under way while the process ends. Thread safe.
class Context {
 public:
  /// The one for this device, made when it is first asked for. Throws Error kDevice.
  [[nodiscard]] static Context& of(const CudaDriver& driver, int index);
  Context(const CudaDriver& driver, int index);
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  [[nodiscard]] const CudaDriver& driver() const noexcept { return driver_; }
  [[nodiscard]] int index() const noexcept { return index_; }
  [[nodiscard]] const DeviceProperties& properties() const noexcept { return properties_; }
  [[nodiscard]] void* handle() const noexcept { return handle_; }
  /// Whether this process made it, and not one that it was forked from.
  [[nodiscard]] bool is_own() const noexcept;
  /// Throws Error kDevice when it is not this process's own.
  void check_process() const;

  /// The stream for the reader of that number, of `count` streams. ScopedContext.
  [[nodiscard]] Stream stream(unsigned reader, unsigned count);

 private:
  const CudaDriver& driver_;
  int index_;
  std::uint64_t generation_;
  void* handle_;
  DeviceProperties properties_;
  std::mutex mutex_;
  std::vector<Stream> streams_;
};

}  // namespace safetensors::device
