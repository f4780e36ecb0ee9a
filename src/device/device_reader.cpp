#include "device/device_reader.hpp"

#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "device/staging_pool.hpp"
#include "safetensors/error.hpp"

namespace safetensors::device {
namespace {

/// A chunk's place in staging memory. While `in_flight` is set, the device may read from `bytes`
/// until `event` is done.
struct Slot {
  std::span<std::byte> bytes;
  Event event = nullptr;
  std::optional<ChunkTask> in_flight;
};

/// Reads each chunk into the next of its slots and starts the copies from there. With two slots:
///
///   slot 0   read chunk 0 |...copy 0...|        read chunk 2 |...copy 2...
///   slot 1                 read chunk 1 |...copy 1...|        read chunk 3 |...
///                                               ^ waits for copy 0
///
/// A chunk is complete once its copies are done. The destructor waits for all copies: only then may
/// another reader get the staging memory, and only then may the load end.
class DeviceReader {
 public:
  DeviceReader(LoadState& load, const Turn& turn)
      : load_(load),
        turn_(turn),
        queue_(load.queue()),
        driver_(load.context()->driver()),
        context_(driver_, load.context()->handle()),
        relaxed_(driver_),
        stream_(load.context()->stream(turn.number, load.config().streams)) {}
  DeviceReader(const DeviceReader&) = delete;
  DeviceReader& operator=(const DeviceReader&) = delete;
  ~DeviceReader() { drain(); }

  void run() {
    while (turn_.goes_on()) {
      const std::optional<ChunkTask> task = queue_.try_claim();
      if (task) {
        if (slots_.empty() && !prepare(*task)) return;
        move(*task);
      } else {
        drain();  // callers may wait for these tensors before they add more
        if (turn_.is_help() || !queue_.wait_for_work()) return;
      }
    }
  }

 private:
  /// Acquires staging memory and events. Returns false if there is no memory and other readers are
  /// at work, which then get the chunk.
  bool prepare(const ChunkTask& task) {
    const LoadConfig& config = load_.config();
    Context& context = *load_.context();
    const std::size_t count = config.slots;
    const auto nbytes = static_cast<std::size_t>(config.chunk_nbytes);
    StagingPool& pool = StagingPool::get();
    try {
      staging_ = pool.acquire(context, count * nbytes, config.staging_nbytes);
      if (staging_.is_empty()) {
        if (!turn_.is_help() && queue_.try_retire(task)) return false;
        staging_ = pool.acquire_pageable(context, count * nbytes);
      }
      slots_.resize(count);
      for (std::size_t i = 0; i < count; ++i) {
        slots_[i].bytes = staging_.bytes().subspan(i * nbytes, nbytes);
        slots_[i].event = driver_.make_event();
      }
    } catch (...) {
      queue_.fail_with(std::current_exception(), &task);
      throw;
    }
    return true;
  }

  void move(const ChunkTask& task) {
    try {
      Slot& slot = slots_[next_];
      next_ = (next_ + 1) % slots_.size();
      finish(slot);
      complete_finished();
      load_.sources().read(task, slot.bytes.first(task.nbytes()), scratch_);
      if (queue_.is_stopping()) return;
      enqueue(slot, task);
    } catch (...) {
      queue_.fail_with(std::current_exception(), &task);
      throw;
    }
  }

  void enqueue(Slot& slot, const ChunkTask& task) {
    if (task.batch().number != ordered_after_) {
      driver_.order_after(stream_, task.batch().ready.get());
      ordered_after_ = task.batch().number;
    }
    is_stream_busy_ = true;
    task.for_each_copy([&](std::uint64_t from, std::uint64_t nbytes, std::uint64_t to) {
      driver_.copy_to_device(to, slot.bytes.data() + from, static_cast<std::size_t>(nbytes),
                             stream_);
    });
    driver_.record(slot.event, stream_);
    slot.in_flight = task;
  }

  /// Blocks until the slot may be filled again, and completes its chunk.
  void finish(Slot& slot) {
    if (!slot.in_flight) return;
    driver_.wait_for_event(slot.event);
    const ChunkTask task = *slot.in_flight;
    slot.in_flight.reset();
    queue_.complete(task);
  }

  /// Completes chunks whose copies are done, without blocking.
  void complete_finished() {
    for (Slot& slot : slots_) {
      if (slot.in_flight && driver_.is_done(slot.event)) finish(slot);
    }
  }

  void wait_for_all() {
    if (!is_stream_busy_) return;
    // For the stream, not the events: a chunk that failed half-way has recorded none.
    try {
      driver_.wait_for_stream(stream_);
    } catch (const Error&) {
      queue_.fail_with(std::current_exception(), nullptr);
      driver_.wait_for_stream(stream_);  // fails again if the device is dead
    }
    is_stream_busy_ = false;
  }

  /// Waits for all copies, completes their chunks, and releases staging memory and events.
  void drain() noexcept {
    if (!load_.context()->is_own()) {  // a forked child: the copies are its parent's
      staging_.abandon();
      return;
    }
    bool is_drained = true;
    try {
      wait_for_all();
      for (Slot& slot : slots_) {
        if (!slot.in_flight) continue;
        queue_.complete(*slot.in_flight);
        slot.in_flight.reset();
      }
    } catch (...) {
      is_drained = false;
      queue_.fail_with(std::current_exception(), nullptr);
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
  const Turn& turn_;
  ChunkQueue& queue_;
  const CudaDriver& driver_;
  const ScopedContext context_;
  const ScopedRelaxedCapture relaxed_;
  const Stream stream_;
  StagingPool::Lease staging_;
  std::vector<Slot> slots_;  // parts of staging_; empty when that is
  Buffer scratch_;
  std::size_t next_ = 0;
  std::uint64_t ordered_after_ = 0;  // the number of a batch; 0: none
  bool is_stream_busy_ = false;
};

}  // namespace

void read_for_device(LoadState& load, const Turn& turn) { DeviceReader(load, turn).run(); }

}  // namespace safetensors::device
