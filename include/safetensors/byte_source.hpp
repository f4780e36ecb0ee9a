// Where the bytes of a file come from: read by position, or in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "safetensors/buffer.hpp"
#include "safetensors/export.hpp"
#include "safetensors/temporary.hpp"

namespace safetensors {

/// What reads of a source cost, by which loads choose what to read together.
struct ReadCost {
  /// Longest gap between wanted bytes that is read and discarded. A good value is the latency of a
  /// read times the throughput, divided by the number of concurrent reads.
  std::uint64_t gap_nbytes = std::uint64_t{64} << 10;
  std::uint64_t chunk_nbytes = 0;  ///< of one read; 0: as LoadConfig says
  /// Reads of whole chunks begin and end at multiples of it; at most a chunk.
  std::uint64_t alignment = 4096;
  std::uint64_t first_nbytes = std::uint64_t{64} << 10;  ///< of the first read of a header
  /// Whether a read is a request to a server: then each chunk is one read_parts().
  bool is_request = false;
  std::uint64_t min_nbytes = 0;  ///< shorter reads take as long
  /// Whether reads are compared with digests: then loads divide them at divide(), and read no gaps
  /// between tensors.
  bool is_checked = false;
};

/// One piece of a bulk read.
struct ReadPiece {
  std::uint64_t offset;     ///< in the source
  std::span<std::byte> to;  ///< filled completely
};

/// Bytes that can be read at any position. Derive from it to read files from elsewhere, such as an
/// archive or a server, and pass the source to SafeOpen.
///
/// Requires: implementations return the same size and the same bytes for as long as they live, or
///   throw.
/// Thread safety: implementations may be called from several threads at once.
class SAFETENSORS_API ByteSource {
 public:
  virtual ~ByteSource();
  /// Returns the number of bytes.
  [[nodiscard]] virtual std::uint64_t size() const noexcept = 0;
  /// Fills `to` with the bytes from `offset` on.
  ///
  /// Throws: Error kIo, or kFileChanged if the source ends before `to` is full, with a text that
  ///   names the source. Then the contents of `to` are unspecified.
  virtual void read_at(std::uint64_t offset, std::span<std::byte> to) const = 0;
  /// Fills `parts` from one read of `nbytes` bytes at `offset`.
  ///
  /// By default it calls read_at(), for long parts with their own memory, for short neighbours with
  /// up to 1 MiB of scratch memory; if a read is a request (ReadCost), it reads several parts by
  /// one read_at() of the whole range. A source that holds what it has read in memory of its own
  /// overrides it and copies from there.
  ///
  /// Requires: the parts lie within the range, in the order of their offsets; they may overlap.
  /// Throws: as read_at().
  virtual void read_parts(std::uint64_t offset, std::uint64_t nbytes,
                          std::span<const ReadPiece> parts) const;
  /// Returns what its reads cost. The answer never changes.
  [[nodiscard]] virtual ReadCost cost() const noexcept;
  /// Returns where a read that begins at `begin` had best end: after `begin`, near `limit`, which
  /// is the default. Called if cost().is_checked.
  [[nodiscard]] virtual std::uint64_t divide(std::uint64_t begin,
                                             std::uint64_t limit) const noexcept;
  /// Returns how many concurrent reads give the best throughput; 0 for one for each processor.
  /// Called before each bulk read, as the answer may change, for example with what is cached.
  [[nodiscard]] virtual unsigned concurrency() const noexcept;
  /// Returns all bytes, if they are in memory: readers then use them in place, without copies.
  /// Returns an empty span by default: readers then call read_at().
  ///
  /// Requires: size() bytes, which stay valid and unchanged for as long as the source lives.
  [[nodiscard]] virtual std::span<const std::byte> memory() const noexcept;
  /// Returns the same bytes with the file open for as long as the result lives. For sources that
  /// open a file for each read; others return nullptr, which is the default.
  ///
  /// Throws: Error kIo or kFileChanged.
  [[nodiscard]] virtual std::shared_ptr<const ByteSource> keep_open() const;
  /// Returns the descriptor of a file with the same bytes at the same offsets, from which the
  /// system can copy to another file; -1, which is the default, if there is none.
  ///
  /// Throws: Error kFileChanged if the file was written to since it was opened.
  /// Lifetime: the source owns the descriptor.
  [[nodiscard]] virtual int descriptor() const;
};

/// Bytes in memory, such as a file that a program has received or embeds.
class SAFETENSORS_API MemorySource final : public ByteSource {
 public:
  /// Requires: `bytes` do not change while they are in use.
  /// Lifetime: the source shares `owner`, and so do a SafeOpen on it and its views. Without an
  ///   owner, the caller keeps the bytes valid for as long as any of these lives.
  explicit MemorySource(std::span<const std::byte> bytes,
                        std::shared_ptr<const void> owner = nullptr) noexcept;
  template <Temporary Bytes>
  explicit MemorySource(Bytes&&, std::shared_ptr<const void> = nullptr) = delete;
  ~MemorySource() override;

  [[nodiscard]] std::uint64_t size() const noexcept override { return bytes_.size(); }
  /// Throws: Error kInvalidArgument if the range reaches past the end.
  void read_at(std::uint64_t offset, std::span<std::byte> to) const override;
  [[nodiscard]] std::span<const std::byte> memory() const noexcept override { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
  std::shared_ptr<const void> owner_;
};

/// Reads all pieces, with several threads if they have 8 MiB or more in all. Small pieces that are
/// adjacent in the source are read together.
///
/// Throws: what read_at and `interrupt` throw. Then the contents of the destinations are
///   unspecified.
SAFETENSORS_API void read_all(const ByteSource& source, std::span<const ReadPiece> pieces,
                              const Interrupt& interrupt = {});

}  // namespace safetensors
