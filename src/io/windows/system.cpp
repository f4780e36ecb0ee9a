#include "io/system.hpp"

#include <algorithm>
#include <limits>
#include <thread>

#include "io/windows/handle.hpp"

namespace safetensors::io {

unsigned processor_count() noexcept {
  static const unsigned count = std::max(1U, std::thread::hardware_concurrency());
  return count;
}

std::size_t page_size() noexcept { return 4096; }  // on all processors that Windows runs on

std::uint64_t memory_available() {
  MEMORYSTATUSEX status{};
  status.dwLength = sizeof status;
  if (::GlobalMemoryStatusEx(&status) == 0) return std::numeric_limits<std::uint64_t>::max();
  return status.ullAvailPhys;
}

bool copy_on_fork(std::span<std::byte> /*pages*/, bool /*is_copied*/) noexcept {
  return true;  // there is no fork
}

std::vector<unsigned> parse_processors(std::string_view) { return {}; }

int node_of_pci(std::string_view) { return -1; }

bool stay_on_node(int, unsigned, const std::string&) { return false; }

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
