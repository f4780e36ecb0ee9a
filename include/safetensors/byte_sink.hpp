// Where the bytes of a file go: written by position, or in order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>

#include "safetensors/byte_source.hpp"
#include "safetensors/export.hpp"

namespace safetensors {

/// A destination for a file's bytes. Derive from it to write files elsewhere, such as into an
/// archive or to a server, and pass the sink to FileWriter.
///
/// The destructor of a sink that was not committed undoes what it can: it removes a temporary file.
/// Thread safety: if seeks(), several threads may call write_at and copy_from at once, for
///   different ranges. All other calls come one at a time.
class SAFETENSORS_API ByteSink {
 public:
  virtual ~ByteSink();
  /// Returns whether write_at takes any offset. If not, each call continues where the last one
  /// ended, as in a pipe.
  [[nodiscard]] virtual bool seeks() const noexcept = 0;
  /// Returns the path that names the file in FileWriter's errors; empty, which is the default, if
  /// there is none. The answer never changes.
  [[nodiscard]] virtual std::filesystem::path label() const;
  /// Called once, before anything is written, with the size of the whole file; with 0 if it is not
  /// known yet. For example to reserve disk space. Does nothing by default.
  virtual void start(std::uint64_t nbytes);
  /// Writes the first of these bytes. Returns how many were written; 0 if a signal interrupted the
  /// call, which is then repeated.
  ///
  /// Requires: `bytes` is not empty.
  /// Throws: Error kIo, or any other exception, which then leaves FileWriter unchanged.
  [[nodiscard]] virtual std::size_t write_at(std::uint64_t offset,
                                             std::span<const std::byte> bytes) = 0;
  /// Copies bytes of a source without bringing them into memory. Returns how many of the first
  /// bytes were copied; 0, which is the default, if that is not possible: the caller then reads and
  /// writes them.
  ///
  /// Throws: Error kIo, or kFileChanged if the source has changed since it was opened.
  [[nodiscard]] virtual std::uint64_t copy_from(const ByteSource& source, std::uint64_t begin,
                                                std::uint64_t nbytes, std::uint64_t offset);
  /// Moves the first `nbytes` bytes that were written to offset `by`, a multiple of kBlockSize, to
  /// make room before them. Returns false, which is the default, if that is not possible.
  ///
  /// Throws: Error kIo.
  [[nodiscard]] virtual bool shift(std::uint64_t nbytes, std::uint64_t by);
  /// Called once, after everything was written, with the size of the whole file: gives the file its
  /// name. With `fsync`, returns only after the file and its name are on the disk.
  virtual void commit(std::uint64_t nbytes, bool fsync) = 0;

 protected:
  ByteSink() = default;
  ByteSink(const ByteSink&) = default;
  ByteSink& operator=(const ByteSink&) = default;
};

/// Returns a sink that writes a temporary file beside `path`. commit() renames it over `path`, so
/// that an existing file is replaced completely or not at all. docs/format.md, "Saving", lists what
/// is kept of a replaced file. A pipe or a character device is written in order.
///
/// If `rights_of` is not empty, the file gets the mode, owner, group and access list of the file of
/// that path, as if it replaced that file.
///
/// commit() calls `before_rename`, if it is not empty, with the path of the complete temporary
/// file. What it throws leaves commit(), and nothing is renamed. Not called for a pipe or a
/// device. commit() then removes the sums of the file that it replaces: see remove_sums().
///
/// Throws: Error kIo with os_error(), kNotRegularFile (a directory, a socket, a block device), or
///   kInvalidArgument (a path contains a NUL); what `interrupt` throws, which is called while a
///   pipe has no reader. The sink throws Error kIo.
[[nodiscard]] SAFETENSORS_API std::unique_ptr<ByteSink> make_file_sink(
    const std::filesystem::path& path, const std::filesystem::path& rights_of = {},
    const Interrupt& interrupt = {},
    const std::function<void(const std::filesystem::path& temporary)>& before_rename = {});

/// Returns a sink that writes to a descriptor (on Windows: a C run-time descriptor), from its
/// current position on. A regular file is written by position, and commit() leaves the descriptor
/// at the end of what was written. Everything else, and a file that was opened to append, is
/// written in order. Not atomic: if the write is not completed, a file that is written by position
/// is cut back to where it began, if it ended there before. `label` names the descriptor in errors.
///
/// Throws: Error kIo.
/// Lifetime: the caller keeps the descriptor and may close it after the call.
[[nodiscard]] SAFETENSORS_API std::unique_ptr<ByteSink> make_descriptor_sink(
    int descriptor, const std::filesystem::path& label);

}  // namespace safetensors
