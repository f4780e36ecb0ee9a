// Path arguments of the C interface.
#pragma once

#include <filesystem>
#include <string>

#include "c/guard.hpp"

namespace safetensors::c {

/// Returns a path argument. Throws: Error kInvalidArgument if it is NULL.
inline std::filesystem::path path_of(const char* path, const char* what) {
  check_pointer(path, 1, what);
#if defined(_WIN32)
  // UTF-8. A path made from char would be in the system's code page.
  return reinterpret_cast<const char8_t*>(path);
#else
  return path;
#endif
}

}  // namespace safetensors::c
