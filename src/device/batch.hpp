// Tensors that were added to a load by one call, and the chunks to read for them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "device/context.hpp"
#include "io/read_plan.hpp"
#include "io/run_cursor.hpp"
#include "safetensors/device.hpp"

namespace safetensors::device {

/// The plan's pieces count tensors from the batch's first.
struct Batch {
  std::uint64_t number = 0;  ///< of the load's batches, from 1
  Load::Index first = 0;     ///< the batch's first tensor, of the load's
  io::ReadPlan plan;
  std::vector<std::uint32_t> parts_per_tensor;  ///< parts in chunks; 0 for an empty tensor
  std::uint64_t nbytes = 0;                     ///< of all tensors
  RecordedEvent ready;  ///< copies to devices start after it; none for the host
};

/// Throws: Error kInvalidArgument if a tensor has no valid destination or is not within its source.
void check_tensors(std::span<const LoadTensor> tensors, std::span<const io::PlannedSource> sources);

/// Plans the reads of tensors.
///
/// Requires: check_tensors() accepted them.
[[nodiscard]] std::unique_ptr<Batch> plan_batch(std::span<const LoadTensor> tensors,
                                                std::span<const io::PlannedSource> sources);

/// One chunk for a reader to read and deliver.
///
/// Lifetime: the batch outlives it.
class ChunkTask {
 public:
  ChunkTask(const Batch& batch, std::size_t number) : batch_(&batch), number_(number) {}
  [[nodiscard]] const Batch& batch() const noexcept { return *batch_; }
  [[nodiscard]] const io::ReadPlan& plan() const noexcept { return batch_->plan; }
  [[nodiscard]] std::size_t number() const noexcept { return number_; }

  /// Returns the chunk of pieces; nullptr if the task is a chunk of runs.
  [[nodiscard]] const io::Chunk* chunk() const noexcept {
    return number_ < plan().chunks.size() ? &plan().chunks[number_] : nullptr;
  }
  /// Returns the chunk of runs.
  ///
  /// Requires: chunk() is nullptr, here and for run_piece().
  [[nodiscard]] const io::RunChunk& run_chunk() const noexcept {
    return plan().run_chunks[number_ - plan().chunks.size()];
  }
  [[nodiscard]] const io::RunPiece& run_piece() const noexcept {
    return plan().run_pieces[run_chunk().piece];
  }
  [[nodiscard]] std::uint32_t source() const noexcept {
    const io::Chunk* const dense = chunk();
    return dense != nullptr ? dense->source : run_piece().source;
  }
  /// Returns the number of bytes that the chunk takes in a slot.
  [[nodiscard]] std::size_t nbytes() const noexcept {
    if (const io::Chunk* const dense = chunk()) return static_cast<std::size_t>(dense->nbytes);
    return static_cast<std::size_t>(run_chunk().count * run_piece().runs.run_nbytes);
  }
  /// Calls `work(nbytes, tensor)` for each tensor that has bytes in the chunk, once for each piece
  /// or for all runs together.
  template <typename Work>
  void for_each_tensor(const Work& work) const {
    if (const io::Chunk* const dense = chunk()) {
      for (std::size_t i = dense->first_piece; i < dense->last_piece; ++i) {
        const io::Piece& piece = plan().pieces[i];
        const std::uint64_t taken = part_of(piece, *dense).nbytes;
        if (taken != 0) work(taken, batch_->first + piece.tensor);
      }
      return;
    }
    work(nbytes(), batch_->first + run_piece().tensor);
  }
  /// Calls `work(from, nbytes, to)` for each piece of the chunk that is contiguous in a slot, from
  /// offset `from` on, and at its destination.
  template <typename Work>
  void for_each_copy(const Work& work) const {
    if (const io::Chunk* const dense = chunk()) {
      for (std::size_t i = dense->first_piece; i < dense->last_piece; ++i) {
        const io::ChunkPart part = part_of(plan().pieces[i], *dense);
        if (part.nbytes != 0) work(part.from, part.nbytes, part.to);
      }
      return;
    }
    const io::RunPiece& piece = run_piece();
    io::RunCursor cursor(piece.runs, run_chunk().first_run);
    std::uint64_t from = 0;
    std::uint64_t to = piece.to + cursor.to();
    std::uint64_t copied = 0;
    for (std::uint64_t left = run_chunk().count; left > 0; --left, cursor.next()) {
      if (piece.to + cursor.to() != to + copied) {
        work(from, copied, to);
        from += copied;
        to = piece.to + cursor.to();
        copied = 0;
      }
      copied += piece.runs.run_nbytes;
    }
    work(from, copied, to);
  }

 private:
  const Batch* batch_;
  std::size_t number_;
};

}  // namespace safetensors::device
