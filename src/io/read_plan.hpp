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
// Of a part with many short runs, a chunk is a block of runs. It is read in stretches, each of them
// runs and the short gaps between them, and a slot holds its runs without gaps:
//
//   tensor         ...[run 0]..[run 1]..........................[run 2]..[run 3]..
//   reads             [   stretch    ]                          [   stretch    ]
//   slot           [run 0][run 1][run 2][run 3]              RunChunk {first_run 0, count 4}
//   destination    where ByteRuns says for each run
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "safetensors/byte_source.hpp"
#include "safetensors/slice.hpp"

namespace safetensors::io {

/// Converts an address to a pointer, and back.
[[nodiscard]] inline void* pointer_of(std::uint64_t address) noexcept {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the purpose of this function
  return reinterpret_cast<void*>(static_cast<std::uintptr_t>(address));
}
[[nodiscard]] inline std::uint64_t address_of(const void* pointer) noexcept {
  return static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(pointer));
}

/// A source, as plans need it.
struct PlannedSource {
  std::uint64_t nbytes;
  ReadCost cost;                          ///< chunk_nbytes is not 0
  std::uint64_t max_nbytes = UINT64_MAX;  ///< of a chunk that ends where `source` divides reads
  const ByteSource* source = nullptr;     ///< set if cost.is_checked
};

/// Bytes that are contiguous both in a source and at their destination.
struct Piece {
  std::uint32_t source;
  std::uint32_t tensor;
  std::uint64_t offset;  ///< in the source
  std::uint64_t nbytes;  ///< not 0
  std::uint64_t to;      ///< address of the destination
};

/// Short runs of one tensor.
struct RunPiece {
  std::uint32_t source;
  std::uint32_t tensor;
  std::uint64_t position;  ///< of the tensor, in the source
  std::uint64_t to;        ///< address of the destination's first byte
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

/// A block of consecutive runs of a RunPiece.
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

/// Pieces, and the chunks to read for them. A chunk's number is its index in `chunks`, or in
/// `run_chunks` plus the size of `chunks`.
struct ReadPlan {
  std::vector<Piece> pieces;
  std::vector<RunPiece> run_pieces;
  std::vector<Chunk> chunks;
  std::vector<RunChunk> run_chunks;

  /// Adds a part of the tensor that begins at `position` in the source: as one RunPiece, or as a
  /// Piece for each run if these are long or few.
  ///
  /// Requires: as plan(). The part is not empty.
  void add(std::uint32_t source, std::uint32_t tensor, std::uint64_t position, std::uint64_t to,
           const ByteRuns& runs, const ReadCost& cost);
  /// Plans the chunks: every byte of the pieces is in one of them, and none is longer than the
  /// chunk_nbytes of its source, unless the source divides reads. Gaps of more than gap_nbytes are
  /// not read. Chunks of pieces ascend within a source, and the sources take turns of 64 MiB, so
  /// that several disks work at once.
  ///
  /// Requires: the pieces lie within their sources.
  void plan(std::span<const PlannedSource> sources);
  [[nodiscard]] std::size_t chunk_count() const noexcept {
    return chunks.size() + run_chunks.size();
  }
};

}  // namespace safetensors::io
