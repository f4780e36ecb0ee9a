// Overwriting a file in place without changing the tensors that are mapped from it.
#pragma once

#include <cstdint>
#include <filesystem>

#include "safetensors/buffer.hpp"

namespace safetensors::io {

/// What to do about mappings that cannot be replaced by copies: shared ones, which show every
/// change of the file.
enum class SharedMappings : std::uint8_t { kRefuse, kKeep };

/// Call before a file is overwritten in place. On Linux, replaces every private mapping of the file
/// in this process by a copy of its memory at the same address, so that all tensors that are mapped
/// from it keep their values. Other threads may read that memory meanwhile, but what they write to
/// the 128 KiB that are being copied is lost.
///
/// Other systems do not list a process's mappings: does nothing there.
///
/// Requires: no other code unmaps private mappings of the file meanwhile. MappedFile may.
/// Throws: Error kIo if there is not enough memory for all of them (nothing has been replaced
/// then),
///   if a shared mapping is refused, if pages have gone because another program truncates the file,
///   or if the mappings cannot be listed; what `interrupt` throws, which is called after each one.
void detach_mappings(const std::filesystem::path& path, const Interrupt& interrupt,
                     SharedMappings shared = SharedMappings::kRefuse);

/// The same for the file behind a descriptor, however it was opened. `path` names it in errors.
void detach_mappings(int descriptor, const std::filesystem::path& path, const Interrupt& interrupt,
                     SharedMappings shared = SharedMappings::kRefuse);

/// The same for a file that a caller outside the library is about to overwrite: without an
/// interrupt, and shared mappings are kept. Takes one system call if the path names no file that a
/// MappedFile of this process maps.
void detach_if_mapped(const std::filesystem::path& path);

}  // namespace safetensors::io
