#include "device/sources.hpp"

#include <algorithm>
#include <utility>

#include "io/chunk_reader.hpp"

namespace safetensors::device {

Sources::Sources(std::vector<std::shared_ptr<const ByteSource>> sources, std::uint64_t chunk_nbytes,
                 std::uint64_t max_chunk)
    : sources_(std::move(sources)) {
  planned_.reserve(sources_.size());
  is_io_bound_.reserve(sources_.size());
  for (const auto& source : sources_) {
    planned_.push_back(io::planned(*source, chunk_nbytes));
    ReadCost& cost = planned_.back().cost;
    cost.chunk_nbytes = std::min(cost.chunk_nbytes, max_chunk);
    planned_.back().max_nbytes = std::min(planned_.back().max_nbytes, max_chunk);
    // Once for a load: the system may have to count the file's pages in the page cache.
    const unsigned concurrency = source->concurrency();
    is_io_bound_.push_back(concurrency != 0);
    is_any_io_bound_ |= concurrency != 0;
    if (cost.is_request) requests_ = std::max(requests_, concurrency);
  }
}

std::shared_ptr<const ByteSource> Sources::open(std::uint32_t number) const {
  {
    const std::lock_guard lock(mutex_);
    for (const KeptFile& each : kept_files_) {
      if (each.file && each.source == number) return each.file;
    }
  }
  // Without the lock: opening may take long. Two threads may both open the file.
  std::shared_ptr<const ByteSource> opened = sources_[number]->keep_open();
  if (!opened) return sources_[number];
  const std::lock_guard lock(mutex_);
  kept_files_[next_file_++ % kept_files_.size()] = {number, opened};
  return opened;
}

void Sources::read(const ChunkTask& task, std::span<std::byte> to, Buffer& scratch) const {
  const std::shared_ptr<const ByteSource> source = open(task.source());
  if (const io::Chunk* const chunk = task.chunk()) {
    source->read_at(chunk->offset, to);
  } else {
    io::read_concatenated(*source, task.run_piece(), task.run_chunk(), to, scratch);
  }
}

}  // namespace safetensors::device
