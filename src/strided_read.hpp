// Copying and reading selections of a tensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "safetensors/buffer.hpp"
#include "safetensors/byte_source.hpp"
#include "safetensors/slice.hpp"

namespace safetensors {

/// Throws: Error kInvalidArgument unless all runs lie within `nbytes`.
void check_runs(const ByteRuns& runs, std::uint64_t nbytes);

/// Returns where the last run ends, from the tensor's first byte; 0 if there are no bytes.
/// Requires: check_runs() has accepted the runs.
[[nodiscard]] std::uint64_t end_of(const ByteRuns& runs) noexcept;

/// Copies the runs of `tensor` to `to`, concatenated.
void copy_runs(std::span<const std::byte> tensor, const ByteRuns& runs, std::span<std::byte> to,
               const Interrupt& interrupt);

/// Reads the runs of the tensor that begins at `position` to `to`, concatenated. Runs at most 64
/// KiB apart are read together with the gaps, others one by one.
void read_runs(const ByteSource& source, std::uint64_t position, const ByteRuns& runs,
               std::span<std::byte> to, const Interrupt& interrupt);

}  // namespace safetensors
