// What the fault-injecting library and the tests that steer it share.
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
  kStatus,     ///< stat, lstat, fstat
  kLink,       ///< readlink
  kDuplicate,  ///< fcntl with F_DUPFD
  kMode,       ///< fchmod, fchown
  kAttribute,  ///< getxattr, fsetxattr, fremovexattr
};

enum class Effect : std::uint8_t {
  kNone,        ///< only counts
  kError,       ///< fails with `error`
  kHalf,        ///< reads or writes half of what is asked for
  kOneByte,     ///< reads or writes one byte
  kNothing,     ///< reads or writes no byte, without an error
  kKillBefore,  ///< the process dies before the call
  kKillAfter,   ///< the process dies after the call
};

/// What to do with which call.
struct Plan {
  Effect effect = Effect::kNone;
  int error = 0;
  std::size_t nth = 0;     ///< which call, counted from 0
  bool onward = false;     ///< and all later ones of its kind
  bool no_rename = false;  ///< besides, every rename fails with EXDEV: not its file system's way
};

/// A call that was made.
struct Call {
  Kind kind = Kind::kOpen;
  int fd = -1;          ///< that it was made on, or that opening gave
  int flags = 0;        ///< of open
  char path[256] = {};  ///< of open, rename (from), unlink, stat
};

constexpr std::size_t kMostCalls = 4096;

}  // namespace faults

// Weak: without the library the tests start too, and say that it is missing.
extern "C" {
/// From now on calls count. Not thread safe itself; the calls counted may come from any thread.
__attribute__((weak)) void faults_begin(const faults::Plan* plan);
/// Stops counting; how many calls there were.
__attribute__((weak)) std::size_t faults_end();
/// The calls since faults_begin.
__attribute__((weak)) const faults::Call* faults_calls();
}
