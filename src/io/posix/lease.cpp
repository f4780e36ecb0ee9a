#include "io/posix/lease.hpp"

#include <fcntl.h>
#if defined(__linux__)
#include <linux/magic.h>
#endif

#include <cerrno>
#include <csignal>
#include <cstdint>

#include "io/posix/page_cache.hpp"

namespace safetensors::io {
namespace {

constexpr std::string_view kUnknown = "the system does not tell whether it is in use";

#if defined(__linux__)
std::string_view take_lease(int descriptor) noexcept {
  const std::uint32_t system = file_system_of(descriptor);
  if (system == 0 || system == OVERLAYFS_SUPER_MAGIC) return kUnknown;
  // The system sends this signal when another process waits. By default, it is ignored.
  if (::fcntl(descriptor, F_SETSIG, SIGURG) == 0 && ::fcntl(descriptor, F_SETLEASE, F_WRLCK) == 0) {
    return {};
  }
  return errno == EAGAIN ? "it is open or mapped" : kUnknown;
}
#endif

}  // namespace

#if defined(__linux__)

Lease::Lease(int descriptor) noexcept : descriptor_(descriptor), refusal_(take_lease(descriptor)) {}

Lease::~Lease() {
  if (descriptor_ >= 0 && refusal_.empty()) (void)::fcntl(descriptor_, F_SETLEASE, F_UNLCK);
}

bool Lease::is_held() const noexcept {
  return refusal_.empty() && ::fcntl(descriptor_, F_GETLEASE) == F_WRLCK;
}

#else

Lease::Lease(int) noexcept : descriptor_(-1), refusal_(kUnknown) {}
Lease::~Lease() = default;
bool Lease::is_held() const noexcept { return false; }

#endif

}  // namespace safetensors::io
