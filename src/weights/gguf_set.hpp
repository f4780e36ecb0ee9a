// A GGUF model: one file, or all parts of a split one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "safetensors/buffer.hpp"
#include "safetensors/weights/metadata.hpp"
#include "weights/gguf_file.hpp"
#include "weights/name_index.hpp"

namespace safetensors::weights {

/// A tensor and the file it is in.
struct GgufSource {
  const GgufFile* file;
  const GgufTensor* tensor;

  /// See GgufFile.
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

/// Open files and their tensors. The pointers stay valid when it is moved; const members are thread
/// safe.
class GgufSet {
 public:
  /// Opens a file; when it is a part of a split model, all parts, which must lie beside it and be
  /// named as llama.cpp names them: NAME-00001-of-00003.gguf. Checks the parts against each other.
  /// Throws Error: missing_shard, config (parts that do not belong together), duplicate, and what
  /// GgufFile throws.
  GgufSet(const std::filesystem::path& path, const GgufOptions& options);

  /// In the order of parts.
  [[nodiscard]] std::span<const GgufFile> files() const noexcept { return files_; }
  /// Of the first part.
  [[nodiscard]] const ModelMetadata& metadata() const noexcept {
    return files_.front().header().metadata;
  }
  /// All tensors, part by part, in the files' order.
  [[nodiscard]] std::span<const GgufSource> tensors() const noexcept { return tensors_; }
  /// The tensor of that name; nullptr when there is none.
  [[nodiscard]] const GgufSource* find(std::string_view name) const noexcept;

 private:
  std::vector<GgufFile> files_;
  std::vector<GgufSource> tensors_;
  NameIndex index_;
};

/// The GGUF model in a directory: its only *.gguf file, or a part of its only split model. Nothing
/// when there is none. Throws Error: io; unsupported when there are several.
[[nodiscard]] std::optional<std::filesystem::path> find_gguf(
    const std::filesystem::path& directory);

}  // namespace safetensors::weights
