// Writing a file piece by piece, for tensors that are never all in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "safetensors/buffer.hpp"
#include "safetensors/byte_sink.hpp"
#include "safetensors/byte_source.hpp"
#include "safetensors/export.hpp"
#include "safetensors/layout.hpp"
#include "safetensors/slice.hpp"

namespace safetensors {

/// Options of FileWriter.
struct WriterOptions {
  /// Flush the file and its directory entry to the disk before commit() returns.
  bool fsync = false;
  Interrupt interrupt = {};
  /// Called on the thread that writes, one call at a time, with the bytes written and the size of
  /// the file. What it throws leaves the call that writes, and the writer has failed.
  std::function<void(std::uint64_t done, std::uint64_t total)> progress = {};
  /// The limit of bytes that are kept in memory because a sink that does not seek needs others
  /// first.
  std::uint64_t budget_nbytes = std::uint64_t{256} << 20;
  /// Bytes for the header of a file without a plan, rounded up to a multiple of kBlockSize. A
  /// longer header is possible, but may cost a copy of the data.
  std::uint64_t header_room = std::uint64_t{64} << 10;
};

/// A part of a source that is a tensor of the file to be written.
struct TensorCopy {
  std::size_t tensor;   ///< index in the plan
  std::uint64_t begin;  ///< offset of its first byte in the source
};

/// Writes the file that a LayoutPlan describes. Tensors are identified by their index in what the
/// plan was made from, and may be written in any order, each once.
///
///     const std::vector<TensorSpec> specs = {...};
///     FileWriter writer(make_file_sink("model.safetensors"), plan_file(specs));
///     for (std::size_t i = 0; i < specs.size(); ++i) writer.write(i, bytes_of(i));
///     writer.commit();
///
/// Until commit(), a file of a sink that seeks begins with 8 zero bytes instead of the header's
/// length, so that no reader takes an incomplete file for a valid one.
///
/// If a sink, `interrupt` or `progress` throws, the writer has failed: all calls but abort() then
/// throw Error kWriterClosed. The destructor aborts a writer that was not committed.
///
/// Thread safety: several threads may write and call commit() at once: one commit() completes the
///   file, and none does while bytes are being written. abort(), moving and the destructor must
///   come when all other calls have returned, and must not be called by the sink, `interrupt` or
///   `progress`, nor may another function of the writer.
/// Lifetime: no call keeps a reference to the caller's bytes.
/// Its errors name the file by the sink's label().
class SAFETENSORS_API FileWriter {
 public:
  /// Throws: Error kInvalidArgument if `sink` is null, or `plan` was not made by plan_file() or
  ///   plan_layout(); what the sink and `interrupt` throw.
  FileWriter(std::unique_ptr<ByteSink> sink, LayoutPlan plan, WriterOptions options = {});
  /// Makes a writer for tensors that are not known yet: add() them. They are stored in that order,
  /// after the room for the header, which is written by commit() and padded with spaces.
  ///
  /// Throws: Error kInvalidArgument if `sink` is null or does not seek, or kHeaderTooLarge if the
  ///   room exceeds kMaxHeaderSize; what the sink throws.
  FileWriter(std::unique_ptr<ByteSink> sink, const Metadata* metadata, WriterOptions options = {});
  FileWriter(FileWriter&&) noexcept;
  FileWriter& operator=(FileWriter&&) noexcept;
  ~FileWriter();

  /// Adds a tensor at the end of a file without a plan, and returns its index.
  ///
  /// Throws: Error kWrittenTwice (the name), kInvalidArgument (the file has a plan), and what
  ///   plan_layout throws.
  std::size_t add(const TensorSpec& spec);
  /// Writes a whole tensor.
  ///
  /// Throws: Error kInvalidArgument (no such tensor), kInvalidTensorInfo (`bytes` has not its
  ///   size), kWrittenTwice, or kOutOfOrder if the sink does not seek, needs other tensors first,
  ///   and the budget is used up; what the sink throws.
  void write(std::size_t tensor, std::span<const std::byte> bytes);
  /// Writes a part of a tensor, `begin` bytes after its start. Parts that overlap are noticed only
  /// if together they have more bytes than the tensor, or, by commit(), if the sink does not seek.
  ///
  /// Throws: as write(); kInvalidArgument if the part reaches past the tensor's end.
  void write_at(std::size_t tensor, std::uint64_t begin, std::span<const std::byte> bytes);
  /// Writes a part of a tensor that select_part() selected: `bytes` are its runs, concatenated.
  ///
  /// Throws: as write_at().
  void write_runs(std::size_t tensor, const ByteRuns& runs, std::span<const std::byte> bytes);
  /// Copies whole tensors from a source. Blocks are shared with the source if the file system can
  /// do that (btrfs, XFS and others), else copied in the kernel if possible. Tensors that are
  /// adjacent in both files are copied together. If one of the tensors was written before, a sink
  /// that seeks gets none of them.
  ///
  /// Throws: as write(); kFileChanged if the source has changed since it was opened; what reading
  ///   it throws.
  void copy(const ByteSource& source, std::span<const TensorCopy> tensors);
  /// Returns the indices of the tensors that are not completely written, in file order.
  [[nodiscard]] std::vector<std::size_t> missing() const;
  /// Returns how many bytes of tensors were given to the writer; 0 after abort().
  [[nodiscard]] std::uint64_t nbytes_written() const noexcept;
  /// Completes the file.
  ///
  /// Throws: Error kMissingTensors, which names up to five of them, or says that another thread is
  ///   writing, and leaves the writer as it was; kHeaderTooLarge; what the sink throws.
  void commit();
  /// Discards what was written. Does nothing after commit().
  void abort() noexcept;

 private:
  class State;
  /// Returns what `call` returns, which is called with the state.
  ///
  /// Throws: Error kWriterClosed after abort(); what `call` throws, with the path of the file.
  template <typename Call>
  decltype(auto) with_state(const Call& call) const;

  std::unique_ptr<State> state_;
};

}  // namespace safetensors
