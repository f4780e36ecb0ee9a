#include "device/host_reader.hpp"

#include <cstdint>
#include <exception>
#include <optional>

#include "io/chunk_reader.hpp"
#include "safetensors/buffer.hpp"

namespace safetensors::device {

void read_for_host(LoadState& load, const Turn& turn) {
  ChunkQueue& queue = load.queue();
  const Sources& sources = load.sources();
  Buffer scratch;
  while (turn.goes_on()) {
    const std::optional<ChunkTask> task = queue.try_claim();
    if (!task) {
      if (turn.is_help() || !queue.wait_for_work()) return;
      continue;
    }
    try {
      const std::uint32_t source = task->source();
      io::read_chunk(*sources.open(source), task->plan(), task->number(),
                     sources.is_io_bound(source) && !sources.planned()[source].cost.is_request,
                     scratch);
    } catch (...) {
      queue.fail_with(std::current_exception(), &*task);
      throw;
    }
    queue.complete(*task);
  }
}

}  // namespace safetensors::device
