#include "io/posix/detach_mappings.hpp"

#if defined(__linux__)
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/os_error.hpp"
#include "io/posix/fd.hpp"
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
  result.begin = parse_uint<std::uintptr_t>(range.substr(0, dash), 16).value_or(0);
  result.end = parse_uint<std::uintptr_t>(range.substr(std::min(dash + 1, range.size())), 16)
                   .value_or(result.begin);
  result.permissions = next_token(line);
  result.offset = parse_uint<std::uint64_t>(next_token(line), 16).value_or(0);
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

/// Replaces a private mapping by a copy of its memory.
void replace_by_copy(const MapsLine& line, std::uint64_t file_nbytes, const fs::path& path,
                     const Interrupt& interrupt) {
  constexpr std::size_t kMaxAtOnce = std::size_t{64} << 20;
  // Pages past the end of the file cannot be read, and contain no tensor.
  const std::uint64_t in_file = file_nbytes > line.offset ? file_nbytes - line.offset : 0;
  const std::uint64_t pages = in_file / page_size() + (in_file % page_size() != 0 ? 1U : 0U);
  auto left =
      static_cast<std::size_t>(std::min<std::uint64_t>(line.end - line.begin, pages * page_size()));
  if (left == 0) return;
  // Allocated as a whole before the first page is replaced, so that the moved pieces form one
  // mapping again.
  Mapping memory(left, PROT_READ | PROT_WRITE, MAP_ANONYMOUS, -1);
  constexpr const char* kNoMemory = "no memory for the tensors that are mapped from the file";
  if (!memory.is_made()) fail_detach(errno, path, kNoMemory);
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the kernel's text has addresses as numbers
  auto* to = reinterpret_cast<std::byte*>(line.begin);
  while (left != 0) {
    const std::size_t nbytes = std::min(left, kMaxAtOnce);
    const CopyPiece piece = {memory.data(), to, nbytes};
    copy_all({&piece, 1}, interrupt);
    const bool is_read_only = line.permissions.find('w') == std::string_view::npos;
    if ((is_read_only && ::mprotect(memory.data(), nbytes, PROT_READ) != 0) ||
        !memory.move_front(nbytes, to)) {
      fail_detach(errno, path, kNoMemory);
    }
    to += nbytes;
    left -= nbytes;
  }
}

/// Returns a descriptor to map the file. It is not open if this process may not read the file,
/// which then has no mappings here.
Fd open_to_map(const fs::path& path) {
  while (true) {
    Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (file.is_open() || errno == EACCES) return file;
    if (errno != EINTR) fail_write(errno, path);
  }
}

/// Returns the mappings of a file in this process, except those without any access rights.
std::vector<MapsLine> mappings_of(int fd, const fs::path& path) {
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

}  // namespace

void detach_mappings(const fs::path& path, const Interrupt& interrupt) {
  const Fd file = open_to_map(path);
  if (!file.is_open()) return;
  struct stat status{};
  if (::fstat(file.get(), &status) != 0) fail_write(errno, path);
  if (status.st_size == 0) return;  // no page can be mapped
  const std::vector<MapsLine> lines = mappings_of(file.get(), path);
  for (const MapsLine& line : lines) {
    if (line.permissions != "rw-p" && line.permissions != "r--p") {
      fail_detach(EBUSY, path, "it cannot be replaced, and this process shares its memory");
    }
  }
  for (const MapsLine& line : lines) {
    replace_by_copy(line, static_cast<std::uint64_t>(status.st_size), path, interrupt);
  }
}
#else
void detach_mappings(const std::filesystem::path&, const Interrupt&) {}
#endif

}  // namespace safetensors::io
