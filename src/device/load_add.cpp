// What a load does when tensors are added: checks them, plans their reads, and takes them on.
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "device/load_state.hpp"
#include "io/run_reader.hpp"
#include "safetensors/error.hpp"

namespace safetensors::device {
namespace {

bool fits(std::uint64_t begin, std::uint64_t nbytes, std::uint64_t end) noexcept {
  return begin <= end && nbytes <= end - begin;
}

}  // namespace

void LoadState::check(const LoadTensor& tensor) const {
  const auto refuse = [&](const std::string& why) {
    fail(ErrorCode::kInvalidArgument, "tensor `" + std::string(tensor.name) + "` " + why,
         {.subject = std::string(tensor.name)});
  };
  if (tensor.source >= sources_.size()) refuse("is of a source that the load has not");
  if (tensor.nbytes == 0) return;
  const std::uint64_t end = sources_[tensor.source]->size();
  if (!tensor.runs && !fits(tensor.offset, tensor.nbytes, end)) {
    refuse("reaches past the end of its source");
  }
  if (tensor.runs && (tensor.offset > end || tensor.runs->nbytes() != tensor.nbytes)) {
    refuse("has another size than its runs");
  }
  if (tensor.to == 0) refuse("has no destination");
  if (!fits(tensor.to, tensor.nbytes, std::numeric_limits<std::uint64_t>::max())) {
    refuse("has a destination that cannot be");
  }
}

/// A batch, and how many chunks have bytes of each tensor.
struct LoadState::Plan {
  std::unique_ptr<Batch> batch = std::make_unique<Batch>();
  std::vector<std::uint32_t> parts;
  std::uint64_t nbytes = 0;
};

LoadState::Plan LoadState::plan(std::span<const LoadTensor> tensors) const {
  Plan made;
  made.parts.resize(tensors.size());
  Batch& batch = *made.batch;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const LoadTensor& tensor = tensors[i];
    if (tensor.nbytes == 0) continue;
    made.nbytes += tensor.nbytes;
    const auto index = static_cast<Load::Index>(i);
    if (!tensor.runs) {
      batch.pieces.push_back({tensor.source, index, tensor.offset, tensor.nbytes, tensor.to});
    } else if (are_pieces(*tensor.runs, config_.chunk_nbytes)) {
      io::RunCursor cursor(*tensor.runs, 0);
      const std::uint64_t run_nbytes = tensor.runs->run_nbytes;
      for (std::uint64_t at = 0; at < tensor.nbytes; at += run_nbytes, cursor.next()) {
        batch.pieces.push_back(
            {tensor.source, index, tensor.offset + cursor.position(), run_nbytes, tensor.to + at});
      }
    } else {
      batch.run_pieces.push_back({tensor.source, index, tensor.offset, tensor.to, *tensor.runs});
    }
  }
  std::vector<std::uint64_t> sizes;
  sizes.reserve(sources_.size());
  for (const auto& source : sources_) sizes.push_back(source->size());
  batch.chunks = plan_chunks(batch.pieces, sizes, config_.chunk_nbytes);
  for (std::size_t i = 0; i < batch.run_pieces.size(); ++i) {
    plan_run_chunks(batch.run_pieces[i], i, config_.chunk_nbytes, batch.run_chunks);
  }
  for (std::size_t i = 0; i < batch.chunk_count(); ++i) {
    Claim(batch, i).for_each_part([&](const Part&, std::uint32_t tensor) { ++made.parts[tensor]; });
  }
  return made;
}

Event LoadState::record(Stream stream) const {
  const CudaDriver& driver = context_->driver();
  context_->check_process();
  const ScopedContext current(driver, context_->handle());
  const ScopedRelaxedCapture relaxed(driver);
  if (driver.is_capturing(stream)) {
    fail(ErrorCode::kInvalidArgument,
         "nothing can be loaded while the current stream is being captured into a graph");
  }
  const Event event = driver.make_event();
  try {
    driver.record(event, stream);
  } catch (...) {
    driver.destroy(event);
    throw;
  }
  return event;
}

Load::Index LoadState::take_on(Plan& made, std::span<const LoadTensor> tensors, bool is_first) {
  Batch& batch = *made.batch;
  const std::lock_guard lock(mutex_);
  if (is_finished_) fail(ErrorCode::kInvalidArgument, "the load was said to be finished");
  batch.first = static_cast<Load::Index>(names_.size());
  batch.number = batches_.size() + 1;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    names_.push_back(tensors[i].name);
    parts_left_.push_back(made.parts[i]);
    if (made.parts[i] == 0) ready_.push_back(batch.first + static_cast<Load::Index>(i));
  }
  batches_.push_back(std::move(made.batch));
  total_nbytes_ += made.nbytes;
  chunks_left_ += batch.chunk_count();
  const Queued queued{&batch, 0, batch.chunk_count()};
  if (queued.end != 0 && is_first) queue_.push_front(queued);
  if (queued.end != 0 && !is_first) queue_.push_back(queued);
  notify_all();
  return batch.first;
}

Load::Index LoadState::add(std::span<const LoadTensor> tensors, Stream stream, bool is_first) {
  for (const LoadTensor& tensor : tensors) check(tensor);
  Plan made = plan(tensors);
  const bool has_chunks = made.batch->chunk_count() != 0;
  if (context_ != nullptr && has_chunks) made.batch->ready = record(stream);
  try {
    return take_on(made, tensors, is_first);
  } catch (...) {
    if (made.batch && made.batch->ready != nullptr) {
      const ScopedContext current(context_->driver(), context_->handle());
      context_->driver().destroy(made.batch->ready);
    }
    throw;
  }
}

}  // namespace safetensors::device
