// The tensors of all safetensors files of a model.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/files.hpp"
#include "model/backend.hpp"
#include "safetensors/model.hpp"

namespace safetensors::weights {

/// Columns of a matrix: rows of bytes, each `stride` bytes after the one before.
struct StoredColumns {
  StoredBytes stored;  ///< ends with the last row's columns
  std::uint64_t stride = 0;
};

/// A tensor as stored.
struct SourceTensor {
  const SafeOpen* file;
  const safetensors::TensorInfo* info;

  /// Returns its bytes from `begin` to `end`: a view of a file in memory, mapped or of a source,
  /// or read.
  ///
  /// Throws: io, also if the file has been truncated.
  [[nodiscard]] StoredBytes bytes(std::uint64_t begin, std::uint64_t end,
                                  const Interrupt& interrupt) const;
  [[nodiscard]] StoredBytes bytes(const Interrupt& interrupt) const {
    return bytes(0, info->nbytes(), interrupt);
  }
  /// Returns the bytes from `begin` to `end` of each row of a matrix: a view likewise, or read
  /// without the rest of the rows.
  ///
  /// Requires: two axes, and elements of whole bytes.
  /// Throws: as bytes().
  [[nodiscard]] StoredColumns columns(std::uint64_t begin, std::uint64_t end,
                                      const Interrupt& interrupt) const;
  /// Copies all its bytes. Throws: io.
  void read(std::span<std::byte> to, const Interrupt& interrupt) const;
};

/// The tensors of the files of a model, also those that its index does not name.
///
/// Lifetime: pointers to tensors stay valid when this is moved.
class SourceTensors {
 public:
  /// Opens the files and checks them against each other and the index. Without `strict_index`,
  /// tensors that the index does not name only cause a warning.
  ///
  /// Throws: WeightsError, with missing_shard for a file that an index names and is absent.
  SourceTensors(const Files& files, const FoundModel& found, const ModelOptions& options,
                std::vector<std::string>& warnings);

  /// Returns all tensors, sorted by name.
  [[nodiscard]] std::span<const SourceTensor> all() const noexcept { return tensors_; }
  [[nodiscard]] const SourceTensor* find(std::string_view name) const noexcept;
  [[nodiscard]] const SafeOpen& first_file() const { return files_.front(); }

 private:
  void check_index(const FoundModel& found, const ShardIndex& index, bool strict,
                   std::vector<std::string>& warnings) const;

  std::vector<SafeOpen> files_;  // tensors point into it
  std::vector<SourceTensor> tensors_;
};

}  // namespace safetensors::weights
