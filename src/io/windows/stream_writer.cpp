#include "io/windows/stream_writer.hpp"

#include "io/gather.hpp"
#include "io/os_error.hpp"
#include "io/windows/last_error.hpp"

namespace safetensors::io {

void write_pieces(HANDLE handle, const FileContent& content, const std::filesystem::path& path,
                  const WriteOptions& options) {
  write_gathered(content, options, [&](std::span<const std::byte> bytes) -> std::size_t {
    DWORD done = 0;
    if (::WriteFile(handle, bytes.data(), static_cast<DWORD>(bytes.size()), &done, nullptr) == 0) {
      fail_write(last_errno(), path);
    }
    return done;
  });
}

void flush(HANDLE handle, const std::filesystem::path& path) {
  if (::FlushFileBuffers(handle) == 0) fail_write(last_errno(), path);
}

}  // namespace safetensors::io
