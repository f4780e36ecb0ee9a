// Sinks for descriptors, and the calls that complete a written file.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <utility>

#include "io/posix/fd.hpp"
#include "safetensors/byte_sink.hpp"

namespace safetensors::io {

/// Writes to a regular file by position. The base of the sinks that own such a file.
class PositionedSink : public ByteSink {
 public:
  [[nodiscard]] bool seeks() const noexcept final { return true; }
  [[nodiscard]] std::filesystem::path label() const override { return path_; }
  void start(std::uint64_t nbytes) override { nbytes_ = nbytes; }
  [[nodiscard]] std::size_t write_at(std::uint64_t offset,
                                     std::span<const std::byte> bytes) override;
  [[nodiscard]] std::uint64_t copy_from(const ByteSource& source, std::uint64_t begin,
                                        std::uint64_t nbytes, std::uint64_t offset) override;
  [[nodiscard]] bool shift(std::uint64_t nbytes, std::uint64_t by) override;

 protected:
  /// `path` names the file in errors. The file's data begins at `base`.
  PositionedSink(std::filesystem::path path, std::uint64_t base)
      : path_(std::move(path)), base_(base) {}

  [[nodiscard]] virtual int descriptor() const noexcept = 0;
  /// Reserves disk space. Called before the first write, so that a full disk is noticed early.
  virtual void reserve(std::uint64_t nbytes) = 0;

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  [[nodiscard]] std::uint64_t base() const noexcept { return base_; }

 private:
  void reserve_once();
  /// Returns the position in the file. Throws: Error kIo if no file can be so large.
  [[nodiscard]] off_t position_of(std::uint64_t offset) const;
  [[nodiscard]] std::uint64_t clone(int from, std::uint64_t begin, std::uint64_t nbytes, off_t to);

  std::filesystem::path path_;
  std::uint64_t base_;
  std::uint64_t nbytes_ = 0;
  std::atomic<bool> is_reserved_ = false;
  std::atomic<bool> can_clone_ = true;
  std::atomic<bool> has_cloned_ = false;
};

/// Writes in order, as to a pipe.
class StreamSink final : public ByteSink {
 public:
  StreamSink(Fd fd, std::filesystem::path path) : fd_(std::move(fd)), path_(std::move(path)) {}
  [[nodiscard]] bool seeks() const noexcept override { return false; }
  [[nodiscard]] std::filesystem::path label() const override { return path_; }
  [[nodiscard]] std::size_t write_at(std::uint64_t offset,
                                     std::span<const std::byte> bytes) override;
  void commit(std::uint64_t, bool) override {}

 private:
  Fd fd_;
  std::filesystem::path path_;
};

// All functions here throw Error kIo, with the path.

/// Blocks until the file's data is on the disk.
void flush(int fd, const std::filesystem::path& path);

/// Reserves disk space, if the file system supports that. With `keep_size` the file's size does not
/// change.
void reserve(int fd, std::uint64_t begin, std::uint64_t nbytes, bool keep_size,
             const std::filesystem::path& path);

/// Closes the file and checks for errors: some file systems only then report that the disk is full.
void close_checked(Fd fd, const std::filesystem::path& path);

}  // namespace safetensors::io
