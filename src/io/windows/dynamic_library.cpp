#include "io/dynamic_library.hpp"

#include <windows.h>

namespace safetensors::io {

std::optional<DynamicLibrary> DynamicLibrary::open(const char* name) noexcept {
  // A bare name is searched in the system's directory only: anybody may have written to the current
  // one.
  const bool is_path = name[0] != '\0' && name[1] == ':';
  HMODULE const module = is_path ? ::LoadLibraryA(name)
                                 : ::LoadLibraryExA(name, nullptr, LOAD_LIBRARY_SEARCH_SYSTEM32);
  if (module == nullptr) return std::nullopt;
  return DynamicLibrary(module);
}

void* DynamicLibrary::symbol(const char* name) const noexcept {
  return reinterpret_cast<void*>(::GetProcAddress(static_cast<HMODULE>(handle_), name));
}

}  // namespace safetensors::io
