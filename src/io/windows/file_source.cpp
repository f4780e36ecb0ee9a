#include "io/file_source.hpp"

#include <algorithm>
#include <cerrno>
#include <limits>
#include <memory>
#include <string>

#include "io/os_error.hpp"
#include "io/windows/handle.hpp"
#include "io/windows/open_file.hpp"

namespace safetensors {
namespace {

// Some network file systems refuse requests much longer than this.
constexpr std::size_t kMaxPerRead = std::size_t{16} << 20;
// Reads by several threads wait for each other on a handle that was opened without it.
constexpr DWORD kFlags = FILE_FLAG_OVERLAPPED;

FileId checked_id(HANDLE handle, const std::filesystem::path& path) {
  const DWORD type = ::GetFileType(handle);
  if (type != FILE_TYPE_DISK) {
    fail(ErrorCode::kNotRegularFile,
         std::string("expected a regular file, found ") +
             (type == FILE_TYPE_PIPE ? "a named pipe" : "a device"),
         {.path = path});
  }
  BY_HANDLE_FILE_INFORMATION info{};
  if (::GetFileInformationByHandle(handle, &info) == 0) io::fail_os(io::last_errno(), path);
  if ((info.dwFileAttributes & FILE_ATTRIBUTE_DIRECTORY) != 0) io::fail_os(EISDIR, path);
  const auto joined = [](DWORD high, DWORD low) { return std::uint64_t{high} << 32 | low; };
  return {.device = info.dwVolumeSerialNumber,
          .file = joined(info.nFileIndexHigh, info.nFileIndexLow),
          .nbytes = joined(info.nFileSizeHigh, info.nFileSizeLow),
          .modified = static_cast<std::int64_t>(
              joined(info.ftLastWriteTime.dwHighDateTime, info.ftLastWriteTime.dwLowDateTime))};
}

io::Handle reopen(HANDLE handle) {
  // A duplicate would share the caller's position in the file, and reading moves that.
  io::Handle own(::ReOpenFile(handle, GENERIC_READ, io::kShareAll, kFlags));
  if (own.is_open()) return own;
  return io::duplicate(handle);
}

/// Returns whether the error means that the system lacks memory, or the file system mappings. The
/// file is then read instead.
bool has_no_room(DWORD error) noexcept {
  switch (error) {
    case ERROR_NOT_ENOUGH_MEMORY:
    case ERROR_OUTOFMEMORY:
    case ERROR_COMMITMENT_LIMIT:
    case ERROR_NOT_ENOUGH_QUOTA:
    case ERROR_NO_SYSTEM_RESOURCES:
    case ERROR_NOT_SUPPORTED:
    case ERROR_INVALID_FUNCTION:
      return true;
    default:
      return false;
  }
}

}  // namespace

class FileSource::Handle {
 public:
  explicit Handle(io::Handle handle) noexcept : handle_(std::move(handle)) {}
  [[nodiscard]] HANDLE get() const noexcept { return handle_.get(); }

 private:
  io::Handle handle_;
};

FileSource::FileSource(std::unique_ptr<Handle> handle, const std::filesystem::path& path,
                       const FileId& id)
    : handle_(std::move(handle)), path_(path), id_(id) {}

FileSource::~FileSource() = default;

std::unique_ptr<FileSource> FileSource::open(const std::filesystem::path& path) {
  io::check_path(path);
  io::Handle file = io::open_file(path, GENERIC_READ, io::kShareAll, OPEN_EXISTING, kFlags);
  if (!file.is_open()) io::fail_os(io::open_errno(path), path);
  auto handle = std::make_unique<Handle>(std::move(file));
  const FileId id = checked_id(handle->get(), path);
  return std::unique_ptr<FileSource>(new FileSource(std::move(handle), path, id));
}

std::unique_ptr<FileSource> FileSource::duplicate(int descriptor,
                                                  const std::filesystem::path& label) {
  const HANDLE theirs = io::handle_of(descriptor);
  if (theirs == INVALID_HANDLE_VALUE) io::fail_os(EBADF, label);
  (void)checked_id(theirs, label);  // reopening a pipe could wait for its other end
  io::Handle own = reopen(theirs);
  if (!own.is_open()) io::fail_os(io::last_errno(), label);
  auto handle = std::make_unique<Handle>(std::move(own));
  const FileId id = checked_id(handle->get(), label);
  return std::unique_ptr<FileSource>(new FileSource(std::move(handle), label, id));
}

FileId FileSource::find_id(const std::filesystem::path& path) { return open(path)->id(); }

void FileSource::read_at(std::uint64_t offset, std::span<std::byte> to) const {
  if (offset > size() || to.size() > size() - offset) {
    fail(ErrorCode::kInvalidArgument, "read past the end of the file", {.path = path_});
  }
  if (to.empty()) return;
  const io::Handle done(::CreateEventW(nullptr, TRUE, FALSE, nullptr));
  if (!done.is_open()) io::fail_os(io::last_errno(), path_);
  while (!to.empty()) {
    OVERLAPPED at{};
    at.Offset = static_cast<DWORD>(offset & 0xffff'ffff);
    at.OffsetHigh = static_cast<DWORD>(offset >> 32);
    at.hEvent = done.get();
    const auto most = static_cast<DWORD>(std::min(to.size(), kMaxPerRead));
    DWORD got = 0;
    const bool was_read = (::ReadFile(handle_->get(), to.data(), most, nullptr, &at) != 0 ||
                           ::GetLastError() == ERROR_IO_PENDING) &&
                          ::GetOverlappedResult(handle_->get(), &at, &got, TRUE) != 0;
    if (!was_read && ::GetLastError() != ERROR_HANDLE_EOF) io::fail_os(io::last_errno(), path_);
    if (got == 0) {
      fail(ErrorCode::kFileChanged,
           "the file was truncated after it was opened, when its size was " +
               std::to_string(size()) + ": it ends at " + std::to_string(offset),
           {.path = path_});
    }
    to = to.subspan(got);
    offset += got;
  }
}

int FileSource::descriptor() const { return -1; }

bool FileSource::is_remote() const noexcept {
  FILE_REMOTE_PROTOCOL_INFO info{};  // succeeds only for files on a network
  return ::GetFileInformationByHandleEx(handle_->get(), FileRemoteProtocolInfo, &info,
                                        sizeof info) != 0;
}

std::uint64_t FileSource::cached_nbytes() const noexcept { return is_remote() ? 0 : size(); }

bool FileSource::is_cached(std::uint64_t, std::uint64_t) const noexcept { return false; }

unsigned FileSource::concurrency() const noexcept { return is_remote() ? kReadersOfSlowFile : 0; }

std::unique_ptr<ByteSource> FileSource::make_direct(std::unique_ptr<FileSource>&) {
  return nullptr;
}

std::shared_ptr<const MappedFile> FileSource::map() const {
  if (size() > std::numeric_limits<std::size_t>::max()) return nullptr;
  const auto nbytes = static_cast<std::size_t>(size());
  // The system reserves memory for all pages of a private view, whether they are written or not.
  const io::Handle section(
      ::CreateFileMappingW(handle_->get(), nullptr, PAGE_WRITECOPY, 0, 0, nullptr));
  void* const data =
      section.is_open() ? ::MapViewOfFile(section.get(), FILE_MAP_COPY, 0, 0, nbytes) : nullptr;
  if (data == nullptr) {
    const DWORD error = ::GetLastError();
    if (has_no_room(error)) return nullptr;
    io::fail_os(io::errno_of(error), path_);
  }
  std::unique_ptr<const MappedFile> mapped;
  try {
    mapped.reset(new MappedFile(static_cast<std::byte*>(data), nbytes));
  } catch (...) {
    ::UnmapViewOfFile(data);
    throw;
  }
  return mapped;  // if making the shared_ptr throws, the MappedFile unmaps
}

}  // namespace safetensors
