#include "fake_driver.hpp"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <set>
#include <thread>
#include <utility>

namespace fake {

namespace {

constexpr int kRelaxed = 2;  // CU_STREAM_CAPTURE_MODE_RELAXED
constexpr std::chrono::milliseconds kIdleTime{10};

/// Id of the process that initialised the driver; readable without the lock.
std::atomic<int> owner{0};

bool ends_context(int code) {
  static const std::set<int> codes = {700, 702, 709, 710, 714, 715, 716, 717, 718, 719};
  return codes.contains(code);
}

bool overlap(const std::byte* a, std::size_t a_nbytes, const std::byte* b, std::size_t b_nbytes) {
  const auto a_begin = reinterpret_cast<std::uintptr_t>(a);
  const auto b_begin = reinterpret_cast<std::uintptr_t>(b);
  return a_begin < b_begin + b_nbytes && b_begin < a_begin + a_nbytes;
}

/// Returns whether a forked process gets a copy of any of this memory, by the flags of its
/// mappings.
bool is_copied_by_fork(std::uintptr_t begin, std::size_t nbytes) {
  std::ifstream maps("/proc/self/smaps");
  bool is_within = false;
  for (std::string line; std::getline(maps, line);) {
    unsigned long first = 0;
    unsigned long last = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &first, &last) == 2) {
      is_within = first < begin + nbytes && begin < last;
    } else if (is_within && line.starts_with("VmFlags:") && line.find(" dc") == std::string::npos) {
      return true;
    }
  }
  return false;
}

/// Returns the object of a handle, or nullptr and counts the reason.
template <typename Object>
Object* usable(Driver& driver, const std::map<const void*, std::unique_ptr<Object>>& all,
               const void* handle) {
  const auto found = all.find(handle);
  if (found == all.end() || found->second->is_dead) {
    ++driver.stats[kDeadUses];
    return nullptr;
  }
  if (found->second->context != this_thread().current()) {
    ++driver.stats[kForeignUses];
    return nullptr;
  }
  return found->second.get();
}

}  // namespace

ThreadState& this_thread() {
  static thread_local ThreadState state;
  return state;
}

Driver::Driver() {
  for (int i = 0; i < kMaxDevices; ++i) contexts[i].device = i;
}

Driver& Driver::get() {
  static Driver& driver = *new Driver;
  return driver;
}

bool Driver::is_forked() const {
  const int process = owner.load();
  return process != 0 && process != ::getpid();
}

void Driver::initialise() {
  if (!is_initialised) {
    ::pthread_atfork(nullptr, [] { get().move_shared_pages(); }, nullptr);
  }
  is_initialised = true;
  owner.store(::getpid());
}

Context* Driver::retain(int device) {
  Context& context = contexts[device];
  context.is_retained = true;
  if (context.default_stream == nullptr) context.default_stream = make_stream(&context);
  return &context;
}

std::optional<int> Driver::refuse(Lock& lock, const char* name, Needs needs) {
  Function& function = functions[name];
  const long call = ++function.calls;
  if (mode == kGone) return kDeinitialised;
  if (function.fails_at && (*function.fails_at == 0 || *function.fails_at == call)) {
    const int code = function.code;
    if (ends_context(code)) end_contexts(lock, code);
    return code;
  }
  if (function.is_ignored) return kSuccess;
  if (needs == Needs::kNothing) return std::nullopt;
  if (!is_initialised) return kNotInitialised;
  if (sticky != 0) return sticky;
  if (needs == Needs::kContext && this_thread().current() == nullptr) {
    ++stats[kCallsWithoutContext];
    return kInvalidContext;
  }
  return std::nullopt;
}

void Driver::end_contexts(Lock& lock, int code) {
  sticky = code;
  drop_queued();
  // A dead device copies nothing.
  changed.wait(lock, [&] {
    return std::ranges::none_of(streams,
                                [](const auto& entry) { return entry.second->running != nullptr; });
  });
}

void Driver::drop_queued() {
  for (const auto& [handle, stream] : streams) {
    for (const Op& op : stream->ops) {
      if (op.kind == Op::Kind::kMark) op.mark->is_done = true;  // a thread may be waiting for it
    }
    stream->ops.clear();
  }
  copies_from.clear();
  changed.notify_all();
}

Stream* Driver::make_stream(Context* context) {
  auto made = std::make_unique<Stream>(context, static_cast<unsigned>(streams.size() + 1));
  Stream* stream = made.get();
  streams.emplace(stream, std::move(made));
  return stream;
}

Stream* Driver::stream_of(void* handle) {
  const auto number = reinterpret_cast<std::uintptr_t>(handle);
  if (number <= 2) return this_thread().current()->default_stream;  // null, legacy, per thread
  return usable(*this, streams, handle);
}

Event* Driver::event_of(void* handle) { return usable(*this, events, handle); }

bool Driver::can_run(const Stream& stream) {
  if (stream.running != nullptr || stream.ops.empty()) return false;
  const Op& front = stream.ops.front();
  return front.kind != Op::Kind::kWait || front.mark->is_done;
}

void Driver::wake(Stream& stream) {
  changed.notify_all();
  if (mode != kAsync || stream.has_thread || stream.ops.empty()) return;
  stream.has_thread = true;
  std::thread([this, &stream] { serve(stream); }).detach();
}

void Driver::serve(Stream& stream) {
  Lock lock(mutex);
  const auto may_run = [&] { return mode == kAsync && can_run(stream); };
  // The thread ends when the stream is idle, as tests make many streams; it stays while work waits
  // for another stream.
  while (changed.wait_for(lock, kIdleTime, may_run) || !stream.ops.empty()) {
    if (may_run()) run_front(lock, stream);
    if (mode != kAsync) break;
  }
  stream.has_thread = false;
}

void Driver::run_front(Lock& lock, Stream& stream) {
  const Op op = std::move(stream.ops.front());
  stream.ops.pop_front();
  stream.running = &op;
  const unsigned most = mode == kEager ? 0 : static_cast<unsigned>(delay_us);
  const std::chrono::microseconds delay(stream.random() % (most + 1));
  lock.unlock();
  if (delay.count() != 0) std::this_thread::sleep_for(delay);
  // Without the lock, so that ThreadSanitizer reports other accesses to the memory as races.
  if (op.kind == Op::Kind::kCopy && op.nbytes != 0) std::memcpy(op.to, op.from, op.nbytes);
  if (op.kind == Op::Kind::kFill && op.nbytes != 0) std::memset(op.to, op.value, op.nbytes);
  lock.lock();
  stream.running = nullptr;
  if (op.kind == Op::Kind::kMark) op.mark->is_done = true;
  if (op.kind == Op::Kind::kCopy) {
    stats[kCopiedBytes] += static_cast<long>(op.nbytes);
    const auto copies = copies_from.find(op.from);
    if (copies != copies_from.end() && --copies->second == 0) copies_from.erase(copies);
  }
  changed.notify_all();
}

void Driver::schedule(Lock& lock, Stream& stream, const Op& op) {
  if (op.kind == Op::Kind::kCopy) {
    CopyEngine& engine = engines[stream.context->device][op.direction];
    stream.free_at = engine.add(link, op.nbytes, op.is_pageable, stream.free_at);
    if (op.is_pageable) wait_until(lock, stream.free_at, true);
  } else if (op.kind == Op::Kind::kMark) {
    op.mark->is_done = true;
    op.mark->due = stream.free_at;
  } else if (op.kind == Op::Kind::kWait) {
    stream.free_at = std::max(stream.free_at, op.mark->due);
  }
}

void Driver::push(Lock& lock, Stream& stream, Op op) {
  if (mode == kTimed) return schedule(lock, stream, op);
  if (op.kind == Op::Kind::kCopy) {
    const long now = ++copies_from[op.from];
    stats[kMaxCopiesFromAddress] = std::max(stats[kMaxCopiesFromAddress], now);
  }
  stream.ops.push_back(std::move(op));
  wake(stream);
  if (mode == kEager) {
    while (!stream.ops.empty() || stream.running != nullptr) {
      if (!advance(lock, stream)) changed.wait(lock);
    }
  }
}

std::shared_ptr<Mark> Driver::push_mark(Lock& lock, Stream& stream) {
  auto mark = std::make_shared<Mark>();
  mark->stream = &stream;
  Op op;
  op.mark = mark;
  push(lock, stream, std::move(op));
  return mark;
}

int Driver::wait_for(Lock& lock, const std::shared_ptr<Mark>& mark, bool is_exact) {
  while (!mark->is_done && sticky == 0) {
    if (mode == kAsync || !advance(lock, *mark->stream)) changed.wait(lock);
  }
  if (sticky == 0) wait_until(lock, mark->due, is_exact);
  return sticky;
}

bool Driver::advance(Lock& lock, Stream& stream) {
  if (stream.running != nullptr || stream.ops.empty()) return false;
  const Op& front = stream.ops.front();
  if (front.kind == Op::Kind::kWait && !front.mark->is_done) {
    return advance(lock, *front.mark->stream);
  }
  run_front(lock, stream);
  return true;
}

void Driver::run_all(Lock& lock, const Context* context) {
  std::vector<Stream*> all;  // streams may be made while the lock is released
  all.reserve(streams.size());
  for (const auto& [handle, stream] : streams) all.push_back(stream.get());
  for (Stream* stream : all) {
    if (context != nullptr && stream->context != context) continue;
    while (!stream->ops.empty() || stream->running != nullptr) {
      if (!advance(lock, *stream)) changed.wait(lock);
    }
  }
}

long Driver::pending(const Context& context) const {
  std::size_t count = 0;
  for (const auto& [handle, stream] : streams) {
    if (stream->context == &context)
      count += stream->ops.size() + (stream->running != nullptr ? 1 : 0);
  }
  return static_cast<long>(count);
}

const std::byte* Driver::seen_by_device(const std::byte* memory, std::size_t nbytes) const {
  const auto begin = reinterpret_cast<std::uintptr_t>(memory);
  auto range = pinned.upper_bound(begin);
  if (range == pinned.begin()) return nullptr;
  --range;
  const auto& [first, found] = *range;
  if (begin + nbytes > first + found.nbytes) return nullptr;
  return found.moved.empty() ? memory : found.moved.data() + (begin - first);
}

void Driver::move_shared_pages() {
  const Lock lock(mutex);
  for (auto& [begin, range] : pinned) {
    if (range.is_allocated || !range.moved.empty() || !is_copied_by_fork(begin, range.nbytes)) {
      continue;
    }
    const auto* const memory = reinterpret_cast<const std::byte*>(begin);
    range.moved.assign(memory, memory + range.nbytes);
  }
}

bool Driver::is_read_later(const std::byte* memory, std::size_t nbytes) const {
  const auto reads = [&](const Op& op) {
    return op.kind == Op::Kind::kCopy && overlap(op.from, op.nbytes, memory, nbytes);
  };
  return std::ranges::any_of(streams, [&](const auto& entry) {
    const Stream& stream = *entry.second;
    return std::ranges::any_of(stream.ops, reads) ||
           (stream.running != nullptr && reads(*stream.running));
  });
}

bool Driver::breaks_capture() {
  if (this_thread().capture_mode == kRelaxed) return false;
  const auto is_capturing = [](const auto& entry) { return entry.second->is_capturing; };
  if (std::ranges::none_of(streams, is_capturing)) return false;
  ++stats[kCapturesBroken];
  return true;
}

}  // namespace fake
