#include <windows.h>

#include <limits>

#include "io/process.hpp"

namespace safetensors::io {

std::uint64_t memory_available() {
  MEMORYSTATUSEX status{};
  status.dwLength = sizeof status;
  if (::GlobalMemoryStatusEx(&status) == 0) return std::numeric_limits<std::uint64_t>::max();
  return status.ullAvailPhys;
}

}  // namespace safetensors::io
