// Selections of a tensor, from memory or from a file, into one block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "safetensors/buffer.hpp"
#include "safetensors/byte_source.hpp"
#include "safetensors/slice.hpp"

namespace safetensors {

/// Throws Error kInvalidArgument unless all runs lie within `nbytes`.
void check_runs(const ByteRuns& runs, std::uint64_t nbytes);

/// Where the last run ends, within a tensor; 0 when there are no bytes. Of runs that were checked.
[[nodiscard]] std::uint64_t end_of(const ByteRuns& runs) noexcept;

/// Copies the runs of `tensor` to `to`, end to end.
void copy_runs(std::span<const std::byte> tensor, const ByteRuns& runs, std::span<std::byte> to,
               const Interrupt& interrupt);

/// Reads the runs of the tensor that begins at `position`. Runs close together are read with the
/// gaps between them, others one by one.
void read_runs(const ByteSource& source, std::uint64_t position, const ByteRuns& runs,
               std::span<std::byte> to, const Interrupt& interrupt);

}  // namespace safetensors
