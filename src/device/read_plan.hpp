// Which ranges of which files to read, so that every wanted byte is read once.
//
// Four offset systems meet here. For a dense tensor, of which all bytes are wanted:
//
//   in the source   0 ....... piece.offset ................ piece.offset + piece.nbytes .......
//                             |<------------- piece ------------->|
//                     |<--- chunk --->|<--- chunk --->|<--- chunk --->|
//                     chunk.offset (a multiple of 4096)
//
//   in the chunk      0 ... part.from ................ chunk.nbytes
//                           |<- part ->|   the bytes that a piece and a chunk have in common
//
//   in the slot       as in the chunk: a chunk is read to the begin of a slot of staging memory, or
//                     of scratch memory if the destination is host memory
//
//   at the destination   piece.to + (part's first byte - piece.offset)
//
// For a part of a tensor that consists of many short runs, a chunk holds the runs end to end:
//
//   in the tensor   ..[run 0]......[run 1]......[run 2]......[run 3]..      ByteRuns
//   in the chunk      [run 0][run 1][run 2]      RunChunk {first_run 0, count 3}
//   destination       piece.to + first_run * run_nbytes
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "safetensors/slice.hpp"

namespace safetensors::device {

/// Chunks begin at multiples of this, which direct I/O requires of offsets.
inline constexpr std::uint64_t kReadAlignment = 4096;

/// Bytes that are contiguous both in a source and at their destination.
struct Piece {
  std::uint32_t source;
  std::uint32_t tensor;
  std::uint64_t offset;  ///< in the source
  std::uint64_t nbytes;  ///< not 0
  std::uint64_t to;      ///< address of the destination
};

/// Runs of one tensor that are gathered while they are read.
struct RunPiece {
  std::uint32_t source;
  std::uint32_t tensor;
  std::uint64_t position;  ///< of the tensor, in the source
  std::uint64_t to;        ///< address of the destination
  ByteRuns runs;
};

/// One read of a source, for one or more pieces.
struct Chunk {
  std::uint32_t source;
  /// The range of the source that is read. Some of its bytes may belong to no piece.
  std::uint64_t offset;
  std::uint64_t nbytes;
  /// Offset in the source of the first wanted byte. The chunk before brings the bytes below it, of
  /// which alignment makes this chunk read some again.
  std::uint64_t begin;
  /// Pieces with bytes in this chunk are within [first_piece, last_piece).
  std::size_t first_piece;
  std::size_t last_piece;
};

/// One block of consecutive runs of a RunPiece.
struct RunChunk {
  std::size_t piece;
  std::uint64_t first_run;
  std::uint64_t count;
};

/// The bytes that a piece and a chunk have in common; none if nbytes is 0.
struct Part {
  std::uint64_t from;  ///< offset in the chunk
  std::uint64_t nbytes;
  std::uint64_t to;  ///< address of the destination
};
[[nodiscard]] Part part_of(const Piece& piece, const Chunk& chunk) noexcept;

/// Sorts the pieces by source and offset and returns chunks of at most `chunk_nbytes` for them. A
/// gap of more than 64 KiB between pieces is not read. Chunks ascend within a source; the sources
/// take turns of 64 MiB, so that several disks work at once.
///
/// Requires: pieces lie within their sources, whose sizes are `source_nbytes`.
[[nodiscard]] std::vector<Chunk> plan_chunks(std::vector<Piece>& pieces,
                                             std::span<const std::uint64_t> source_nbytes,
                                             std::uint64_t chunk_nbytes);

/// Appends the chunks of one RunPiece, of at most `chunk_nbytes` or one run each. `index` is the
/// piece's number.
void plan_run_chunks(const RunPiece& piece, std::size_t index, std::uint64_t chunk_nbytes,
                     std::vector<RunChunk>& chunks);

/// Returns whether runs are so long that each is better read as a piece of its own.
[[nodiscard]] bool are_pieces(const ByteRuns& runs, std::uint64_t chunk_nbytes) noexcept;

}  // namespace safetensors::device
