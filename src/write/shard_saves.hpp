// The files of a model that is saved, one after another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "safetensors/byte_sink.hpp"
#include "safetensors/detail/write_sums.hpp"
#include "safetensors/model_writer.hpp"
#include "safetensors/save.hpp"
#include "safetensors/sums.hpp"

namespace safetensors {

/// A ModelWriter, the sums of its files, and their progress as one.
class ShardSaves {
 public:
  /// Writes one file, and commits it and then `sums`.
  using Write = std::function<void(std::unique_ptr<ByteSink> sink, const SaveOptions& options,
                                   detail::WriteSums& sums)>;

  /// Throws: what ModelWriter throws.
  ShardSaves(const std::filesystem::path& folder, const SaveModelOptions& options,
             std::size_t shards, std::uint64_t total_nbytes);

  /// Writes the next file, which has `nbytes` bytes of tensors.
  void save(std::uint64_t nbytes, const Write& write);
  /// Makes the files the model, and returns their paths. Throws: what ModelWriter::commit() throws.
  std::vector<std::filesystem::path> commit(
      std::span<const std::vector<std::string_view>> names) &&;

 private:
  const SaveModelOptions& options_;
  ModelWriter model_;
  std::size_t shards_;
  std::uint64_t total_nbytes_;
  std::uint64_t done_ = 0;
  std::size_t count_ = 0;
  std::vector<Sums> sums_;  // of each file
};

}  // namespace safetensors
