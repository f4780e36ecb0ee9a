// Temporary files that killed saves have left.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#if defined(__linux__)
#include <linux/magic.h>
#else
#include <sys/mount.h>
#include <sys/param.h>
#endif

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <ctime>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "io/posix/fd.hpp"
#include "io/posix/own_file.hpp"
#include "io/posix/page_cache.hpp"
#include "io/temporary_name.hpp"
#include "safetensors/detail/folder.hpp"
#include "safetensors/detail/saved_names.hpp"
#include "safetensors/error.hpp"
#include "safetensors/sums.hpp"

namespace safetensors::io {
namespace {

using detail::Folder;
using detail::OwnName;

constexpr std::size_t kMaxNamesPerSave = 10'000;
constexpr std::int64_t kRestPerLook = 100;
// For a save, where locks may not show that a process on another machine writes: it may pause.
constexpr std::chrono::hours kRecentForSave{24};

/// Returns the stems of a file's and of its sums' temporary files.
std::vector<std::string> stems_of(const OwnName& file) {
  std::vector<std::string> stems = {OwnName::stem_of(file.text())};
  if (file.text().ends_with(detail::kModelFileSuffix)) {
    const std::string begin =
        file.text().substr(0, file.text().size() - detail::kModelFileSuffix.size());
    stems.push_back(OwnName::stem_of(begin + kSumsSuffix));
  }
  return stems;
}

/// Removes a file of this user that no process has locked. Returns whether it did.
bool remove_unused(const Folder& folder, const OwnName& name, std::chrono::seconds recent) {
  try {
    const Fd fd(folder.open_file(name, true, true));
    if (!fd.is_open()) return false;
    struct stat found{};
    if (::fstat(fd.get(), &found) != 0) return false;
    if (recent.count() > 0 && found.st_mtime >= std::time(nullptr) - recent.count()) return false;
    return ::flock(fd.get(), LOCK_EX | LOCK_NB) == 0 && folder.remove(name, fd.get());
  } catch (const Error&) {  // a link, a folder, another user's, or one that may not be removed
    return false;
  }
}

std::int64_t now_ns() {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

}  // namespace

void remove_stale_of(const detail::OwnPlace& target) noexcept try {
  static constinit std::atomic<std::int64_t> next_look{0};
  const std::int64_t begin = now_ns();
  if (begin < next_look.load(std::memory_order_relaxed)) return;
  const bool found = target.folder.remove_stale(&target.name, kRecentForSave, kMaxNamesPerSave) > 0;
  const std::int64_t end = now_ns();
  next_look.store(found ? end : end + kRestPerLook * (end - begin), std::memory_order_relaxed);
  // NOLINTNEXTLINE(bugprone-empty-catch): the save says what is wrong with the folder
} catch (const std::exception&) {
}

}  // namespace safetensors::io

namespace safetensors::detail {

bool Folder::sees_all_locks() const noexcept {
#if defined(__linux__)
  constexpr std::uint32_t kXfs = 0x58465342;
  constexpr std::uint32_t kZfs = 0x2FC12FC1;
  constexpr std::uint32_t kBcachefs = 0xCA451A4E;
  constexpr std::array kLocal = {
      std::uint32_t{EXT4_SUPER_MAGIC}, kXfs,     std::uint32_t{BTRFS_SUPER_MAGIC},
      std::uint32_t{TMPFS_MAGIC},      kZfs,     std::uint32_t{OVERLAYFS_SUPER_MAGIC},
      std::uint32_t{F2FS_SUPER_MAGIC}, kBcachefs};
  return std::ranges::find(kLocal, io::file_system_of(descriptor())) != kLocal.end();
#elif defined(MNT_LOCAL)
  struct statfs system{};
  return ::fstatfs(descriptor(), &system) == 0 && (system.f_flags & MNT_LOCAL) != 0;
#else
  return false;
#endif
}

std::size_t Folder::remove_stale(const OwnName* only, std::chrono::seconds recent,
                                 std::size_t most) const {
  const std::vector<std::string> stems =
      only == nullptr ? std::vector<std::string>() : io::stems_of(*only);
  std::vector<std::string> found;
  visit([&](const char* name) {
    const std::string_view stem = OwnName::stem_in(name, io::kTemporaryKind);
    const bool is_ours = only != nullptr
                             ? std::ranges::find(stems, stem) != stems.end()
                             : stem.ends_with(kModelFileSuffix) || stem.ends_with(kSumsSuffix) ||
                                   OwnName::is_shortened(stem);
    if (is_ours) found.emplace_back(name);
    return --most > 0;
  });
  if (found.empty()) return 0;
  if (sees_all_locks()) recent = std::chrono::seconds(0);
  return static_cast<std::size_t>(std::ranges::count_if(found, [&](const std::string& name) {
    return io::remove_unused(*this, OwnName(name), recent);
  }));
}

}  // namespace safetensors::detail
