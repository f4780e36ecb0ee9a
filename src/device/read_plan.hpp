// Which stretches of which files to read, so that every wanted byte is read once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "safetensors/slice.hpp"

namespace safetensors::device {

/// Where a file is best cut: what reads past the page cache ask for.
inline constexpr std::uint64_t kReadAlignment = 4096;

/// Bytes that stand together in a source and at their destination.
struct Piece {
  std::uint32_t source;
  std::uint32_t tensor;
  std::uint64_t offset;  ///< in the source
  std::uint64_t nbytes;  ///< not 0
  std::uint64_t to;      ///< address
};

/// Runs of a tensor that are gathered on the way.
struct RunPiece {
  std::uint32_t source;
  std::uint32_t tensor;
  std::uint64_t position;  ///< of the tensor, in the source
  std::uint64_t to;
  ByteRuns runs;
};

/// What one read brings.
struct Chunk {
  std::uint32_t source;
  /// A stretch of the source, aligned at its begin; some bytes of it are no piece's.
  std::uint64_t offset;
  std::uint64_t nbytes;
  /// First wanted byte: those before it are another chunk's.
  std::uint64_t begin;
  /// Pieces that have bytes of it lie in [first_piece, last_piece).
  std::size_t first_piece;
  std::size_t last_piece;
};

/// Some runs of a RunPiece: their bytes end to end are at most a chunk.
struct RunChunk {
  std::size_t piece;
  std::uint64_t first_run;
  std::uint64_t count;
};

/// The part of a piece that a chunk brings; nbytes is 0 when it brings none.
struct Part {
  std::uint64_t from;  ///< position in the chunk
  std::uint64_t nbytes;
  std::uint64_t to;
};
[[nodiscard]] Part part_of(const Piece& piece, const Chunk& chunk) noexcept;

/// Sorts the pieces by source and offset, and plans their chunks: of at most `chunk_nbytes`,
/// ascending within a source; of several sources they take turns, so that several disks work at
/// once. Pieces lie within their sources, whose sizes are given. A gap of more than 64 KiB is not
/// read.
[[nodiscard]] std::vector<Chunk> plan_chunks(std::vector<Piece>& pieces,
                                             std::span<const std::uint64_t> source_nbytes,
                                             std::uint64_t chunk_nbytes);

/// The chunks of one RunPiece.
void plan_run_chunks(const RunPiece& piece, std::size_t index, std::uint64_t chunk_nbytes,
                     std::vector<RunChunk>& chunks);

/// Whether the runs are better read as pieces of their own than gathered.
[[nodiscard]] bool are_pieces(const ByteRuns& runs, std::uint64_t chunk_nbytes) noexcept;

}  // namespace safetensors::device
