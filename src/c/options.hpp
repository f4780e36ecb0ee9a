// Structs of options and callbacks, which may be of another version of the header.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "c/guard.hpp"
#include "safetensors/buffer.hpp"
#include "safetensors/device.hpp"
#include "safetensors/safetensors.h"

namespace safetensors::c {

/// The limit of `size`: one above it is memory that was not set.
inline constexpr std::size_t kMaxStructSize = 4096;

/// Returns a copy of a struct. What an older program does not have is 0, and so must be what this
/// library does not have.
/// Throws: Error kInvalidArgument.
template <typename Struct>
[[nodiscard]] Struct options_of(const Struct* given, const char* what) {
  Struct known{};
  if (given == nullptr) return known;
  const std::size_t size = given->size;
  if (size < sizeof size || size > kMaxStructSize) {
    fail(ErrorCode::kInvalidArgument, std::string(what) + ": `size` is " + std::to_string(size) +
                                          ", which is not the size of the struct");
  }
  const auto* const bytes = reinterpret_cast<const unsigned char*>(given);
  for (std::size_t i = sizeof known; i < size; ++i) {
    if (bytes[i] == 0) continue;
    fail(ErrorCode::kInvalidArgument,
         std::string(what) +
             ": this library is older than the program, and does not know the member "
             "at byte " +
             std::to_string(i));
  }
  std::memcpy(&known, given, std::min(size, sizeof known));
  return known;
}

/// A copy of a struct of callbacks that the program hands over. Its destructor calls `release`.
/// Made before anything that can fail, so that `release` is called once in any case.
template <typename Callbacks>
class Owned : public Callbacks {
 public:
  explicit Owned(const Callbacks& given) noexcept : Callbacks(given) {}
  Owned(Owned&& from) noexcept : Callbacks(from) { from.release = nullptr; }
  Owned& operator=(Owned&&) = delete;
  ~Owned() {
    if (this->release != nullptr) this->release(this->context);
  }
};

/// Throws: Error kInvalidArgument if flags are set that a function does not have.
inline void check_flags(std::uint32_t flags, std::uint32_t known) {
  if ((flags & ~known) == 0) return;
  fail(ErrorCode::kInvalidArgument, "unknown flags: " + std::to_string(flags & ~known));
}
/// Throws: Error kInvalidArgument unless the member `reserved` of a struct is 0.
inline void check_reserved(std::uint32_t reserved) {
  if (reserved != 0) fail(ErrorCode::kInvalidArgument, "`reserved` is not 0");
}

/// Throws: Error kInvalidArgument unless a member that is 1 or 0 is one of these.
inline void check_bool(std::uint32_t value, const char* member) {
  if (value <= 1) return;
  fail(ErrorCode::kInvalidArgument,
       std::string(member) + " is " + std::to_string(value) + ", which is neither 1 nor 0");
}

/// The callbacks that watch a call.
class Watch {
 public:
  /// Throws: Error kInvalidArgument.
  explicit Watch(const safetensors_watch* watch) : watch_(options_of(watch, "watch")) {}

  [[nodiscard]] bool has_progress() const noexcept { return watch_.progress != nullptr; }
  /// Throws: Stopped.
  void show(std::uint64_t done, std::uint64_t total) const {
    if (watch_.progress != nullptr) check(watch_.progress(watch_.context, done, total));
  }
  /// Returns what throws Stopped if the program wants that.
  [[nodiscard]] Interrupt interrupt() const {
    if (watch_.interrupt == nullptr) return {};
    return [watch = watch_] { check(watch.interrupt(watch.context)); };
  }
  [[nodiscard]] Load::Progress progress() const {
    if (!has_progress()) return {};
    return [watch = *this](std::uint64_t done, std::uint64_t total) { watch.show(done, total); };
  }

 private:
  static void check(std::int32_t value) {
    if (value != 0) throw Stopped{value};
  }
  safetensors_watch watch_;
};

}  // namespace safetensors::c
