#include "device/batch.hpp"

#include <limits>
#include <string>

#include "io/run_reader.hpp"
#include "safetensors/error.hpp"

namespace safetensors::device {
namespace {

/// Returns whether [begin, begin + nbytes) ends at or before `end`, without overflow.
bool fits(std::uint64_t begin, std::uint64_t nbytes, std::uint64_t end) noexcept {
  return begin <= end && nbytes <= end - begin;
}

void check_tensor(const LoadTensor& tensor, std::span<const std::uint64_t> source_nbytes) {
  const auto refuse = [&](const std::string& why) {
    const std::string name(tensor.name);
    fail(ErrorCode::kInvalidArgument, "tensor `" + name + "` " + why, {.subject = name});
  };
  if (tensor.source >= source_nbytes.size()) refuse("names a source that the load does not have");
  if (tensor.nbytes == 0) return;
  const std::uint64_t end = source_nbytes[tensor.source];
  if (!tensor.runs && !fits(tensor.offset, tensor.nbytes, end)) {
    refuse("reaches past the end of its source");
  }
  if (tensor.runs && (tensor.offset > end || tensor.runs->nbytes() != tensor.nbytes)) {
    refuse("has a size that differs from that of its runs");
  }
  if (tensor.to == 0) refuse("has no destination");
  if (!fits(tensor.to, tensor.nbytes, std::numeric_limits<std::uint64_t>::max())) {
    refuse("has a destination beyond the address space");
  }
}

void add_pieces(Batch& batch, const LoadTensor& tensor, Load::Index index,
                std::uint64_t chunk_nbytes) {
  if (!tensor.runs) {
    batch.pieces.push_back({tensor.source, index, tensor.offset, tensor.nbytes, tensor.to});
    return;
  }
  if (!are_pieces(*tensor.runs, chunk_nbytes)) {
    batch.run_pieces.push_back({tensor.source, index, tensor.offset, tensor.to, *tensor.runs});
    return;
  }
  io::RunCursor cursor(*tensor.runs, 0);
  const std::uint64_t run_nbytes = tensor.runs->run_nbytes;
  for (std::uint64_t at = 0; at < tensor.nbytes; at += run_nbytes, cursor.next()) {
    batch.pieces.push_back(
        {tensor.source, index, tensor.offset + cursor.position(), run_nbytes, tensor.to + at});
  }
}

}  // namespace

void check_tensors(std::span<const LoadTensor> tensors,
                   std::span<const std::uint64_t> source_nbytes) {
  for (const LoadTensor& tensor : tensors) check_tensor(tensor, source_nbytes);
}

std::unique_ptr<Batch> plan_batch(std::span<const LoadTensor> tensors,
                                  std::span<const std::uint64_t> source_nbytes,
                                  std::uint64_t chunk_nbytes) {
  auto batch = std::make_unique<Batch>();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].nbytes == 0) continue;
    batch->nbytes += tensors[i].nbytes;
    add_pieces(*batch, tensors[i], static_cast<Load::Index>(i), chunk_nbytes);
  }
  batch->chunks = plan_chunks(batch->pieces, source_nbytes, chunk_nbytes);
  for (std::size_t i = 0; i < batch->run_pieces.size(); ++i) {
    plan_run_chunks(batch->run_pieces[i], i, chunk_nbytes, batch->run_chunks);
  }
  batch->parts_per_tensor.resize(tensors.size());
  for (std::size_t i = 0; i < batch->chunk_count(); ++i) {
    ChunkTask(*batch, i).for_each_part(
        [&](const ChunkPart&, std::uint32_t tensor) { ++batch->parts_per_tensor[tensor]; });
  }
  return batch;
}

}  // namespace safetensors::device
