// Tensors that were added to a load by one call, and the chunks to read for them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "device/context.hpp"
#include "device/read_plan.hpp"
#include "safetensors/device.hpp"

namespace safetensors::device {

/// Pieces count tensors from the batch's first. A chunk's number is its index in `chunks`, or in
/// `run_chunks` plus the size of `chunks`.
struct Batch {
  std::uint64_t number = 0;  ///< of the load's batches, from 1
  Load::Index first = 0;     ///< the batch's first tensor, of the load's
  std::vector<Piece> pieces;
  std::vector<RunPiece> run_pieces;
  std::vector<Chunk> chunks;
  std::vector<RunChunk> run_chunks;
  std::vector<std::uint32_t> parts_per_tensor;  ///< parts in chunks; 0 for an empty tensor
  std::uint64_t nbytes = 0;                     ///< of all tensors
  RecordedEvent ready;  ///< copies to devices start after it; none for the host

  [[nodiscard]] std::size_t chunk_count() const noexcept {
    return chunks.size() + run_chunks.size();
  }
};

/// Throws: Error kInvalidArgument if a tensor has no valid destination or is not within its source.
void check_tensors(std::span<const LoadTensor> tensors,
                   std::span<const std::uint64_t> source_nbytes);

/// Plans the reads of tensors.
///
/// Requires: check_tensors() accepted them.
[[nodiscard]] std::unique_ptr<Batch> plan_batch(std::span<const LoadTensor> tensors,
                                                std::span<const std::uint64_t> source_nbytes,
                                                std::uint64_t chunk_nbytes);

/// One chunk for a reader to read and deliver.
///
/// Lifetime: the batch outlives it.
class ChunkTask {
 public:
  ChunkTask(const Batch& batch, std::size_t number) : batch_(&batch), number_(number) {}
  [[nodiscard]] const Batch& batch() const noexcept { return *batch_; }
  [[nodiscard]] std::size_t number() const noexcept { return number_; }

  /// Returns the chunk of pieces; nullptr if the task is a chunk of runs.
  [[nodiscard]] const Chunk* chunk() const noexcept {
    return number_ < batch_->chunks.size() ? &batch_->chunks[number_] : nullptr;
  }
  /// Returns the chunk of runs.
  ///
  /// Requires: chunk() is nullptr, here and for run_piece().
  [[nodiscard]] const RunChunk& run_chunk() const noexcept {
    return batch_->run_chunks[number_ - batch_->chunks.size()];
  }
  [[nodiscard]] const RunPiece& run_piece() const noexcept {
    return batch_->run_pieces[run_chunk().piece];
  }
  /// Returns the number of bytes that the chunk takes in a slot.
  [[nodiscard]] std::size_t nbytes() const noexcept {
    if (const Chunk* const dense = chunk()) return static_cast<std::size_t>(dense->nbytes);
    return static_cast<std::size_t>(run_chunk().count * run_piece().runs.run_nbytes);
  }
  /// Calls `work(part, tensor)` for each part in the chunk, in the order of the chunk's bytes.
  template <typename Work>
  void for_each_part(const Work& work) const {
    if (const Chunk* const dense = chunk()) {
      for (std::size_t i = dense->first_piece; i < dense->last_piece; ++i) {
        const ChunkPart part = part_of(batch_->pieces[i], *dense);
        if (part.nbytes != 0) work(part, batch_->first + batch_->pieces[i].tensor);
      }
      return;
    }
    const RunPiece& piece = run_piece();
    const std::uint64_t to = piece.to + run_chunk().first_run * piece.runs.run_nbytes;
    work(ChunkPart{0, nbytes(), to}, batch_->first + piece.tensor);
  }

 private:
  const Batch* batch_;
  std::size_t number_;
};

}  // namespace safetensors::device
