// The ByteSource behind checked_source().
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/per_process.hpp"
#include "safetensors/verify.hpp"

namespace safetensors {

/// A tensor and its digests. Not empty.
struct CheckedTensor {
  std::string name;
  std::string start;  ///< see digest_start()
  std::uint64_t begin;
  std::uint64_t end;
  TensorDigests wanted;
  std::size_t first_block = 0;  ///< among those of all tensors
};

/// What a file is compared with, and what of it was. Shared by the sources of one file.
///
/// Thread safety: all members may be called by several threads at once.
class FileChecks {
 public:
  /// `tensors` are sorted by their positions. `start` holds the bytes before the data.
  FileChecks(std::filesystem::path path, Buffer start, std::uint64_t data_begin,
             std::vector<CheckedTensor> tensors, Sha256 sha256);
  FileChecks(const FileChecks&) = delete;
  FileChecks& operator=(const FileChecks&) = delete;
  ~FileChecks();

  /// Returns the length field and the header.
  [[nodiscard]] std::span<const std::byte> start() const noexcept {
    return start_.bytes().first(static_cast<std::size_t>(data_begin_));
  }
  /// Returns the first tensor that ends after `offset`; nullptr if there is none.
  [[nodiscard]] const CheckedTensor* find(std::uint64_t offset) const noexcept;
  /// Returns the digest of a tensor, by the algorithm of the one that it should have.
  [[nodiscard]] Digest digest(const CheckedTensor& tensor, std::span<const std::byte> bytes) const;
  /// Returns whether a block was equal to its digest before, and says that it is.
  [[nodiscard]] bool is_compared(const CheckedTensor& tensor, std::uint64_t block) const noexcept {
    return compared_[tensor.first_block + block].load(std::memory_order_relaxed);
  }
  void set_compared(const CheckedTensor& tensor, std::uint64_t block) const noexcept {
    compared_[tensor.first_block + block].store(true, std::memory_order_relaxed);
  }
  /// Returns the bytes of a tensor that is compared as a whole. Reads them if they are not kept.
  [[nodiscard]] std::shared_ptr<const Buffer> whole(const CheckedTensor& tensor,
                                                    const ByteSource& source) const;
  /// Reads a tensor again, and returns the ranges that differ from its digests.
  /// Throws: Error kDamaged if its digests contradict each other.
  [[nodiscard]] std::vector<Damage> damage(const CheckedTensor& tensor,
                                           const ByteSource& source) const;
  /// Throws Error kDamaged for a tensor of which the range [begin, end) of the file differed.
  [[noreturn]] void fail(const CheckedTensor& tensor, std::uint64_t begin, std::uint64_t end,
                         const ByteSource& source) const;

 private:
  /// The bytes of a tensor, for the readers of its parts. A thread that holds `mutex` reads them.
  struct Whole {
    const CheckedTensor* tensor = nullptr;
    std::mutex mutex;
    std::atomic<bool> is_read{false};
    std::shared_ptr<const Buffer> bytes;
  };
  struct Wholes {
    std::mutex mutex;
    std::vector<std::shared_ptr<Whole>> kept;  // the oldest first
  };

  std::filesystem::path path_;
  Buffer start_;
  std::uint64_t data_begin_;
  std::vector<CheckedTensor> tensors_;
  Sha256 sha256_;
  std::unique_ptr<std::atomic<bool>[]> compared_;  // by block
  mutable PerProcess<Wholes> wholes_;
};

class CheckedSource final : public ByteSource {
 public:
  CheckedSource(std::shared_ptr<const ByteSource> inner, std::shared_ptr<const FileChecks> checks)
      : inner_(std::move(inner)), checks_(std::move(checks)) {}

  [[nodiscard]] const std::shared_ptr<const ByteSource>& inner() const noexcept { return inner_; }
  [[nodiscard]] const FileChecks& checks() const noexcept { return *checks_; }
  [[nodiscard]] std::uint64_t size() const noexcept override { return inner_->size(); }
  void read_at(std::uint64_t offset, std::span<std::byte> to) const override;
  void read_parts(std::uint64_t offset, std::uint64_t nbytes,
                  std::span<const ReadPiece> parts) const override;
  [[nodiscard]] ReadCost cost() const noexcept override;
  [[nodiscard]] std::uint64_t divide(std::uint64_t begin,
                                     std::uint64_t limit) const noexcept override;
  [[nodiscard]] unsigned concurrency() const noexcept override { return inner_->concurrency(); }
  [[nodiscard]] std::shared_ptr<const ByteSource> keep_open() const override;

 private:
  std::shared_ptr<const ByteSource> inner_;
  std::shared_ptr<const FileChecks> checks_;
};

}  // namespace safetensors
