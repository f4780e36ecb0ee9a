// What loads need of a GPU's driver, whichever it is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "safetensors/error.hpp"

namespace safetensors::device {

using Stream = void*;
using Event = void*;

/// Addresses of devices are numbers; some functions want them as pointers.
[[nodiscard]] inline void* pointer_of(std::uint64_t address) noexcept {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): what it is there for
  return reinterpret_cast<void*>(static_cast<std::uintptr_t>(address));
}

/// Facts of a device that decide how loads treat it.
struct Facts {
  bool is_integrated = false;  ///< its memory is this machine's
  bool can_register = true;    ///< memory that exists can be pinned
  int numa_node = -1;          ///< of the processors beside it; -1: not known
};

/// One for each kind of driver, found at run time, never destroyed. Thread safe. Functions throw
/// Error kDevice, which names the driver's function and error, but for those that are noexcept.
/// Those after `enter` are called between it and `leave`, on the same thread.
class Driver {
 public:
  virtual ~Driver() = default;

  /// The device's context, which others in the process share: kept for ever. The first call
  /// initialises the driver.
  [[nodiscard]] virtual void* open(int index) const = 0;
  [[nodiscard]] virtual Facts facts(int index) const = 0;

  /// Makes a context this thread's. Returns what `leave` wants to have, to put things back.
  [[nodiscard]] virtual void* enter(void* context) const = 0;
  virtual void leave(void* before) const noexcept = 0;

  [[nodiscard]] virtual Stream make_stream() const = 0;
  virtual void wait_for_stream(Stream stream) const = 0;
  /// What comes after on `stream` waits for what `event` has recorded by now.
  virtual void order_after(Stream stream, Event event) const = 0;
  [[nodiscard]] virtual bool is_capturing(Stream stream) const = 0;
  /// Lets this thread pin memory while another captures a graph. `mode` is exchanged: call it again
  /// with the same to put things back.
  virtual void exchange_capture_mode(int& mode) const = 0;

  /// Waiting for it sleeps. It tells no times.
  [[nodiscard]] virtual Event make_event() const = 0;
  virtual void destroy(Event event) const noexcept = 0;
  virtual void record(Event event, Stream stream) const = 0;
  virtual void wait_for_event(Event event) const = 0;
  [[nodiscard]] virtual bool is_done(Event event) const = 0;

  /// Copies from host memory, which must stay as it is until an event after says that it is done.
  virtual void copy_to_device(std::uint64_t to, const std::byte* from, std::size_t nbytes,
                              Stream stream) const = 0;

  /// Pins memory for all contexts; false when it cannot be.
  [[nodiscard]] virtual bool pin(void* memory, std::size_t nbytes) const noexcept = 0;
  /// Ends what `pin` did; false when the memory may still be pinned, and must stay mapped.
  [[nodiscard]] virtual bool unpin(void* memory) const noexcept = 0;
  /// Pinned memory of the driver's own; nullptr when there is none.
  [[nodiscard]] virtual void* allocate_pinned(std::size_t nbytes) const noexcept = 0;
  /// False when the driver has kept it.
  [[nodiscard]] virtual bool free_pinned(void* memory) const noexcept = 0;
};

/// Relaxed capture: see Driver::exchange_capture_mode.
inline constexpr int kRelaxedCapture = 2;

/// A context is this thread's while this lives.
class Entered {
 public:
  Entered(const Driver& driver, void* context) : driver_(driver), before_(driver.enter(context)) {}
  Entered(const Entered&) = delete;
  Entered& operator=(const Entered&) = delete;
  ~Entered() { driver_.leave(before_); }

 private:
  const Driver& driver_;
  void* before_;
};

/// Graph capture on other threads does not mind this thread's calls while this lives.
class CaptureRelaxed {
 public:
  explicit CaptureRelaxed(const Driver& driver) : driver_(driver) {
    driver_.exchange_capture_mode(mode_);
  }
  CaptureRelaxed(const CaptureRelaxed&) = delete;
  CaptureRelaxed& operator=(const CaptureRelaxed&) = delete;
  ~CaptureRelaxed() {
    try {
      driver_.exchange_capture_mode(mode_);
    } catch (const Error&) {  // a device that died: the mode no longer matters
      return;
    }
  }

 private:
  const Driver& driver_;
  int mode_ = kRelaxedCapture;
};

}  // namespace safetensors::device
