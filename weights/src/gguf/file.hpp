// One GGUF file, open for reading.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

#include "common/files.hpp"
#include "gguf/header.hpp"
#include "model/stored_bytes.hpp"
#include "safetensors/buffer.hpp"
#include "safetensors/weights/limits.hpp"

namespace safetensors::weights {

struct GgufOptions {
  bool mmap = true;
  bool allow_gaps = false;
  Limits limits{};
};

/// Reads and validates the header at the start of the source, in steps that double from 64 KiB:
/// memory grows with what the file contains, never with what it claims. Metadata and names are
/// views of the memory that was read.
///
/// Throws: WeightsError, and what the source throws.
[[nodiscard]] GgufHeader read_gguf_header(const ByteSource& source,
                                          const std::filesystem::path& path,
                                          const GgufOptions& options);

/// One GGUF file. The header is read, not mapped: what was checked is what is used, even if another
/// process writes to the file.
///
/// Thread safety: several threads may call const members at once.
class GgufFile {
 public:
  /// Throws: WeightsError.
  GgufFile(const Files& files, const std::filesystem::path& path, const GgufOptions& options);

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  [[nodiscard]] const GgufHeader& header() const noexcept { return header_; }

  /// Returns bytes `begin` to `end` of a tensor of this file: a view if the file is in memory,
  /// mapped or of a source, else read.
  ///
  /// Throws: io, also if the file has been truncated.
  [[nodiscard]] StoredBytes bytes(const GgufTensor& tensor, std::uint64_t begin, std::uint64_t end,
                                  const Interrupt& interrupt = {}) const;
  /// Copies `to.size()` bytes of a tensor from `begin` on. Throws as bytes().
  void read(const GgufTensor& tensor, std::uint64_t begin, std::span<std::byte> to,
            const Interrupt& interrupt = {}) const;

 private:
  std::filesystem::path path_;
  FileBytes file_;
  GgufHeader header_;
};

}  // namespace safetensors::weights
