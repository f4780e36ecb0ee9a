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

}  // namespace safetensors::io
