// Copying and reading selections of a tensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "safetensors/buffer.hpp"
#include "safetensors/byte_source.hpp"
#include "safetensors/slice.hpp"

namespace safetensors {

/// Throws: Error kInvalidArgument unless all runs lie within the tensor's `nbytes`, and their
///   destinations within `to_nbytes`.
void check_runs(std::span<const ByteRuns> runs, std::uint64_t nbytes, std::uint64_t to_nbytes);

/// Returns where the furthest run ends, from the tensor's first byte; 0 if there are no bytes.
/// Requires: check_runs() has accepted the runs.
[[nodiscard]] std::uint64_t end_of(std::span<const ByteRuns> runs) noexcept;

/// Returns where the furthest run ends at the destination, from its first byte; 0 if there are
/// none. Requires: as end_of().
[[nodiscard]] std::uint64_t to_end_of(std::span<const ByteRuns> runs) noexcept;

/// Copies the runs of `tensor` to their destinations in `to`, with several threads if there is
/// enough to copy.
/// Requires: check_runs() has accepted the runs; no two destinations overlap.
void copy_runs(std::span<const std::byte> tensor, std::span<const ByteRuns> runs,
               std::span<std::byte> to, const Interrupt& interrupt);

/// Reads the runs of the tensor that begins at `position` to their destinations in `to`. Gaps that
/// ReadCost permits are read as well.
/// Requires: as copy_runs().
void read_runs(const ByteSource& source, std::uint64_t position, std::span<const ByteRuns> runs,
               std::span<std::byte> to, const Interrupt& interrupt);

}  // namespace safetensors
