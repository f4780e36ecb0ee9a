#include "io/process.hpp"

#include <algorithm>
#include <thread>

namespace safetensors::io {

unsigned processor_count() noexcept {
  static const unsigned count = std::max(1U, std::thread::hardware_concurrency());
  return count;
}

std::size_t page_size() noexcept { return 4096; }  // on all processors that Windows runs on

bool copy_on_fork(std::span<std::byte> /*pages*/, bool /*is_copied*/) noexcept {
  return true;  // there is no fork
}

}  // namespace safetensors::io
