// Helpers of tests that use POSIX calls.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#if defined(__linux__)
#include <sched.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#endif

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <stdexcept>
#include <string>

#include "support.hpp"

namespace test {

/// Returns the number of open descriptors.
inline std::size_t open_descriptors() {
  std::size_t count = 0;
  for (int fd = 0; fd < 1024; ++fd) count += ::fcntl(fd, F_GETFD) != -1 ? 1U : 0U;
  return count;
}

inline struct stat stat_of(const fs::path& path) {
  struct stat status{};
  if (::stat(path.c_str(), &status) != 0) throw std::runtime_error("no " + path.string());
  return status;
}

inline mode_t mode_of(const fs::path& path) { return stat_of(path).st_mode & 07777; }

/// Runs `work` in a child process and returns its exit status, or 256 and the signal that ended
/// it. `work` returns the status.
template <typename Work>
int in_child(const Work& work) {
  const pid_t child = ::fork();
  if (child < 0) throw std::runtime_error("cannot fork");
  if (child == 0) {
    int status = 255;
    try {
      status = work();
    } catch (...) {
      status = 254;
    }
#if defined(__SANITIZE_THREAD__)
    // Its _exit() takes threads of the parent for some that the child has not joined.
    ::syscall(SYS_exit_group, status);
#endif
    ::_exit(status);
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status);
}

#if defined(__linux__)
/// Mounts an overlay file system at `folder / "all"` that this process alone sees, a child. Returns
/// whether the system permits that.
inline bool mount_overlay(const fs::path& folder) {
  if (::unshare(CLONE_NEWNS) != 0) return false;
  if (::mount("none", "/", "none", MS_REC | MS_PRIVATE, nullptr) != 0) return false;
  for (const char* name : {"layers", "all"}) fs::create_directory(folder / name);
  if (::mount("tmpfs", (folder / "layers").c_str(), "tmpfs", 0, nullptr) != 0) return false;
  std::string options;
  for (const char* name : {"lowerdir", "upperdir", "workdir"}) {
    fs::create_directory(folder / "layers" / name);
    options += "," + std::string(name) + "=" + (folder / "layers" / name).string();
  }
  return ::mount("overlay", (folder / "all").c_str(), "overlay", 0, options.c_str() + 1) == 0;
}
#endif

inline double cpu_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

/// Returns the processor time of `work`, the shortest of a few runs.
template <typename Work>
double least_cpu_seconds(const Work& work) {
  double best = 1e9;
  for (int i = 0; i < 3; ++i) {
    const double start = cpu_seconds();
    work();
    best = std::min(best, cpu_seconds() - start);
  }
  return best;
}

/// Sets the umask; the destructor restores it.
class Umask {
 public:
  explicit Umask(mode_t mask) : old_(::umask(mask)) {}
  Umask(const Umask&) = delete;
  Umask& operator=(const Umask&) = delete;
  ~Umask() { ::umask(old_); }

 private:
  mode_t old_;
};

/// Moves a folder to a path beside it, `moved`, and makes a new one at its path, with a file
/// `text_at` that says "of another model": what somebody else may do while the folder is held open.
inline void replace_folder(const fs::path& folder, const fs::path& text_at) {
  fs::rename(folder, folder.parent_path() / "moved");
  fs::create_directory(folder);
  write_text(text_at, "of another model");
}

}  // namespace test
