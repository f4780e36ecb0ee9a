#include "io/read_ahead.hpp"

#include <algorithm>

#include "io/io_policy.hpp"
#include "io/parallel.hpp"

namespace safetensors::io {

void discard(const ByteSource& source, std::uint64_t begin, std::uint64_t end) {
  const Buffer scratch(std::size_t{1} << 20);  // small: it stays in the processor's cache
  for (std::uint64_t at = begin; at < end; at += scratch.size()) {
    const std::uint64_t nbytes = std::min<std::uint64_t>(scratch.size(), end - at);
    source.read_at(at, scratch.bytes().first(static_cast<std::size_t>(nbytes)));
  }
}

void warm(const ByteSource& source, std::uint64_t begin, std::uint64_t end,
          const Interrupt& interrupt) {
  constexpr std::uint64_t kStretch = std::uint64_t{16} << 20;
  const std::uint64_t nbytes = end - begin;
  parallel_for(
      static_cast<std::size_t>((nbytes + kStretch - 1) / kStretch), nbytes,
      [&](std::size_t i) {
        discard(source, begin + i * kStretch, std::min(begin + (i + 1) * kStretch, end));
      },
      interrupt, readers_of(source, nbytes));
}

std::uint64_t read_ahead_limit(std::uint64_t touched, std::uint64_t nbytes,
                               std::uint64_t memory_available) noexcept {
  // A program that has used less than an eighth may never use the rest, and its own reads would
  // have to wait for the disk.
  constexpr std::uint64_t kMinTouched = std::uint64_t{4} << 20;
  constexpr std::uint64_t kMaxTouched = std::uint64_t{256} << 20;
  // Keeps a fast disk busy while the thread sleeps.
  constexpr std::uint64_t kMaxAhead = std::uint64_t{64} << 20;
  if (touched < std::clamp(nbytes / 8, kMinTouched, kMaxTouched)) return 0;
  if (nbytes > room_in(memory_available)) return 0;  // the system is already evicting pages
  return touched + std::min(touched, kMaxAhead);
}

#if !defined(__linux__)  // posix/read_ahead.cpp has Linux's
bool is_resident(std::span<const std::byte>) noexcept { return false; }

void read_ahead(const std::shared_ptr<const MappedFile>&, std::uint64_t) noexcept {}
#endif

}  // namespace safetensors::io
