#include "device/host_reader.hpp"

#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "safetensors/buffer.hpp"

namespace safetensors::device {
namespace {

// A longer part is read to its destination. Shorter neighbours are read together into scratch
// memory and copied from there: one system call costs more than such a copy.
constexpr std::uint64_t kMinDirectPart = std::uint64_t{256} << 10;

std::span<std::byte> destination_of(const ChunkPart& part) noexcept {
  return {static_cast<std::byte*>(pointer_of(part.to)), static_cast<std::size_t>(part.nbytes)};
}

class HostReader {
 public:
  explicit HostReader(const Sources& sources) : sources_(sources) {}

  void read(const ChunkTask& task) {
    const Chunk* const chunk = task.chunk();
    if (chunk == nullptr) {
      task.for_each_part(
          [&](const ChunkPart& part, std::uint32_t) { sources_.read(task, destination_of(part)); });
      return;
    }
    const std::shared_ptr<const ByteSource> source = sources_.open(chunk->source);
    bool has_short = false;
    task.for_each_part(
        [&](const ChunkPart& part, std::uint32_t) { has_short |= part.nbytes < kMinDirectPart; });
    // If reads wait for I/O, one for the whole chunk takes less time than several.
    const bool is_whole = has_short && sources_.is_io_bound(chunk->source);
    task.for_each_part([&](const ChunkPart& part, std::uint32_t) {
      if (part.nbytes >= kMinDirectPart && !is_whole) {
        read_short_parts(*source, *chunk, is_whole);
        source->read_at(chunk->offset + part.from, destination_of(part));
      } else {
        short_parts_.push_back(part);
      }
    });
    read_short_parts(*source, *chunk, is_whole);
  }

 private:
  /// Reads the short parts by one read, of the whole chunk or of the range that they span.
  void read_short_parts(const ByteSource& source, const Chunk& chunk, bool is_whole) {
    const std::vector<ChunkPart> parts = std::exchange(short_parts_, {});
    if (parts.empty()) return;
    if (parts.size() == 1) {
      source.read_at(chunk.offset + parts[0].from, destination_of(parts[0]));
      return;
    }
    std::uint64_t begin = 0;
    std::uint64_t end = chunk.nbytes;  // a multiple of 4096, for direct I/O
    if (!is_whole) {
      begin = parts.front().from;
      end = 0;
      for (const ChunkPart& part : parts) end = std::max(end, part.from + part.nbytes);
    }
    const auto nbytes = static_cast<std::size_t>(end - begin);
    if (scratch_.size() < nbytes) scratch_ = Buffer(nbytes);
    source.read_at(chunk.offset + begin, scratch_.bytes().first(nbytes));
    for (const ChunkPart& part : parts) {
      const std::span<std::byte> to = destination_of(part);
      std::memcpy(to.data(), scratch_.data() + (part.from - begin), to.size());
    }
  }

  const Sources& sources_;
  Buffer scratch_;
  std::vector<ChunkPart> short_parts_;  // of the current chunk, not yet read
};

}  // namespace

void read_for_host(LoadState& load, const std::function<void()>& between) {
  ChunkQueue& queue = load.queue();
  HostReader reader(load.sources());
  while (true) {
    between();
    const std::optional<ChunkTask> task = queue.try_claim();
    if (!task) {
      if (!queue.wait_for_work()) return;
      continue;
    }
    try {
      reader.read(*task);
    } catch (...) {
      queue.fail_with(std::current_exception(), &*task);
      throw;
    }
    queue.complete(*task);
  }
}

}  // namespace safetensors::device
