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

inline constexpr int kMostDevices = 16;
using Lock = std::unique_lock<std::mutex>;

struct Stream;

/// One recording of an event. Waits are for a recording, not for its event, which may be recorded
/// anew.
struct Mark {
  Stream* stream = nullptr;
  bool is_done = false;
  int times_asked = 0;  ///< by cuEventQuery()
};

/// A piece of a stream's work.
struct Op {
  enum class Kind : std::uint8_t { kCopy, kFill, kMark, kWait };
  Kind kind = Kind::kMark;
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  std::size_t nbytes = 0;
  unsigned char value = 0;
  std::vector<std::byte> staged;  ///< kCopy from memory that is not pinned: what it held
  std::shared_ptr<Mark> mark;     ///< kMark: that is reached. kWait: that is waited for
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
  const Op* running = nullptr;  ///< that some thread took from ops
  bool is_capturing = false;
  bool is_dead = false;
  bool has_thread = false;
};

struct Event {
  Context* context = nullptr;
  std::shared_ptr<Mark> last;  ///< its last recording; none: it counts as reached
  bool is_dead = false;
};

/// What is known of one entry point.
struct Function {
  long calls = 0;
  std::optional<long> fails_at;  ///< this call fails; 0: all do
  int code = 0;
  bool is_ignored = false;
};

struct Pinned {
  std::size_t nbytes = 0;
  bool is_allocated = false;  ///< by cuMemHostAlloc()
  /// Pages that a fork moved away from under the device, as they are for it.
  std::vector<std::byte> moved;
};

/// What an entry point asks for before it does anything.
enum class Needs : std::uint8_t { kNothing, kInit, kContext };

/// All of the driver. Everything is guarded by `mutex`, which is let go while an op runs and while
/// a thread waits. Lives for ever: its threads may wait when the process ends.
class Driver {
 public:
  static Driver& get();

  /// Counts a call. Its result, if it is not to be made.
  std::optional<int> refuse(Lock& lock, const char* name, Needs needs);
  /// Whether this process was forked from the one that initialised the driver.
  [[nodiscard]] bool is_forked() const;
  void initialise();
  Context* retain(int device);

  Stream* make_stream(Context* context);
  /// The stream or event of a handle, if it can be used in the current context, else nullptr.
  Stream* stream_of(void* handle);
  Event* event_of(void* handle);

  /// Queues an op, and runs it if the mode is eager.
  void push(Lock& lock, Stream& stream, Op op);
  std::shared_ptr<Mark> push_mark(Lock& lock, Stream& stream);
  /// Returns when the mark is reached, or with an error that ended the context.
  int wait_for(Lock& lock, const std::shared_ptr<Mark>& mark);
  /// Runs one op that brings the stream on, its own or one that it waits for. False when there is
  /// none, or another thread has it.
  bool advance(Lock& lock, Stream& stream);
  void run_all(Lock& lock, const Context* context);
  long pending(const Context& context) const;
  /// After a change of the stream's work, or of the mode: someone may have to go on.
  void wake(Stream& stream);

  /// Where the device finds pinned memory; nullptr when it is not pinned.
  [[nodiscard]] const std::byte* seen_by_device(const std::byte* memory, std::size_t nbytes) const;
  /// A process was forked. Memory that it has a copy of is not the device's any more: what this
  /// process writes next goes to other pages. So it is at worst with copying on write.
  void move_shared_pages();
  /// Whether an op that did not run reads from this memory.
  [[nodiscard]] bool is_read_later(const std::byte* memory, std::size_t nbytes) const;
  /// Whether a capture forbids this thread to allocate, pin, free or wait. If so, the capture is
  /// ended by the attempt.
  [[nodiscard]] bool breaks_capture();
  void end_contexts(Lock& lock, int code);
  void drop_queued();

  std::mutex mutex;
  std::condition_variable changed;
  int mode = kEager;
  int delay_us = 0;
  bool is_initialised = false;
  int initialised_in = 0;  ///< process
  int sticky = 0;          ///< the error that ended all contexts
  int device_count = 2;
  Context contexts[kMostDevices];
  std::map<const void*, std::unique_ptr<Stream>> streams;
  std::map<const void*, std::unique_ptr<Event>> events;
  std::map<std::uintptr_t, Pinned> pinned;
  std::map<std::uintptr_t, int> allocated;  ///< device memory, and whose
  std::map<int, int> attributes;
  std::map<std::string, Function, std::less<>> functions;
  std::map<const std::byte*, long> copies_from;  ///< under way
  long stats[kEventsNow + 1] = {};

 private:
  Driver();
  /// What a stream's thread does, while there is work.
  void serve(Stream& stream);
  void run_front(Lock& lock, Stream& stream);
  [[nodiscard]] static bool can_run(const Stream& stream);
};

/// The contexts that a thread pushed, and its capture mode.
struct ThreadState {
  std::vector<Context*> contexts;
  int capture_mode = 0;  ///< global, as in the driver
  [[nodiscard]] Context* current() const { return contexts.empty() ? nullptr : contexts.back(); }
};
ThreadState& this_thread();

/// Does an entry point's work, if it is to be done.
template <typename Work>
int enter(const char* name, Needs needs, const Work& work) {
  Driver& driver = Driver::get();
  if (driver.is_forked()) return kNotInitialised;  // before the lock: its holder may not exist here
  Lock lock(driver.mutex);
  if (const std::optional<int> result = driver.refuse(lock, name, needs)) return *result;
  return work(driver, lock);
}

}  // namespace fake
