// The state behind the entry points of fake_cuda.cpp: streams, events, pinned memory, faults.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "fake_cuda.hpp"
#include "fake_link.hpp"

namespace fake {

enum Code : int {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNotInitialised = 3,
  kDeinitialised = 4,
  kNoDevice = 100,
  kInvalidDevice = 101,
  kInvalidContext = 201,
  kInvalidHandle = 400,
  kNotReady = 600,
  kAlreadyRegistered = 712,
  kNotRegistered = 713,
  kCaptureUnsupported = 900,
};

inline constexpr int kMaxDevices = 16;
using Lock = std::unique_lock<std::mutex>;

struct Stream;

/// One recording of an event. Waits are for a recording, not for the event, which may be recorded
/// again.
struct Mark {
  Stream* stream = nullptr;
  bool is_done = false;
  int times_asked = 0;  ///< by cuEventQuery()
  Time due{};           ///< timed mode, in which `is_done` is set from the start
};

/// A piece of a stream's work.
struct Op {
  enum class Kind : std::uint8_t { kCopy, kFill, kMark, kWait };
  Kind kind = Kind::kMark;
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  std::size_t nbytes = 0;
  unsigned char value = 0;
  Direction direction = kToDevice;  ///< kCopy
  bool is_pageable = false;         ///< kCopy from or to memory that is not pinned
  std::vector<std::byte> staged;    ///< kCopy from memory that is not pinned: what it held
  std::shared_ptr<Mark> mark;       ///< kMark: that is reached. kWait: that is waited for
};

struct Context {
  int device = 0;
  bool is_retained = false;
  Stream* default_stream = nullptr;
};

struct Stream {
  explicit Stream(Context* of, unsigned seed) : context(of), random(seed) {}
  Context* context;
  std::deque<Op> ops;
  std::minstd_rand random;      ///< of the delays
  const Op* running = nullptr;  ///< taken from ops by a thread
  bool is_capturing = false;
  bool is_dead = false;
  bool has_thread = false;
  Time free_at{};  ///< timed mode: when its copies are done
};

struct Event {
  Context* context = nullptr;
  std::shared_ptr<Mark> last;  ///< its last recording; an event without one is done
  bool is_blocking = false;    ///< threads sleep while they wait: CU_EVENT_BLOCKING_SYNC
  bool is_dead = false;
};

/// The counts and faults of one entry point.
struct Function {
  long calls = 0;
  std::optional<long> fails_at;  ///< number of the call that fails; 0: all
  int code = 0;
  bool is_ignored = false;
};

struct Pinned {
  std::size_t nbytes = 0;
  bool is_allocated = false;  ///< by cuMemHostAlloc()
  /// What the device sees of pages that copy-on-write replaced after a fork.
  std::vector<std::byte> moved;
};

/// What an entry point requires before it does anything.
enum class Needs : std::uint8_t { kNothing, kInit, kContext };

/// The state of the driver, guarded by `mutex`, which is unlocked while an op runs and while a
/// thread waits. Never destroyed: its threads may be waiting when the process ends.
class Driver {
 public:
  static Driver& get();

  /// Counts a call. Returns its result if it must do nothing.
  std::optional<int> refuse(Lock& lock, const char* name, Needs needs);
  /// Returns whether this process was forked from the one that initialised the driver.
  [[nodiscard]] bool is_forked() const;
  void initialise();
  Context* retain(int device);

  Stream* make_stream(Context* context);
  /// Returns the stream or event of a handle; nullptr if the current context cannot use it.
  Stream* stream_of(void* handle);
  Event* event_of(void* handle);

  /// Queues an op, and runs it in eager mode. In timed mode, decides when it will be done.
  void push(Lock& lock, Stream& stream, Op op);
  std::shared_ptr<Mark> push_mark(Lock& lock, Stream& stream);
  /// Blocks until the mark is reached, or returns the error that ended the context.
  int wait_for(Lock& lock, const std::shared_ptr<Mark>& mark, bool is_exact = true);
  /// Runs one op of the stream, or one that it waits for. Returns false if there is none, or
  /// another thread is running it.
  bool advance(Lock& lock, Stream& stream);
  void run_all(Lock& lock, const Context* context);
  long pending(const Context& context) const;
  /// Wakes waiting threads after a change of the stream's work or of the mode.
  void wake(Stream& stream);

  /// Returns where the device reads pinned memory; nullptr if it is not pinned.
  [[nodiscard]] const std::byte* seen_by_device(const std::byte* memory, std::size_t nbytes) const;
  /// Call after a fork. Gives the device its own copy of pinned pages that the child shares: this
  /// process's next write goes to a new page, which the device does not see. That is the worst that
  /// copy-on-write may do.
  void move_shared_pages();
  /// Returns whether a queued op reads from this memory.
  [[nodiscard]] bool is_read_later(const std::byte* memory, std::size_t nbytes) const;
  /// Returns whether a capture forbids this thread to allocate, pin, free or wait, and invalidates
  /// that capture.
  [[nodiscard]] bool breaks_capture();
  void end_contexts(Lock& lock, int code);
  void drop_queued();

  std::mutex mutex;
  std::condition_variable changed;
  int mode = kEager;
  int delay_us = 0;
  bool is_initialised = false;
  int initialised_in = 0;  ///< a process id
  int sticky = 0;          ///< the error that ended all contexts
  int device_count = 2;
  Context contexts[kMaxDevices];
  LinkModel link;                      ///< timed mode
  CopyEngine engines[kMaxDevices][2];  ///< of each device, for each direction
  std::map<const void*, std::unique_ptr<Stream>> streams;
  std::map<const void*, std::unique_ptr<Event>> events;
  std::map<std::uintptr_t, Pinned> pinned;
  std::map<std::uintptr_t, int> allocated;  ///< device memory: address to device
  std::map<int, int> attributes;
  std::map<std::string, Function, std::less<>> functions;
  std::map<const std::byte*, long> copies_from;  ///< in flight
  long stats[kEventsNow + 1] = {};

 private:
  Driver();
  /// Runs a stream's work on its own thread.
  void serve(Stream& stream);
  void run_front(Lock& lock, Stream& stream);
  void schedule(Lock& lock, Stream& stream, const Op& op);
  [[nodiscard]] static bool can_run(const Stream& stream);
};

/// A thread's stack of contexts and its capture mode.
struct ThreadState {
  std::vector<Context*> contexts;
  int capture_mode = 0;  ///< CU_STREAM_CAPTURE_MODE_GLOBAL
  [[nodiscard]] Context* current() const { return contexts.empty() ? nullptr : contexts.back(); }
};
ThreadState& this_thread();

/// Runs an entry point's work with the lock held, unless the call is refused.
template <typename Work>
int enter(const char* name, Needs needs, const Work& work) {
  Driver& driver = Driver::get();
  if (driver.is_forked()) return kNotInitialised;  // before the lock: in a child it may stay locked
  Lock lock(driver.mutex);
  if (const std::optional<int> result = driver.refuse(lock, name, needs)) return *result;
  return work(driver, lock);
}

}  // namespace fake
