// Writing any bytes to a path, as save_file writes a file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "io/file_sink.hpp"
#include "io/sink_writer.hpp"

namespace test {

struct FileContent {
  std::vector<std::span<const std::byte>> pieces;  ///< in order
  std::uint64_t total_nbytes = 0;
};

struct WriteOptions {
  bool fsync = false;
  const safetensors::Interrupt& interrupt;
  safetensors::io::WriteProgress progress = {};
};

inline void write_pieces(std::unique_ptr<safetensors::ByteSink> sink, const FileContent& content,
                         const WriteOptions& options) {
  sink->start(content.total_nbytes);
  safetensors::io::SinkWriter writer(*sink, content.total_nbytes, options.interrupt,
                                     options.progress);
  std::uint64_t at = 0;
  for (const std::span<const std::byte> piece : content.pieces) {
    if (safetensors::io::SinkWriter::is_small(piece.size())) {
      writer.gather(at, piece);
    } else {
      writer.flush();
      writer.write_now(at, piece);
    }
    at += piece.size();
  }
  writer.flush();
  sink->commit(content.total_nbytes, options.fsync);
}

inline void write_file(const std::filesystem::path& path, const FileContent& content,
                       const WriteOptions& options) {
  try {
    write_pieces(safetensors::make_file_sink(path, {}, options.interrupt), content, options);
  } catch (const safetensors::io::CannotReplace&) {
    write_pieces(safetensors::io::make_overwriting_sink(path, options.interrupt), content, options);
  }
}

}  // namespace test
