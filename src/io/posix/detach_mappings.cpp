#include "io/posix/detach_mappings.hpp"

#if defined(__linux__)
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/parse_integer.hpp"
#include "io/io_policy.hpp"
#include "io/os_error.hpp"
#include "io/posix/fd.hpp"
#include "io/posix/mapped_files.hpp"
#include "io/posix/procfs.hpp"
#include "io/system.hpp"
#include "safetensors/error.hpp"
#endif

namespace safetensors::io {
#if defined(__linux__)
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail_detach(int os_error, const fs::path& path, const char* why) {
  fail_write(os_error, path,
             std::string(why) + ". Save to another file, or drop what is mapped from this one");
}

/// Mapped memory. The destructor unmaps what move_front() has not moved.
class Mapping {
 public:
  Mapping(std::size_t nbytes, int protection, int flags, int fd)
      : data_(::mmap(nullptr, nbytes, protection, MAP_PRIVATE | flags, fd, 0)), nbytes_(nbytes) {}
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() {
    if (is_made() && nbytes_ != 0) ::munmap(data_, nbytes_);
  }

  [[nodiscard]] bool is_made() const noexcept { return data_ != MAP_FAILED; }
  [[nodiscard]] std::byte* data() const noexcept { return static_cast<std::byte*>(data_); }

  /// Moves its first pages to an address, replacing what is mapped there. Atomic for all threads.
  [[nodiscard]] bool move_front(std::size_t nbytes, std::byte* to) noexcept {
    constexpr int kFlags = MREMAP_MAYMOVE | MREMAP_FIXED;
    if (::mremap(data_, nbytes, nbytes, kFlags, to) == MAP_FAILED) return false;
    data_ = data() + nbytes;
    nbytes_ -= nbytes;
    return true;
  }

 private:
  void* data_;
  std::size_t nbytes_;
};

/// A line of /proc/self/maps: "begin-end permissions offset device inode path".
struct MapsLine {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
  std::string permissions;  ///< "rw-p": read, write, execute, private
  std::uint64_t offset = 0;
  std::string device;
  std::string inode;
};

MapsLine parse_line(std::string_view line) {
  MapsLine result;
  const std::string_view range = next_token(line);
  const std::size_t dash = std::min(range.find('-'), range.size());
  result.begin = parse_integer<std::uintptr_t>(range.substr(0, dash), 16).value_or(0);
  result.end = parse_integer<std::uintptr_t>(range.substr(std::min(dash + 1, range.size())), 16)
                   .value_or(result.begin);
  result.permissions = next_token(line);
  result.offset = parse_integer<std::uint64_t>(next_token(line), 16).value_or(0);
  result.device = next_token(line);
  result.inode = next_token(line);
  return result;
}

std::vector<MapsLine> parse_maps(std::string_view text) {
  std::vector<MapsLine> lines;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    lines.push_back(parse_line(line));
  }
  return lines;
}

/// A private mapping, without the pages past the end of the file, which cannot be read.
struct PrivateMapping {
  std::uintptr_t begin;
  std::size_t nbytes;
  bool is_read_only;
};

constexpr const char* kNoMemory = "no memory for the tensors that are mapped from the file";

/// Copies mapped memory. Returns an error number: EFAULT where touching the memory would raise
/// SIGBUS, because another program has truncated the file.
int copy_mapped(std::byte* to, std::byte* from, std::size_t nbytes) noexcept {
  while (nbytes != 0) {
    const iovec local = {to, nbytes};
    const iovec remote = {from, nbytes};
    const ssize_t got = ::process_vm_readv(::getpid(), &local, 1, &remote, 1, 0);
    if (got < 0 && errno != EFAULT) {  // the system does not have the call, or forbids it
      std::memcpy(to, from, nbytes);
      return 0;
    }
    if (got <= 0) return EFAULT;
    to += got;
    from += got;
    nbytes -= static_cast<std::size_t>(got);
  }
  return 0;
}

void replace_by_copy(const PrivateMapping& mapping, const fs::path& path) {
  // Small, because what other threads write between the copy of a piece and its move is lost.
  constexpr std::size_t kMaxAtOnce = std::size_t{128} << 10;
  // Allocated as a whole before the first page is replaced, so that the moved pieces form one
  // mapping again.
  std::size_t left = mapping.nbytes;
  Mapping memory(left, PROT_READ | PROT_WRITE, MAP_ANONYMOUS, -1);
  if (!memory.is_made()) fail_detach(errno, path, kNoMemory);
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the kernel's text has addresses as numbers
  auto* to = reinterpret_cast<std::byte*>(mapping.begin);
  while (left != 0) {
    const std::size_t nbytes = std::min(left, kMaxAtOnce);
    if (const int error = copy_mapped(memory.data(), to, nbytes)) {
      fail_detach(error, path, "pages of it cannot be read: another program truncates it");
    }
    if ((mapping.is_read_only && ::mprotect(memory.data(), nbytes, PROT_READ) != 0) ||
        !memory.move_front(nbytes, to)) {
      fail_detach(errno, path, kNoMemory);
    }
    to += nbytes;
    left -= nbytes;
  }
}

/// Opens a file to map it. The result is not open if this process may not read the file, which then
/// has no mappings here.
Fd open_to_map(const fs::path& path, const fs::path& label) {
  while (true) {
    Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (file.is_open() || errno == EACCES) return file;
    if (errno != EINTR) fail_write(errno, label);
  }
}

/// Returns the lines of a file's mappings in this process.
std::vector<MapsLine> lines_of(int fd, const fs::path& path) {
  // Another mapping shows which device and inode the kernel lists for this file: on btrfs and on
  // layered file systems they differ from those of stat.
  const Mapping probe(page_size(), PROT_NONE, 0, fd);
  if (!probe.is_made() && errno == ENODEV) return {};  // files cannot be mapped there
  if (!probe.is_made()) fail_write(errno, path);
  constexpr const char* kUnknown = "the system does not say whether it is mapped";
  const std::optional<std::string> text = read_kernel_file("/proc/self/maps");
  if (!text) fail_detach(errno, path, kUnknown);
  std::vector<MapsLine> lines = parse_maps(*text);
  const auto found =
      std::ranges::find(lines, reinterpret_cast<std::uintptr_t>(probe.data()), &MapsLine::begin);
  if (found == lines.end()) fail_detach(EIO, path, kUnknown);
  const auto [device, inode] = std::pair(found->device, found->inode);
  std::erase_if(lines, [&](const MapsLine& line) {
    return line.device != device || line.inode != inode || line.permissions.starts_with("---");
  });
  return lines;
}

/// Returns the mappings that can be replaced.
std::vector<PrivateMapping> private_mappings(int fd, const fs::path& path, SharedMappings shared) {
  struct stat status{};
  if (::fstat(fd, &status) != 0) fail_write(errno, path);
  const auto file_nbytes = static_cast<std::uint64_t>(status.st_size);
  if (file_nbytes == 0) return {};  // no page can be mapped
  std::vector<PrivateMapping> found;
  for (const MapsLine& line : lines_of(fd, path)) {
    if (line.permissions != "rw-p" && line.permissions != "r--p") {
      if (shared == SharedMappings::kKeep) continue;
      fail_detach(EBUSY, path, "it cannot be replaced, and this process shares its memory");
    }
    const std::uint64_t in_file = file_nbytes > line.offset ? file_nbytes - line.offset : 0;
    const std::uint64_t pages = in_file / page_size() + (in_file % page_size() != 0 ? 1U : 0U);
    const auto nbytes = std::min<std::uint64_t>(line.end - line.begin, pages * page_size());
    if (nbytes == 0) continue;
    found.push_back({line.begin, static_cast<std::size_t>(nbytes), line.permissions[1] == '-'});
  }
  return found;
}

/// Throws unless there is memory for copies of them all. The system alone would allocate it, and
/// end the process when the copies use it.
void check_memory(const std::vector<PrivateMapping>& mappings, const fs::path& path) {
  std::uint64_t nbytes = 0;
  for (const PrivateMapping& mapping : mappings) nbytes += mapping.nbytes;
  if (nbytes != 0 && nbytes > room_in(memory_available())) fail_detach(ENOMEM, path, kNoMemory);
}

/// `fd` is open for reading.
void detach_readable(int fd, const fs::path& path, const Interrupt& interrupt,
                     SharedMappings shared) {
  std::vector<PrivateMapping> left;
  std::optional<std::uint64_t> listed_at;
  for (;;) {
    {
      const MappingsLock lock;
      if (listed_at != MappingsLock::state()) {
        left = private_mappings(fd, path, shared);
        if (!listed_at) check_memory(left, path);
      }
      if (left.empty()) return;
      replace_by_copy(left.back(), path);
      left.pop_back();
      MappingsLock::changed();
      listed_at = MappingsLock::state();
    }
    if (interrupt) interrupt();
  }
}

}  // namespace

void detach_mappings(const fs::path& path, const Interrupt& interrupt, SharedMappings shared) {
  const Fd file = open_to_map(path, path);
  if (file.is_open()) detach_readable(file.get(), path, interrupt, shared);
}

void detach_mappings(int descriptor, const fs::path& path, const Interrupt& interrupt,
                     SharedMappings shared) {
  // Opened again, because a file that is open only for writing cannot be mapped.
  const Fd file = open_to_map("/proc/self/fd/" + std::to_string(descriptor), path);
  if (file.is_open()) detach_readable(file.get(), path, interrupt, shared);
}

void detach_if_mapped(const fs::path& path) {
  struct stat status{};
  if (::stat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return;
  if (!mapped_files().may_contain(MappedFiles::slot_of(status.st_dev, status.st_ino))) return;
  detach_mappings(path, {}, SharedMappings::kKeep);
}
#else
void detach_mappings(const std::filesystem::path&, const Interrupt&, SharedMappings) {}
void detach_mappings(int, const std::filesystem::path&, const Interrupt&, SharedMappings) {}
void detach_if_mapped(const std::filesystem::path&) {}
#endif

}  // namespace safetensors::io
