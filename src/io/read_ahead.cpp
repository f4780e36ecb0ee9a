#include "io/read_ahead.hpp"

#include <algorithm>

namespace safetensors::io {

std::uint64_t read_ahead_limit(std::uint64_t touched, std::uint64_t nbytes,
                               std::uint64_t memory_available) noexcept {
  // Who uses less than an eighth may well leave the rest alone, and would wait for the disk.
  constexpr std::uint64_t kFewest = std::uint64_t{4} << 20;
  constexpr std::uint64_t kMost = std::uint64_t{256} << 20;
  // Keeps a fast disk busy while the thread sleeps.
  constexpr std::uint64_t kStretch = std::uint64_t{64} << 20;
  if (touched < std::clamp(nbytes / 8, kFewest, kMost)) return 0;
  if (nbytes > memory_available) return 0;  // the system is busy enough with giving pages back
  return touched + std::min(touched, kStretch);
}

}  // namespace safetensors::io
