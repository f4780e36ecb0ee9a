#include "device/batch.hpp"

#include <limits>
#include <string>

#include "safetensors/error.hpp"

namespace safetensors::device {
namespace {

/// Returns whether [begin, begin + nbytes) ends at or before `end`, without overflow.
bool fits(std::uint64_t begin, std::uint64_t nbytes, std::uint64_t end) noexcept {
  return begin <= end && nbytes <= end - begin;
}

void check_tensor(const LoadTensor& tensor, std::span<const io::PlannedSource> sources) {
  const auto refuse = [&](const std::string& why) {
    const std::string name(tensor.name);
    fail(ErrorCode::kInvalidArgument, "tensor `" + name + "` " + why, {.subject = name});
  };
  if (tensor.source >= sources.size()) refuse("names a source that the load does not have");
  if (tensor.nbytes == 0) return;
  const std::uint64_t end = sources[tensor.source].nbytes;
  if (tensor.runs.empty() && !fits(tensor.offset, tensor.nbytes, end)) {
    refuse("reaches past the end of its source");
  }
  if (!tensor.runs.empty() && (tensor.offset > end || nbytes_of(tensor.runs) != tensor.nbytes)) {
    refuse("has a size that differs from that of its runs");
  }
  if (tensor.to == 0) refuse("has no destination");
  if (!fits(tensor.to, tensor.nbytes, std::numeric_limits<std::uint64_t>::max())) {
    refuse("has a destination beyond the address space");
  }
}

}  // namespace

void check_tensors(std::span<const LoadTensor> tensors,
                   std::span<const io::PlannedSource> sources) {
  for (const LoadTensor& tensor : tensors) check_tensor(tensor, sources);
}

std::unique_ptr<Batch> plan_batch(std::span<const LoadTensor> tensors,
                                  std::span<const io::PlannedSource> sources) {
  auto batch = std::make_unique<Batch>();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const LoadTensor& tensor = tensors[i];
    const auto index = static_cast<Load::Index>(i);
    if (tensor.nbytes == 0) continue;
    batch->nbytes += tensor.nbytes;
    if (tensor.runs.empty()) {
      batch->plan.pieces.push_back({tensor.source, index, tensor.offset, tensor.nbytes, tensor.to});
    }
    for (const ByteRuns& runs : tensor.runs) {
      if (runs.nbytes() == 0) continue;
      batch->plan.add(tensor.source, index, tensor.offset, tensor.to, runs,
                      sources[tensor.source].cost);
    }
  }
  batch->plan.plan(sources);
  batch->parts_per_tensor.resize(tensors.size());
  for (std::size_t i = 0; i < batch->plan.chunk_count(); ++i) {
    ChunkTask(*batch, i).for_each_tensor(
        [&](std::uint64_t, std::uint32_t tensor) { ++batch->parts_per_tensor[tensor]; });
  }
  return batch;
}

}  // namespace safetensors::device
