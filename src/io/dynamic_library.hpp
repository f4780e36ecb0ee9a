// A shared library that is found at run time.
#pragma once

#include <optional>

namespace safetensors::io {

/// Stays loaded until the process ends. Cheap to copy.
class DynamicLibrary {
 public:
  /// That of this name or path: the one in use if the process has one, else as the system finds it.
  /// None when there is none, or it cannot be loaded.
  [[nodiscard]] static std::optional<DynamicLibrary> open(const char* name) noexcept;
  /// Its symbol's address; nullptr when it has none of that name.
  [[nodiscard]] void* symbol(const char* name) const noexcept;

 private:
  explicit DynamicLibrary(void* handle) noexcept : handle_(handle) {}
  void* handle_;
};

}  // namespace safetensors::io
