// A GGUF model: one file, or all parts of a split model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "common/name_index.hpp"
#include "gguf/file.hpp"
#include "safetensors/buffer.hpp"
#include "safetensors/weights/metadata.hpp"

namespace safetensors::weights {

/// A tensor and the file that contains it.
struct GgufSource {
  const GgufFile* file;
  const GgufTensor* tensor;

  /// See GgufFile::bytes().
  [[nodiscard]] StoredBytes bytes(std::uint64_t begin, std::uint64_t end,
                                  const Interrupt& interrupt = {}) const {
    return file->bytes(*tensor, begin, end, interrupt);
  }
  [[nodiscard]] StoredBytes bytes(const Interrupt& interrupt = {}) const {
    return bytes(0, tensor->nbytes, interrupt);
  }
  void read(std::uint64_t begin, std::span<std::byte> to, const Interrupt& interrupt = {}) const {
    file->read(*tensor, begin, to, interrupt);
  }
};

/// Open files and their tensors.
///
/// Thread safety: several threads may call const members at once.
/// Lifetime: pointers to files and tensors stay valid when the set is moved.
class GgufSet {
 public:
  /// Opens a file and, if it is a part of a split model, all other parts. They must be in the same
  /// directory and have llama.cpp's names: NAME-00001-of-00003.gguf. Checks that the parts agree.
  ///
  /// Throws: missing_shard; config for parts of different models; duplicate; and what GgufFile
  /// throws.
  GgufSet(const Files& files, const std::filesystem::path& path, const GgufOptions& options);

  /// Returns the files in the order of parts.
  [[nodiscard]] std::span<const GgufFile> files() const noexcept { return files_; }
  /// Returns the metadata of the first part.
  [[nodiscard]] const ModelMetadata& metadata() const noexcept {
    return files_.front().header().metadata;
  }
  /// Returns the tensors of all parts, in the order of parts and of their lists.
  [[nodiscard]] std::span<const GgufSource> tensors() const noexcept { return tensors_; }
  /// Returns the tensor of that name, or nullptr.
  [[nodiscard]] const GgufSource* find(std::string_view name) const noexcept;

 private:
  std::vector<GgufFile> files_;
  std::vector<GgufSource> tensors_;
  NameIndex index_;
};

/// Returns the GGUF models of a directory, in the order of their names: *.gguf files that are not
/// hidden, and of each split model the first part that is there. Throws: io.
[[nodiscard]] std::vector<std::filesystem::path> gguf_models(
    const Files& files, const std::filesystem::path& directory);
/// Returns the only GGUF model of a directory; nothing if there is none.
///
/// Throws: io; unsupported if there are several.
[[nodiscard]] std::optional<std::filesystem::path> find_gguf(
    const Files& files, const std::filesystem::path& directory);

}  // namespace safetensors::weights
