// The interface between the fault-injecting library and the tests that control it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace faults {

enum class Kind : std::uint8_t {
  kOpen,
  kRead,
  kWrite,
  kMapFile,
  kMapMemory,
  kReserve,   ///< fallocate
  kTruncate,  ///< ftruncate
  kSync,      ///< fsync, fdatasync
  kRename,
  kUnlink,
  kClose,
  kStatus,     ///< stat, lstat, fstat, fstatat, fstatfs
  kLink,       ///< readlink, readlinkat
  kDuplicate,  ///< fcntl with F_DUPFD
  kMode,       ///< fchmod, fchown
  kAttribute,  ///< getxattr, lgetxattr, fsetxattr, fremovexattr
  kCopy,       ///< copy_file_range
  kShare,      ///< ioctl with FICLONERANGE
  kLock,       ///< flock
  kSeek,       ///< lseek
};

enum class Effect : std::uint8_t {
  kNone,        ///< no fault
  kError,       ///< fails with `error`
  kHalf,        ///< reads or writes half of the requested bytes
  kOneByte,     ///< reads or writes one byte
  kNothing,     ///< reads or writes no byte, without an error
  kKillBefore,  ///< the process dies before the call
  kKillAfter,   ///< the process dies after the call
};

/// Which call fails, and how.
struct Plan {
  Effect effect = Effect::kNone;
  int error = 0;
  std::size_t nth = 0;     ///< which call, counted from 0
  bool onward = false;     ///< and all later ones of its kind
  bool no_rename = false;  ///< besides, every rename fails with EXDEV: not its file system's way
  bool no_copy = false;    ///< besides, every copy_file_range fails with EXDEV
};

/// A recorded call.
struct Call {
  Kind kind = Kind::kOpen;
  int fd = -1;          ///< that it was made on, or that opening gave
  int flags = 0;        ///< of open
  char path[256] = {};  ///< of open, rename (from), unlink, stat
};

constexpr std::size_t kMaxCalls = 4096;

}  // namespace faults

// Weak, so that the tests start without the library and report that it is missing.
extern "C" {
/// Starts recording calls, of all threads. Not thread safe itself.
__attribute__((weak)) void faults_begin(const faults::Plan* plan);
/// Stops recording. Returns the number of calls.
__attribute__((weak)) std::size_t faults_end();
/// Returns the calls since faults_begin.
__attribute__((weak)) const faults::Call* faults_calls();
}
