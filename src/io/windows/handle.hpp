// Kernel objects, and the errors of calls for them. Includes <windows.h>, in the form that all
// files here need.
#pragma once

#if !defined(NOMINMAX)
#define NOMINMAX
#endif
#if !defined(WIN32_LEAN_AND_MEAN)
#define WIN32_LEAN_AND_MEAN
#endif
#include <windows.h>

#include <utility>

namespace safetensors::io {

/// Owns a kernel object's handle and closes it. Holds nullptr if it is not open.
class Handle {
 public:
  Handle() noexcept = default;
  /// Takes a handle; both INVALID_HANDLE_VALUE and nullptr mean that there is none.
  explicit Handle(HANDLE handle) noexcept
      : handle_(handle == INVALID_HANDLE_VALUE ? nullptr : handle) {}
  Handle(Handle&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Handle& operator=(Handle&& other) noexcept {
    Handle(std::move(other)).swap(*this);
    return *this;
  }
  ~Handle() {
    if (handle_ != nullptr) ::CloseHandle(handle_);
  }

  [[nodiscard]] HANDLE get() const noexcept { return handle_; }
  [[nodiscard]] bool is_open() const noexcept { return handle_ != nullptr; }
  void swap(Handle& other) noexcept { std::swap(handle_, other.handle_); }

 private:
  HANDLE handle_ = nullptr;
};

/// Returns the handle of a descriptor, which keeps it; INVALID_HANDLE_VALUE if there is no such
/// descriptor.
[[nodiscard]] HANDLE handle_of(int descriptor);

/// Returns another handle of the same open file, with the same position. It is not open if the
/// system refuses that.
[[nodiscard]] Handle duplicate(HANDLE handle);

/// Returns the errno closest to a result of GetLastError(); EINVAL if none is close, as the C
/// run-time does.
[[nodiscard]] int errno_of(DWORD error) noexcept;

/// Returns errno_of(GetLastError()).
[[nodiscard]] int last_errno() noexcept;

}  // namespace safetensors::io
