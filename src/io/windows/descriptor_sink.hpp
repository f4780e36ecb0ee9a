// Sinks for handles and descriptors.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <utility>

#include "io/windows/handle.hpp"
#include "safetensors/byte_sink.hpp"

namespace safetensors::io {

/// Writes to a file by position. The base of the sinks that own such a file. Copies nothing without
/// bringing it into memory.
class PositionedSink : public ByteSink {
 public:
  [[nodiscard]] bool seeks() const noexcept final { return true; }
  [[nodiscard]] std::filesystem::path label() const override { return path_; }
  void start(std::uint64_t nbytes) override { nbytes_ = nbytes; }
  [[nodiscard]] std::size_t write_at(std::uint64_t offset,
                                     std::span<const std::byte> bytes) override;
  [[nodiscard]] bool shift(std::uint64_t nbytes, std::uint64_t by) override;

 protected:
  /// `path` names the file in errors. The file's data begins at `base`.
  PositionedSink(std::filesystem::path path, std::uint64_t base)
      : path_(std::move(path)), base_(base) {}

  [[nodiscard]] virtual HANDLE handle() const noexcept = 0;
  /// Reserves disk space. Called before the first write, so that a full disk is noticed early. Does
  /// nothing by default: in a file that has content, the system would cut off what lies behind.
  virtual void reserve(std::uint64_t nbytes);

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  [[nodiscard]] std::uint64_t base() const noexcept { return base_; }

 private:
  std::filesystem::path path_;
  std::uint64_t base_;
  std::uint64_t nbytes_ = 0;
  std::atomic<bool> is_reserved_ = false;
};

/// Writes in order, as to a pipe.
class StreamSink final : public ByteSink {
 public:
  StreamSink(Handle handle, std::filesystem::path path)
      : handle_(std::move(handle)), path_(std::move(path)) {}
  [[nodiscard]] bool seeks() const noexcept override { return false; }
  [[nodiscard]] std::filesystem::path label() const override { return path_; }
  [[nodiscard]] std::size_t write_at(std::uint64_t offset,
                                     std::span<const std::byte> bytes) override;
  void commit(std::uint64_t, bool) override {}

 private:
  Handle handle_;
  std::filesystem::path path_;
};

/// Blocks until the file's data is on the disk. Throws: Error kIo.
void flush(HANDLE handle, const std::filesystem::path& path);

}  // namespace safetensors::io
