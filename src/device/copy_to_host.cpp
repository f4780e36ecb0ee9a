// copy_to_host() of the public header.
#include <algorithm>
#include <utility>
#include <vector>

#include "device/context.hpp"
#include "device/cuda_driver.hpp"
#include "device/staging_pool.hpp"
#include "safetensors/device.hpp"
#include "safetensors/error.hpp"

namespace safetensors {
namespace device {
namespace {

/// Copies from a device through slots of pinned memory. With two slots:
///
///   device   |...to slot 0...|...to slot 1...|...to slot 0...|
///   host                     | from slot 0 | | from slot 1 |
///                                            ^ only then may slot 0 be filled again
///
/// A slot takes the bytes of as many copies as fit, so that small tensors cost one event together.
/// The destructor waits for all copies: only then may others get the staging memory.
class HostCopier {
 public:
  HostCopier(Context& context, Stream after, const Interrupt& interrupt)
      : context_(context),
        driver_(context.driver()),
        interrupt_(interrupt),
        current_(driver_, context.handle()),
        relaxed_(driver_),
        ready_(context, after) {
    const LoadConfig config = load_config();
    const std::size_t nbytes = config.chunk_nbytes;
    StagingPool& pool = StagingPool::get();
    staging_ = pool.acquire(context, config.slots * nbytes, config.staging_nbytes);
    if (staging_.is_empty()) staging_ = pool.acquire_pageable(context, config.slots * nbytes);
    stream_ = context.stream(0, config.streams);
    slots_.reserve(config.slots);
    try {
      for (std::size_t i = 0; i < config.slots; ++i) {
        slots_.push_back(
            {staging_.bytes().subspan(i * nbytes, nbytes), driver_.make_event(), 0, {}});
      }
      driver_.order_after(stream_, ready_.get());
    } catch (...) {
      drain();
      throw;
    }
  }
  HostCopier(const HostCopier&) = delete;
  HostCopier& operator=(const HostCopier&) = delete;
  ~HostCopier() { drain(); }

  void add(HostCopy copy) {
    while (!copy.to.empty()) {
      Slot& slot = slots_[next_];
      const std::size_t nbytes = std::min(copy.to.size(), slot.bytes.size() - slot.filled);
      std::byte* const staged = slot.bytes.data() + slot.filled;
      is_stream_busy_ = true;
      driver_.copy_from_device(staged, copy.from, nbytes, stream_);
      slot.pieces.push_back({copy.to.data(), staged, nbytes});
      slot.filled += nbytes;
      copy = {copy.from + nbytes, copy.to.subspan(nbytes)};
      if (slot.filled == slot.bytes.size()) end_slot();
    }
  }

  /// Returns when all bytes have been copied.
  void finish() {
    if (slots_[next_].filled != 0) end_slot();
    for (std::size_t i = 0; i < slots_.size(); ++i) empty(slots_[(next_ + i) % slots_.size()]);
  }

 private:
  struct Slot {
    std::span<std::byte> bytes;
    Event event = nullptr;          ///< done when the device has filled the slot
    std::size_t filled = 0;         ///< bytes
    std::vector<CopyPiece> pieces;  ///< from the slot to where they belong
  };

  /// Goes on to the next slot, which is empty then.
  void end_slot() {
    driver_.record(slots_[next_].event, stream_);
    next_ = (next_ + 1) % slots_.size();
    empty(slots_[next_]);
  }

  void empty(Slot& slot) {
    if (slot.filled == 0) return;
    driver_.wait_for_event(slot.event);
    if (interrupt_) interrupt_();
    copy_all(slot.pieces, interrupt_);
    slot.pieces.clear();
    slot.filled = 0;
  }

  /// Waits for all copies, and releases staging memory and events.
  void drain() noexcept {
    if (!context_.is_own()) {  // a forked child: the copies are its parent's
      staging_.abandon();
      return;
    }
    try {
      if (is_stream_busy_) driver_.wait_for_stream(stream_);
    } catch (const Error&) {
      staging_.abandon();  // the device may still write to it
    }
    for (const Slot& slot : slots_) driver_.destroy(slot.event);
  }

  Context& context_;
  const CudaDriver& driver_;
  const Interrupt& interrupt_;
  const ScopedContext current_;
  const ScopedRelaxedCapture relaxed_;
  const RecordedEvent ready_;
  StagingPool::Lease staging_;
  Stream stream_ = nullptr;
  std::vector<Slot> slots_;  // parts of staging_
  std::size_t next_ = 0;
  bool is_stream_busy_ = false;
};

}  // namespace
}  // namespace device

void copy_to_host(Device device, void* stream, std::span<const HostCopy> copies,
                  const Interrupt& interrupt) {
  if (device.context_ == nullptr) {
    fail(ErrorCode::kInvalidArgument, "copy_to_host copies from a CUDA device, not from the host");
  }
  device::HostCopier copier(*device.context_, stream, interrupt);
  for (const HostCopy& copy : copies) copier.add(copy);
  copier.finish();
}

}  // namespace safetensors
