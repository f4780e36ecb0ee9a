#include "io/posix/page_cache.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/io_policy.hpp"
#include "io/system.hpp"

#if defined(__linux__)
#include <sys/syscall.h>
#include <sys/vfs.h>
#elif defined(__APPLE__)
#include <sys/mount.h>
#include <sys/param.h>
#endif

namespace safetensors::io {
namespace {

#if defined(__linux__)
/// Uses cachestat (Linux 6.5): up to 3 ms for each gigabyte.
///
/// Requires: `nbytes` is not 0, which the call takes for the rest of the file.
std::optional<std::uint64_t> ask_cachestat(int fd, std::uint64_t begin,
                                           std::uint64_t nbytes) noexcept {
  constexpr long kCachestat = 451;  // on all architectures
  struct Range {
    std::uint64_t offset;
    std::uint64_t length;
  } range{begin, nbytes};
  struct Pages {
    std::uint64_t cached, dirty, in_writeback, evicted, recently_evicted;
  } pages{};
  if (::syscall(kCachestat, fd, &range, &pages, 0U) != 0) return std::nullopt;
  return std::min(pages.cached * page_size(), nbytes);
}

/// Uses mincore on temporary mappings of 256 MiB each: 6 ms for each gigabyte.
std::optional<std::uint64_t> ask_mincore(int fd, std::uint64_t nbytes) {
  constexpr std::uint64_t kWindow = std::uint64_t{256} << 20;
  std::vector<unsigned char> pages(kWindow / page_size());
  std::uint64_t resident = 0;
  for (std::uint64_t at = 0; at < nbytes; at += kWindow) {
    const auto size = static_cast<std::size_t>(std::min(kWindow, nbytes - at));
    void* const window = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, static_cast<off_t>(at));
    if (window == MAP_FAILED) return std::nullopt;
    const bool is_known = ::mincore(window, size, pages.data()) == 0;
    ::munmap(window, size);
    if (!is_known) return std::nullopt;
    const auto last = pages.begin() + static_cast<std::ptrdiff_t>((size - 1) / page_size() + 1);
    resident += static_cast<std::uint64_t>(
        std::count_if(pages.begin(), last, [](unsigned char page) { return (page & 1) != 0; }));
  }
  return std::min(resident * page_size(), nbytes);
}
#endif

}  // namespace

bool is_remote(int fd) noexcept {
#if defined(__linux__)
  struct statfs status{};
  // On some architectures f_type is a signed field of 32 bits.
  return ::fstatfs(fd, &status) == 0 &&
         is_remote_type(static_cast<std::uint64_t>(status.f_type) & 0xFFFF'FFFFU);
#elif defined(__APPLE__)
  struct statfs status{};
  return ::fstatfs(fd, &status) == 0 && (status.f_flags & MNT_LOCAL) == 0;
#else
  (void)fd;
  return false;
#endif
}

std::optional<bool> is_half_cached(int fd, std::uint64_t nbytes) noexcept {
#if defined(__linux__)
  constexpr std::uint64_t kSamples = 64;
  constexpr std::uint64_t kSample = std::uint64_t{256} << 10;
  if (nbytes == 0) return true;
  const bool is_small = nbytes <= kSamples * kSample;
  const std::uint64_t count = is_small ? 1 : kSamples;
  const std::uint64_t length = is_small ? nbytes : kSample;
  std::uint64_t cached = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    const auto found = ask_cachestat(fd, nbytes / count * i, length);
    if (!found) return std::nullopt;
    cached += *found;
  }
  return cached >= count * length / 2;
#else
  (void)fd;
  (void)nbytes;
  return std::nullopt;
#endif
}

bool is_cached(int fd, std::uint64_t offset, std::uint64_t nbytes) noexcept {
#if defined(__linux__)
  return ask_cachestat(fd, offset, nbytes) == nbytes;
#else
  (void)fd;
  (void)offset;
  (void)nbytes;
  return false;
#endif
}

std::uint64_t cached_nbytes(int fd, std::uint64_t nbytes) noexcept {
#if defined(__linux__)
  if (nbytes == 0) return 0;
  if (const auto cached = ask_cachestat(fd, 0, nbytes)) return *cached;
  try {
    return ask_mincore(fd, nbytes).value_or(nbytes);
  } catch (const std::bad_alloc&) {
    return nbytes;
  }
#else
  (void)fd;
  return nbytes;
#endif
}

}  // namespace safetensors::io
