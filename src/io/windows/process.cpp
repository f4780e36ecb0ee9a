#include "io/process.hpp"

#include <algorithm>
#include <thread>

namespace safetensors::io {

std::uint64_t fork_generation() noexcept { return 0; }

unsigned processor_count() noexcept {
  static const unsigned count = std::max(1U, std::thread::hardware_concurrency());
  return count;
}

}  // namespace safetensors::io
