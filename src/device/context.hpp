// One device of one driver: what all loads to it share.
#pragma once

#include <mutex>
#include <vector>

#include "device/driver.hpp"

namespace safetensors::device {

/// Never destroyed: copies may be under way while the process ends. Thread safe.
class Context {
 public:
  /// The one for this device, made when it is first asked for. Throws Error kDevice.
  [[nodiscard]] static Context& of(const Driver& driver, int index);
  Context(const Driver& driver, int index);
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  [[nodiscard]] const Driver& driver() const noexcept { return driver_; }
  [[nodiscard]] int index() const noexcept { return index_; }
  [[nodiscard]] const Facts& facts() const noexcept { return facts_; }
  [[nodiscard]] void* handle() const noexcept { return handle_; }
  /// Whether this process made it, and not one that it was forked from.
  [[nodiscard]] bool is_own() const noexcept;
  /// Throws Error kDevice when it is not this process's own.
  void check_process() const;

  /// The stream for the reader of that number, of `count` streams. Entered.
  [[nodiscard]] Stream stream(unsigned reader, unsigned count);

 private:
  const Driver& driver_;
  int index_;
  std::uint64_t generation_;
  void* handle_;
  Facts facts_;
  std::mutex mutex_;
  std::vector<Stream> streams_;
};

}  // namespace safetensors::device
