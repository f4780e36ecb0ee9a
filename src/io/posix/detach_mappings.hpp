// Overwriting a file in place without changing the tensors that are mapped from it.
#pragma once

#include <filesystem>

#include "safetensors/buffer.hpp"

namespace safetensors::io {

/// Call before a file is overwritten in place. On Linux, replaces every private mapping of the file
/// in this process by a copy of its memory at the same address, so that all tensors that are mapped
/// from it keep their values. Other threads may read that memory meanwhile, but what they write to
/// it may be lost.
///
/// Other systems do not list a process's mappings: does nothing there.
///
/// Throws: Error kIo if there is not enough memory, if the file is mapped in a way that cannot be
///   replaced (shared mappings), or if the mappings cannot be listed; what `interrupt` throws.
void detach_mappings(const std::filesystem::path& path, const Interrupt& interrupt);

}  // namespace safetensors::io
