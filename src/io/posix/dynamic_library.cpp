#include "io/dynamic_library.hpp"

#include <dlfcn.h>

namespace safetensors::io {

std::optional<DynamicLibrary> DynamicLibrary::open(const char* name) noexcept {
  void* handle = ::dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  if (handle == nullptr) handle = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return std::nullopt;
  return DynamicLibrary(handle);
}

void* DynamicLibrary::symbol(const char* name) const noexcept { return ::dlsym(handle_, name); }

}  // namespace safetensors::io
