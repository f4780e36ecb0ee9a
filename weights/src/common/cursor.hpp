// A cursor for headers whose end is not known in advance.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "base/little_endian.hpp"
#include "base/text.hpp"
#include "common/fail.hpp"

namespace safetensors::weights {

/// Thrown when parsing needs the file's first `nbytes` bytes and fewer have been read. The file has
/// that many. Cursor throws it; the parsers of headers catch it.
struct NeedsMore : std::exception {
  explicit NeedsMore(std::uint64_t at_least) noexcept : nbytes(at_least) {}
  std::uint64_t nbytes;
};

/// A position in the first bytes of a file. Every step is checked against three ends:
///
///     0 ---- position_ ---- available ---- limit ---- file_nbytes
///                          (read so far) (longest    (end of the
///                                         header)     file)
///
/// Errors name the file and the current subject.
class Cursor {
 public:
  /// `available` are the first bytes of the file.
  /// Lifetime: `path` and `available` must outlive the cursor.
  Cursor(std::span<const std::byte> available, std::uint64_t file_nbytes,
         const std::filesystem::path& path, std::uint64_t limit) noexcept
      : available_(available),
        file_nbytes_(file_nbytes),
        limit_(limit),
        end_(std::min<std::uint64_t>({available.size(), file_nbytes, limit})),
        path_(path) {}

  [[nodiscard]] std::uint64_t position() const noexcept { return position_; }
  /// Returns the number of bytes from here to the end of the file, read or not.
  [[nodiscard]] std::uint64_t remaining() const noexcept { return file_nbytes_ - position_; }

  /// Checks that `n` more bytes are available.
  /// Throws: truncated if the file ends before them; limit; NeedsMore if they have not been read.
  void need(std::uint64_t n) const {
    if (n > end_ - position_) need_more(n);
  }

  [[nodiscard]] std::span<const std::byte> take(std::uint64_t n) {
    need(n);
    const auto taken =
        available_.subspan(static_cast<std::size_t>(position_), static_cast<std::size_t>(n));
    position_ += n;
    return taken;
  }

  [[nodiscard]] std::string_view take_text(std::uint64_t n) {
    const auto bytes = take(n);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  template <typename T>
  [[nodiscard]] T number() {
    return load_little<T>(take(sizeof(T)).data());
  }

  /// Skips strings: each is a length of 8 bytes, then its bytes.
  void skip_strings(std::uint64_t count) {
    for (; count != 0; --count) {
      const auto nbytes = number<std::uint64_t>();
      need(nbytes);
      position_ += nbytes;
    }
  }

  /// Returns the position of bytes that take() returned.
  [[nodiscard]] std::uint64_t position_of(const void* taken) const noexcept {
    return static_cast<std::uint64_t>(static_cast<const std::byte*>(taken) - available_.data());
  }

  /// Sets the key or tensor that errors name.
  /// Requires: valid UTF-8 that outlives its use here.
  void set_subject(std::string_view subject) noexcept { subject_ = subject; }

  [[noreturn]] void fail_at(std::uint64_t offset, Errc code, const std::string& message) const {
    fail(code, path_, subject_, message, offset);
  }

 private:
  [[noreturn]] void need_more(std::uint64_t n) const {
    if (n > remaining()) {
      fail_at(position_, Errc::truncated,
              grouped(n) + " bytes are needed here, the file has " + grouped(remaining()) +
                  " more: was it truncated?");
    }
    if (n > limit_ - position_) {
      fail_at(position_, Errc::limit,
              "the header goes on for at least " + grouped(n) + " bytes from here, and may have " +
                  grouped(limit_) + " in all");
    }
    throw NeedsMore(position_ + n);
  }

  std::span<const std::byte> available_;
  std::uint64_t file_nbytes_;
  std::uint64_t limit_;
  std::uint64_t end_;  // of the bytes that may be taken now
  std::uint64_t position_ = 0;
  const std::filesystem::path& path_;
  std::string_view subject_;
};

}  // namespace safetensors::weights
