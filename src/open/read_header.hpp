// Reading a file's header.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

#include "safetensors/buffer.hpp"
#include "safetensors/byte_source.hpp"
#include "safetensors/header.hpp"

namespace safetensors {

struct ReadHeader {
  Header header;
  std::uint64_t data_begin;
};

/// Reads the start of a file, up to the end of the header or further. Read, not mapped, so that
/// another process cannot change the header between its check and its use.
/// Throws: what read_at throws, and the errors of the header's length.
[[nodiscard]] Buffer read_prologue(const ByteSource& source);

/// Parses the header of a file of `nbytes`. `start` is what read_prologue() returned, or all bytes.
/// Throws: what Header::parse throws, and the errors of the header's length.
[[nodiscard]] ReadHeader parse_prologue(std::span<const std::byte> start, std::uint64_t nbytes);

/// Reads the header. Adds the prefix of upstream's texts and the file's name to errors in the
/// file's content; errors of the system already name the file.
[[nodiscard]] ReadHeader read_header(const ByteSource& source, const std::filesystem::path& path);

}  // namespace safetensors
