// planned_reads() of the public header.
#include <memory>
#include <vector>

#include "device/batch.hpp"
#include "io/chunk_reader.hpp"
#include "io/run_cursor.hpp"
#include "safetensors/device.hpp"

namespace safetensors {
namespace {

/// Adds the reads of the runs of a chunk: one for each stretch.
void add_stretches(const io::RunPiece& piece, const io::RunChunk& chunk, const ReadCost& cost,
                   PlannedReads& reads) {
  io::RunCursor cursor(piece.runs, chunk.first_run);
  for (std::uint64_t left = chunk.count; left > 0;) {
    const io::Stretch stretch =
        io::next_stretch(cursor, left, cost.gap_nbytes, io::max_stretch(cost));
    left -= stretch.run_count;
    reads.read_nbytes += stretch.end - stretch.begin;
    ++reads.read_count;
  }
}

}  // namespace

std::vector<PlannedReads> planned_reads(std::span<const std::shared_ptr<const ByteSource>> sources,
                                        std::span<const LoadTensor> tensors,
                                        std::optional<std::uint64_t> gap_nbytes) {
  std::vector<io::PlannedSource> planned;
  for (const auto& source : sources) {
    planned.push_back(io::planned(*source, load_config().chunk_nbytes));
    if (gap_nbytes) planned.back().cost.gap_nbytes = *gap_nbytes;
  }
  std::vector<LoadTensor> placed(tensors.begin(), tensors.end());
  for (LoadTensor& tensor : placed) tensor.to = 1;  // an address that no read uses
  device::check_tensors(placed, planned);
  const std::unique_ptr<device::Batch> batch = device::plan_batch(placed, planned);
  const io::ReadPlan& plan = batch->plan;
  std::vector<PlannedReads> reads(sources.size());
  for (const LoadTensor& tensor : placed) reads[tensor.source].wanted_nbytes += tensor.nbytes;
  for (const io::Chunk& chunk : plan.chunks) {
    reads[chunk.source].read_nbytes += chunk.nbytes;
    ++reads[chunk.source].read_count;
  }
  for (const io::RunChunk& chunk : plan.run_chunks) {
    const io::RunPiece& piece = plan.run_pieces[chunk.piece];
    add_stretches(piece, chunk, planned[piece.source].cost, reads[piece.source]);
  }
  return reads;
}

}  // namespace safetensors
