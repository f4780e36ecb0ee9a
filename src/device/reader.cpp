#include "device/reader.hpp"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "device/staging_pool.hpp"
#include "io/run_reader.hpp"
#include "safetensors/error.hpp"

namespace safetensors::device {
namespace {

// Of the host: longer parts are read to where they belong, shorter neighbours together.
constexpr std::uint64_t kLongPiece = std::uint64_t{256} << 10;

/// Bytes of the chunk, end to end.
std::size_t size_of(const Claim& claim) noexcept {
  if (const Chunk* const chunk = claim.chunk()) return static_cast<std::size_t>(chunk->nbytes);
  return static_cast<std::size_t>(claim.run_chunk()->count * claim.run_piece().runs.run_nbytes);
}

void read_chunk(const LoadState& load, const Claim& claim, std::span<std::byte> to) {
  if (const Chunk* const chunk = claim.chunk()) {
    load.source(chunk->source)->read_at(chunk->offset, to);
    return;
  }
  const RunPiece& piece = claim.run_piece();
  io::read_run_block(*load.source(piece.source), piece.position, piece.runs,
                     claim.run_chunk()->first_run, claim.run_chunk()->count, to);
}

/// A chunk's place in staging memory. The device may read from it until its event was waited for.
struct Slot {
  std::span<std::byte> bytes;
  Event event = nullptr;
  std::optional<Claim> in_flight;
};

/// Chunks on their way to a device. Whatever happens, the destructor waits until the device has
/// read what it was given: only then is the staging memory another's, and the load at its end.
class DeviceReader {
 public:
  DeviceReader(LoadState& load, unsigned number)
      : load_(load),
        driver_(load.context()->driver()),
        context_(driver_, load.context()->handle()),
        relaxed_(driver_),
        stream_(load.context()->stream(number, load.config().streams)) {}
  DeviceReader(const DeviceReader&) = delete;
  DeviceReader& operator=(const DeviceReader&) = delete;
  ~DeviceReader() { drain(); }

  void run(const std::function<void()>& between) {
    while (true) {
      between();
      const std::optional<Claim> claim = load_.try_claim();
      if (claim) {
        if (slots_.empty() && !prepare(*claim)) return;
        move(*claim);
      } else {
        drain();  // others may wait for these tensors before they add more
        if (!load_.wait_for_work()) return;
      }
    }
  }

 private:
  /// Staging memory and events. False when there is no memory and other readers are at work: then
  /// the chunk is theirs.
  bool prepare(const Claim& claim) {
    const LoadConfig& config = load_.config();
    const std::size_t count = config.slots;
    const auto nbytes = static_cast<std::size_t>(config.chunk_nbytes);
    try {
      StagingPool& pool = StagingPool::get();
      staging_ = pool.acquire(*load_.context(), count * nbytes, config.staging_nbytes);
      if (staging_.is_empty()) {
        if (load_.may_retire(claim)) return false;
        staging_ = pool.acquire_pageable(*load_.context(), count * nbytes);
      }
      slots_.resize(count);
      for (std::size_t i = 0; i < count; ++i) {
        slots_[i].bytes = staging_.bytes().subspan(i * nbytes, nbytes);
        slots_[i].event = driver_.make_event();
      }
    } catch (...) {
      load_.fail_with(std::current_exception(), &claim);
      throw;
    }
    return true;
  }

  void move(const Claim& claim) {
    try {
      Slot& slot = slots_[next_];
      next_ = (next_ + 1) % slots_.size();
      finish(slot);
      collect();
      const std::span<std::byte> bytes = slot.bytes.first(size_of(claim));
      read_chunk(load_, claim, bytes);
      if (load_.is_stopping()) return;
      enqueue(slot, claim);
    } catch (...) {
      load_.fail_with(std::current_exception(), &claim);
      throw;
    }
  }

  void enqueue(Slot& slot, const Claim& claim) {
    if (claim.batch().number != ordered_after_) {
      driver_.order_after(stream_, claim.batch().ready);
      ordered_after_ = claim.batch().number;
    }
    is_stream_busy_ = true;
    claim.for_each_part([&](const Part& part, std::uint32_t) {
      driver_.copy_to_device(part.to, slot.bytes.data() + part.from,
                             static_cast<std::size_t>(part.nbytes), stream_);
    });
    driver_.record(slot.event, stream_);
    slot.in_flight = claim;
  }

  /// Until the device has read the slot.
  void finish(Slot& slot) {
    if (!slot.in_flight) return;
    driver_.wait_for_event(slot.event);
    const Claim claim = *slot.in_flight;
    slot.in_flight.reset();
    load_.landed(claim);
  }

  /// Chunks that have landed meanwhile.
  void collect() {
    for (Slot& slot : slots_) {
      if (slot.in_flight && driver_.is_done(slot.event)) finish(slot);
    }
  }

  void wait_for_all() {
    if (!is_stream_busy_) return;
    // The stream and not the events: a chunk that failed on the way has none.
    try {
      driver_.wait_for_stream(stream_);
    } catch (const Error&) {
      load_.fail_with(std::current_exception(), nullptr);
      driver_.wait_for_stream(stream_);  // only a device that died refuses to wait for ever
    }
    is_stream_busy_ = false;
  }

  /// Nothing is under way after this, and nothing is held.
  void drain() noexcept {
    if (!load_.context()->is_own()) {  // the copies are the parent's, which waits for them
      staging_.abandon();
      return;
    }
    bool is_drained = true;
    try {
      wait_for_all();
      for (Slot& slot : slots_) {
        if (!slot.in_flight) continue;
        load_.landed(*slot.in_flight);
        slot.in_flight.reset();
      }
    } catch (...) {
      is_drained = false;
      load_.fail_with(std::current_exception(), nullptr);
    }
    for (const Slot& slot : slots_) {
      if (slot.event != nullptr) driver_.destroy(slot.event);
    }
    slots_.clear();
    next_ = 0;
    if (!is_drained) staging_.abandon();  // the device may still read from it
    staging_ = {};
  }

  LoadState& load_;
  const CudaDriver& driver_;
  const ScopedContext context_;
  const ScopedRelaxedCapture relaxed_;
  const Stream stream_;
  StagingPool::Lease staging_;
  std::vector<Slot> slots_;
  std::size_t next_ = 0;
  std::uint64_t ordered_after_ = 0;  // of a batch; they count from 1
  bool is_stream_busy_ = false;
};

/// Where the part belongs in this machine's memory.
std::span<std::byte> memory_of(const Part& part) noexcept {
  return {static_cast<std::byte*>(pointer_of(part.to)), static_cast<std::size_t>(part.nbytes)};
}

/// Reads chunks to where they belong.
class HostReader {
 public:
  explicit HostReader(const LoadState& load) : load_(load) {}

  void read(const Claim& claim) {
    const Chunk* const chunk = claim.chunk();
    if (chunk == nullptr) {
      claim.for_each_part(
          [&](const Part& part, std::uint32_t) { read_chunk(load_, claim, memory_of(part)); });
      return;
    }
    const std::shared_ptr<const ByteSource> opened = load_.source(chunk->source);
    const ByteSource& source = *opened;
    bool has_short = false;
    claim.for_each_part(
        [&](const Part& part, std::uint32_t) { has_short |= part.nbytes < kLongPiece; });
    // To wait for one long read is better than to wait for a long and a short one.
    const bool is_whole = has_short && load_.is_slow(chunk->source);
    claim.for_each_part([&](const Part& part, std::uint32_t) {
      if (part.nbytes >= kLongPiece && !is_whole) {
        read_together(source, *chunk, is_whole);
        source.read_at(chunk->offset + part.from, memory_of(part));
      } else {
        together_.push_back(part);
      }
    });
    read_together(source, *chunk, is_whole);
  }

 private:
  /// By one read, and copies where they are several.
  void read_together(const ByteSource& source, const Chunk& chunk, bool is_whole) {
    const std::vector<Part> parts = std::exchange(together_, {});
    if (parts.empty()) return;
    if (parts.size() == 1) {
      source.read_at(chunk.offset + parts[0].from, memory_of(parts[0]));
      return;
    }
    std::uint64_t begin = 0;
    std::uint64_t end = chunk.nbytes;  // whole blocks, for reads past the page cache
    if (!is_whole) {
      begin = parts.front().from;
      end = 0;
      for (const Part& part : parts) end = std::max(end, part.from + part.nbytes);
    }
    const auto nbytes = static_cast<std::size_t>(end - begin);
    if (scratch_.size() < nbytes) scratch_ = Buffer(nbytes);
    source.read_at(chunk.offset + begin, scratch_.bytes().first(nbytes));
    for (const Part& part : parts) {
      const std::span<std::byte> to = memory_of(part);
      std::memcpy(to.data(), scratch_.data() + (part.from - begin), to.size());
    }
  }

  const LoadState& load_;
  Buffer scratch_;
  std::vector<Part> together_;  // that no read has brought yet
};

}  // namespace

void read_for_device(LoadState& load, unsigned number, const std::function<void()>& between) {
  DeviceReader(load, number).run(between);
}

void read_for_host(LoadState& load, const std::function<void()>& between) {
  HostReader reader(load);
  while (true) {
    between();
    const std::optional<Claim> claim = load.try_claim();
    if (!claim) {
      if (!load.wait_for_work()) return;
      continue;
    }
    try {
      reader.read(*claim);
    } catch (...) {
      load.fail_with(std::current_exception(), &*claim);
      throw;
    }
    load.landed(*claim);
  }
}

}  // namespace safetensors::device
