// Which ranges of which files to read, so that every wanted byte is read once.
//
// A byte has an offset in its file, in the chunk that is read, in the slot that the chunk is read
// to, and at its destination. For example a tensor of 10,000 bytes at offset 6,000 of a file, with
// the destination D, in chunks of 8 KiB:
//
//   file           4096     6000                12288             16000  16384
//                  |        [============= tensor ===============]      |    Piece {offset 6000}
//                  [-------- chunk 0 ----------][------- chunk 1 -------]    Chunk {offset 4096},
//                                                                            Chunk {offset 12288}
//   chunk or slot  0        1904             8192
//                           [====== part ======]        ChunkPart {from 1904, nbytes 6288, to D}
//                                               0                3712
//                                               [===== part =====]
//                                                  ChunkPart {from 0, nbytes 3712, to D + 6288}
//   destination             D                   D + 6288         D + 10000
//
// If only many short runs of a tensor are wanted, a chunk holds runs without the bytes between
// them. For a ByteRuns of runs 0, 1, 2, ... of R bytes each:
//
//   tensor         ...[run 0]........[run 1]........[run 2]........[run 3]...
//   chunk or slot  [run 0][run 1]   and   [run 2][run 3]    RunChunk {first_run 0, count 2},
//                                                           RunChunk {first_run 2, count 2}
//   destination    D                      D + 2 * R
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
  /// Offset in the source of the first wanted byte. A piece may begin before it: its bytes below
  /// `begin` are in chunks before this one.
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

/// The bytes that a piece and a chunk have in common; empty if nbytes is 0.
struct ChunkPart {
  std::uint64_t from;  ///< offset in the chunk
  std::uint64_t nbytes;
  std::uint64_t to;  ///< address of the destination
};
[[nodiscard]] ChunkPart part_of(const Piece& piece, const Chunk& chunk) noexcept;

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

/// Returns whether runs are so long that reading each as a separate piece is faster.
[[nodiscard]] bool are_pieces(const ByteRuns& runs, std::uint64_t chunk_nbytes) noexcept;

}  // namespace safetensors::device
