// Reading the chunks of a ReadPlan.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "io/read_plan.hpp"
#include "safetensors/buffer.hpp"
#include "safetensors/byte_source.hpp"

namespace safetensors::io {

/// Shorter pieces are read together to scratch memory where reads wait for a device or a server.
inline constexpr std::uint64_t kShortPiece = std::uint64_t{256} << 10;
/// Scratch memory of this size stays in the processor's cache until its pieces are copied.
inline constexpr std::uint64_t kScratchSize = std::uint64_t{1} << 20;

/// Copies to each part its bytes out of `bytes`, which begin at `offset` in the source.
///
/// Requires: the parts lie within the bytes.
void copy_parts(std::uint64_t offset, std::span<const std::byte> bytes,
                std::span<const ReadPiece> parts) noexcept;

/// Reads a chunk to its destinations in host memory. With `in_one`, short pieces are read with all
/// of the chunk, by one read, which takes less time than several where reads wait for I/O.
/// `scratch` is memory that calls of one thread may share; it grows as needed.
///
/// Throws: what the source throws.
void read_chunk(const ByteSource& source, const ReadPlan& plan, std::size_t number, bool in_one,
                Buffer& scratch);

/// Reads the runs of a chunk and concatenates them in `to`. `scratch` as for read_chunk().
///
/// Requires: `to` has as many bytes as the runs.
/// Throws: what the source throws.
void read_concatenated(const ByteSource& source, const RunPiece& piece, const RunChunk& chunk,
                       std::span<std::byte> to, Buffer& scratch);

/// Reads all chunks of a plan of one source to host memory, with several threads if they have 8 MiB
/// or more.
///
/// Throws: what the source and `interrupt` throw.
void read_plan(const ByteSource& source, const ReadPlan& plan, std::uint64_t nbytes,
               const Interrupt& interrupt);

/// Returns a source as plans need it. Its chunks have `chunk_nbytes` unless it says otherwise.
[[nodiscard]] PlannedSource planned(const ByteSource& source, std::uint64_t chunk_nbytes);

/// Returns the length of the longest stretch of runs that one read takes: that of a chunk if each
/// read is a request, else that of scratch memory.
[[nodiscard]] inline std::uint64_t max_stretch(const ReadCost& cost) noexcept {
  return cost.is_request ? UINT64_MAX : kScratchSize;
}

}  // namespace safetensors::io
