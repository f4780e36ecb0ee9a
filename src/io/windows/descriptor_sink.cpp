#include "io/windows/descriptor_sink.hpp"

#include <algorithm>
#include <cerrno>

#include "io/os_error.hpp"
#include "io/parallel.hpp"
#include "io/windows/handle.hpp"
#include "safetensors/buffer.hpp"

namespace safetensors::io {
namespace {

constexpr std::size_t kMaxPerCall = std::size_t{1} << 30;  // a call takes 32 bits

/// Returns the position of a call that reads or writes at `offset`.
OVERLAPPED position_of(std::uint64_t offset) noexcept {
  OVERLAPPED result{};
  result.Offset = static_cast<DWORD>(offset);
  result.OffsetHigh = static_cast<DWORD>(offset >> 32);
  return result;
}

/// Writes at `position`; without one, where the last call ended. Returns how many bytes were
/// written.
std::size_t write_some(HANDLE handle, std::span<const std::byte> bytes, OVERLAPPED* position,
                       const std::filesystem::path& path) {
  const auto wanted = static_cast<DWORD>(std::min(bytes.size(), kMaxPerCall));
  DWORD done = 0;
  if (::WriteFile(handle, bytes.data(), wanted, &done, position) == 0) {
    fail_write(last_errno(), path);
  }
  // Nothing was written, without an error: repeating the call might never end.
  if (done == 0) fail_write(EIO, path);
  return done;
}

LARGE_INTEGER large(std::uint64_t number) noexcept {
  LARGE_INTEGER result{};
  result.QuadPart = static_cast<LONGLONG>(number);
  return result;
}

/// The sink of make_descriptor_sink() for a regular file.
class DescriptorSink final : public PositionedSink {
 public:
  DescriptorSink(Handle handle, const std::filesystem::path& label, std::uint64_t base,
                 bool is_at_end)
      : PositionedSink(label, base), handle_(std::move(handle)), is_at_end_(is_at_end) {}
  DescriptorSink(const DescriptorSink&) = delete;
  DescriptorSink& operator=(const DescriptorSink&) = delete;
  ~DescriptorSink() override {
    if (is_committed_) return;
    // Writing has moved the position, which the caller's descriptor shares.
    (void)::SetFilePointerEx(handle_.get(), large(base()), nullptr, FILE_BEGIN);
    // If that fails, the file keeps a part, whose header has a length of 0.
    if (is_at_end_) (void)::SetEndOfFile(handle_.get());
  }

  void commit(std::uint64_t nbytes, bool fsync) override {
    if (fsync) flush(handle_.get(), path());
    if (::SetFilePointerEx(handle_.get(), large(base() + nbytes), nullptr, FILE_BEGIN) == 0) {
      fail_write(last_errno(), path());
    }
    is_committed_ = true;
  }

 private:
  [[nodiscard]] HANDLE handle() const noexcept override { return handle_.get(); }

  Handle handle_;
  bool is_at_end_;
  bool is_committed_ = false;
};

}  // namespace

void PositionedSink::reserve(std::uint64_t) {}

std::size_t PositionedSink::write_at(std::uint64_t offset, std::span<const std::byte> bytes) {
  if (!is_reserved_.exchange(true)) reserve(nbytes_);
  OVERLAPPED position = position_of(base_ + offset);
  return write_some(handle(), bytes, &position, path_);
}

bool PositionedSink::shift(std::uint64_t nbytes, std::uint64_t by) {
  // From the end, so that nothing is overwritten before it was copied.
  const Buffer buffer(static_cast<std::size_t>(std::min<std::uint64_t>(nbytes, kTaskSize)));
  while (nbytes != 0) {
    const std::span<std::byte> chunk = buffer.bytes().first(
        static_cast<std::size_t>(std::min<std::uint64_t>(nbytes, buffer.size())));
    nbytes -= chunk.size();
    for (std::size_t at = 0; at < chunk.size();) {
      OVERLAPPED position = position_of(base_ + nbytes + at);
      DWORD got = 0;
      const BOOL done = ::ReadFile(handle(), chunk.data() + at,
                                   static_cast<DWORD>(chunk.size() - at), &got, &position);
      if (done == 0 && ::GetLastError() == ERROR_ACCESS_DENIED) return false;  // write-only
      if (done == 0 || got == 0) fail_write(done == 0 ? last_errno() : EIO, path_);
      at += got;
    }
    for (std::size_t at = 0; at < chunk.size();) {
      at += write_at(nbytes + by + at, chunk.subspan(at));
    }
  }
  return true;
}

std::size_t StreamSink::write_at(std::uint64_t, std::span<const std::byte> bytes) {
  return write_some(handle_.get(), bytes, nullptr, path_);
}

void flush(HANDLE handle, const std::filesystem::path& path) {
  if (::FlushFileBuffers(handle) == 0) fail_write(last_errno(), path);
}

}  // namespace safetensors::io

namespace safetensors {

std::unique_ptr<ByteSink> make_descriptor_sink(int descriptor, const std::filesystem::path& label) {
  const HANDLE theirs = io::handle_of(descriptor);
  if (theirs == INVALID_HANDLE_VALUE) io::fail_write(EBADF, label);
  io::Handle own = io::duplicate(theirs);
  if (!own.is_open()) io::fail_write(io::last_errno(), label);
  LARGE_INTEGER at{};
  LARGE_INTEGER size{};
  if (::GetFileType(own.get()) != FILE_TYPE_DISK ||
      ::SetFilePointerEx(own.get(), {}, &at, FILE_CURRENT) == 0 ||
      ::GetFileSizeEx(own.get(), &size) == 0) {
    return std::make_unique<io::StreamSink>(std::move(own), label);
  }
  return std::make_unique<io::DescriptorSink>(
      std::move(own), label, static_cast<std::uint64_t>(at.QuadPart), size.QuadPart <= at.QuadPart);
}

}  // namespace safetensors
