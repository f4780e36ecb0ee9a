// A shared library that is loaded at run time.
#pragma once

#include <optional>

namespace safetensors::io {

/// A loaded library, which stays loaded until the process ends. Cheap to copy.
class DynamicLibrary {
 public:
  /// Returns the library with this name or path: the process's copy if it has loaded one, else the
  /// one that the system finds. Returns nothing if there is none, or it cannot be loaded.
  [[nodiscard]] static std::optional<DynamicLibrary> open(const char* name) noexcept;
  /// Returns the address of a symbol; nullptr if the library has no symbol with this name.
  [[nodiscard]] void* symbol(const char* name) const noexcept;

 private:
  explicit DynamicLibrary(void* handle) noexcept : handle_(handle) {}
  void* handle_;
};

}  // namespace safetensors::io
