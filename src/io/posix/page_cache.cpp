#include "io/posix/page_cache.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>

#include "io/io_policy.hpp"
#include "io/system.hpp"

#if defined(__linux__)
#include <linux/magic.h>
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

/// Uses mincore on temporary mappings of 64 MiB each: 6 ms for each gigabyte. It counts all pages
/// of a file that this process neither owns nor may write.
std::optional<std::uint64_t> ask_mincore(int fd, std::uint64_t begin,
                                         std::uint64_t nbytes) noexcept {
  std::array<unsigned char, std::size_t{16} << 10> pages{};
  const std::uint64_t window_nbytes = pages.size() * page_size();
  const std::uint64_t end = begin + nbytes;
  std::uint64_t resident = 0;
  for (std::uint64_t at = begin / page_size() * page_size(); at < end; at += window_nbytes) {
    const auto size = static_cast<std::size_t>(std::min(window_nbytes, end - at));
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

/// Returns how much of a range is in the page cache; nothing if the system does not say.
std::optional<std::uint64_t> count_cached(int fd, std::uint64_t begin,
                                          std::uint64_t nbytes) noexcept {
  const auto found = ask_cachestat(fd, begin, nbytes);
  // In files of overlayfs, which containers have, cachestat counts nothing.
  if (found && (*found != 0 || file_system_of(fd) != OVERLAYFS_SUPER_MAGIC)) return found;
  return ask_mincore(fd, begin, nbytes);
}
#endif

}  // namespace

#if defined(__linux__)
std::uint32_t file_system_of(int fd) noexcept {
  struct statfs status{};
  return ::fstatfs(fd, &status) == 0 ? static_cast<std::uint32_t>(status.f_type) : 0;
}
#endif

bool is_remote(int fd) noexcept {
#if defined(__linux__)
  return is_remote_type(file_system_of(fd));
#elif defined(__APPLE__)
  struct statfs status{};
  return ::fstatfs(fd, &status) == 0 && (status.f_flags & MNT_LOCAL) == 0;
#else
  (void)fd;
  return false;
#endif
}

bool is_half_cached(int fd, std::uint64_t nbytes) noexcept {
#if defined(__linux__)
  constexpr std::uint64_t kSamples = 64;
  constexpr std::uint64_t kSample = std::uint64_t{256} << 10;
  if (nbytes == 0) return true;
  const bool is_small = nbytes <= kSamples * kSample;
  const std::uint64_t count = is_small ? 1 : kSamples;
  const std::uint64_t length = is_small ? nbytes : kSample;
  std::uint64_t cached = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    cached += count_cached(fd, nbytes / count * i, length).value_or(length);
  }
  return cached >= count * length / 2;
#else
  (void)fd;
  (void)nbytes;
  return true;
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
  return count_cached(fd, 0, nbytes).value_or(nbytes);
#else
  (void)fd;
  return nbytes;
#endif
}

}  // namespace safetensors::io
