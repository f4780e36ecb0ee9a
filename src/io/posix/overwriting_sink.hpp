// Writes into a file instead of replacing it.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>

#include "io/posix/fd.hpp"
#include "io/posix/own_file.hpp"
#include "safetensors/byte_sink.hpp"

namespace safetensors::io {

using BeforeRename = std::function<void(const std::filesystem::path& complete)>;

/// Opens what a typed path leads to, as the system does. Throws: Error kIo; what `interrupt`
/// throws.
[[nodiscard]] Fd open_for_writing(const std::filesystem::path& path, int flags,
                                  const Interrupt& interrupt);

/// Returns whether the file is empty and somebody here expects to find in it what is saved: it is
/// the target of a descriptor's path, or this process has it open to write, as a
/// NamedTemporaryFile. There is no old content that a replacement would keep whole.
[[nodiscard]] bool is_empty_and_held(const Place& place) noexcept;

/// Returns a sink that writes into such a file; nullptr if another save does so already. A failed
/// save leaves the file empty. `before_commit` is as for make_file_sink().
/// Throws: Error kIo; what `interrupt` throws.
[[nodiscard]] std::unique_ptr<ByteSink> fill(const Place& place, const std::filesystem::path& typed,
                                             const Interrupt& interrupt,
                                             const BeforeRename& before_commit);

}  // namespace safetensors::io
