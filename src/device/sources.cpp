#include "device/sources.hpp"

#include <utility>

#include "io/run_reader.hpp"

namespace safetensors::device {

Sources::Sources(std::vector<std::shared_ptr<const ByteSource>> sources)
    : sources_(std::move(sources)) {
  sizes_.reserve(sources_.size());
  is_io_bound_.reserve(sources_.size());
  for (const auto& source : sources_) {
    sizes_.push_back(source->size());
    // Once for a load: the system may have to count the file's pages in the page cache.
    const bool is_io_bound = source->concurrency() != 0;
    is_io_bound_.push_back(is_io_bound);
    is_any_io_bound_ |= is_io_bound;
  }
}

std::shared_ptr<const ByteSource> Sources::open(std::uint32_t number) const {
  {
    const std::lock_guard lock(mutex_);
    for (const OpenFile& each : open_files_) {
      if (each.file && each.source == number) return each.file;
    }
  }
  // Without the lock: opening may take long. Two threads may both open the file.
  std::shared_ptr<const ByteSource> opened = sources_[number]->keep_open();
  if (!opened) return sources_[number];
  const std::lock_guard lock(mutex_);
  open_files_[next_file_++ % open_files_.size()] = {number, opened};
  return opened;
}

void Sources::read(const ChunkTask& task, std::span<std::byte> to) const {
  if (const Chunk* const chunk = task.chunk()) {
    open(chunk->source)->read_at(chunk->offset, to);
    return;
  }
  const RunPiece& piece = task.run_piece();
  const RunChunk& runs = task.run_chunk();
  io::read_run_block(*open(piece.source), piece.position, piece.runs, runs.first_run, runs.count,
                     to);
}

}  // namespace safetensors::device
