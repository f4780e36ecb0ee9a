// The sources of one load, as its readers use them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "device/batch.hpp"
#include "safetensors/byte_source.hpp"

namespace safetensors::device {

/// The sources of a load. Those that open a file for each read are kept open while they are used.
///
/// Thread safety: all members may be called by several threads at once.
class Sources {
 public:
  /// `max_chunk` limits the chunks of all sources. Sources that do not say how long theirs are have
  /// those of `chunk_nbytes`.
  Sources(std::vector<std::shared_ptr<const ByteSource>> sources, std::uint64_t chunk_nbytes,
          std::uint64_t max_chunk);

  [[nodiscard]] std::span<const io::PlannedSource> planned() const noexcept { return planned_; }
  /// Returns whether reads of a source wait for I/O, rather than copy from the page cache.
  [[nodiscard]] bool is_io_bound(std::uint32_t number) const { return is_io_bound_[number]; }
  [[nodiscard]] bool is_any_io_bound() const noexcept { return is_any_io_bound_; }
  /// Returns the most concurrent requests that a source asks for; 0 if reads are no requests.
  [[nodiscard]] unsigned requests() const noexcept { return requests_; }
  /// Returns a source with its file open, which is also kept open for the next calls.
  ///
  /// Throws: Error kIo; kFileChanged if the file was replaced.
  [[nodiscard]] std::shared_ptr<const ByteSource> open(std::uint32_t number) const;
  /// Reads a chunk: `to` is filled with its range of the source, or with its runs, concatenated.
  /// `scratch` is memory of the calling thread; it grows as needed.
  ///
  /// Requires: `to` has the chunk's size.
  /// Throws: what the source throws.
  void read(const ChunkTask& task, std::span<std::byte> to, Buffer& scratch) const;

 private:
  struct KeptFile {
    std::uint32_t source = 0;
    std::shared_ptr<const ByteSource> file;
  };

  const std::vector<std::shared_ptr<const ByteSource>> sources_;
  std::vector<io::PlannedSource> planned_;
  std::vector<bool> is_io_bound_;
  bool is_any_io_bound_ = false;
  unsigned requests_ = 0;
  // A ring of the files that were opened last: a model may have more shards than a process may have
  // open files, and successive chunks mostly come from one shard.
  mutable std::mutex mutex_;
  mutable std::array<KeptFile, 8> kept_files_;
  mutable std::size_t next_file_ = 0;
};

}  // namespace safetensors::device
