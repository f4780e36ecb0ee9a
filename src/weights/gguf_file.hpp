// One GGUF file, open for reading.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

#include "safetensors/buffer.hpp"
#include "safetensors/file_bytes.hpp"
#include "safetensors/weights/limits.hpp"
#include "weights/gguf_header.hpp"
#include "weights/stored_bytes.hpp"

namespace safetensors::weights {

struct GgufOptions {
  bool mmap = true;
  bool allow_gaps = false;
  Limits limits{};
};

/// Reads and validates the header that the source begins with, by steps that grow with what the
/// file holds, never with what it claims. Metadata and names share the memory read.
/// Throws weights::Error, and what the source throws.
[[nodiscard]] GgufHeader read_gguf_header(const ByteSource& source,
                                          const std::filesystem::path& path,
                                          const GgufOptions& options);

/// Immutable but for moving; const members are thread safe. The header is read, not mapped: what
/// was checked is what is used, whatever another process does to the file.
class GgufFile {
 public:
  /// Throws Error.
  GgufFile(const std::filesystem::path& path, const GgufOptions& options);

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  [[nodiscard]] const GgufHeader& header() const noexcept { return header_; }

  /// Bytes `begin` to `end` of a tensor of this file: a view when it is mapped, else read.
  /// Throws Error io, also when the file was cut short.
  [[nodiscard]] StoredBytes bytes(const GgufTensor& tensor, std::uint64_t begin, std::uint64_t end,
                                  const Interrupt& interrupt = {}) const;
  /// Copies bytes of a tensor, from `begin` on as many as `to` has. Throws as bytes().
  void read(const GgufTensor& tensor, std::uint64_t begin, std::span<std::byte> to,
            const Interrupt& interrupt = {}) const;

 private:
  std::filesystem::path path_;
  FileBytes file_;
  GgufHeader header_;
};

}  // namespace safetensors::weights
