// The state that all loads to one CUDA device share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "device/cuda_driver.hpp"

namespace safetensors::device {

/// The primary context of one device.
///
/// Thread safety: all members may be called by several threads at once.
/// Lifetime: never destroyed, as copies may be in flight while the process ends.
class Context {
 public:
  /// Returns the context of a device and makes it on the first call.
  ///
  /// Throws: Error kDevice, also if this process was forked from one that used any device.
  [[nodiscard]] static Context& of(const CudaDriver& driver, int index);
  Context(const CudaDriver& driver, int index);
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  [[nodiscard]] const CudaDriver& driver() const noexcept { return driver_; }
  [[nodiscard]] const DeviceProperties& properties() const noexcept { return properties_; }
  [[nodiscard]] void* handle() const noexcept { return handle_; }
  /// Returns whether this process made the context. A forked child has a copy that it cannot use.
  [[nodiscard]] bool is_own() const noexcept;
  /// Throws: Error kDevice if is_own() is false.
  void check_process() const;

  /// Returns the stream of a reader. Readers share `count` streams in turn.
  ///
  /// Requires: the context is current.
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

/// An event that is recorded once, on a caller's stream. Copies of a batch start after it.
class RecordedEvent {
 public:
  /// Makes no event.
  RecordedEvent() noexcept = default;
  /// Records an event after the work that is on `stream` at the time of the call.
  ///
  /// Throws: Error kDevice; kInvalidArgument while the stream is being captured into a graph.
  RecordedEvent(Context& context, Stream stream);
  RecordedEvent(RecordedEvent&& other) noexcept
      : context_(std::exchange(other.context_, nullptr)), event_(other.event_) {}
  RecordedEvent& operator=(RecordedEvent&& other) noexcept;
  ~RecordedEvent();

  [[nodiscard]] Event get() const noexcept { return event_; }

 private:
  Context* context_ = nullptr;
  Event event_ = nullptr;
};

}  // namespace safetensors::device
