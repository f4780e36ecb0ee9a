// The entry points of streams and events, and the controls of the fake driver.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "fake_cuda.hpp"
#include "fake_driver.hpp"

#define FAKE extern "C" __attribute__((visibility("default")))

namespace {

using fake::Driver;
using fake::enter;
using fake::Lock;
using fake::Needs;
using fake::Op;

constexpr unsigned kNonBlocking = 1;  // CU_STREAM_NON_BLOCKING
constexpr int kQueriesUntilProgress = 3;

bool is_mapped(std::uintptr_t begin, std::size_t nbytes) {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const std::uintptr_t first = begin / page * page;
  const std::size_t length = begin + nbytes - first;
  // MS_ASYNC writes nothing, but fails if a page is not mapped.
  return ::msync(reinterpret_cast<void*>(first), length, MS_ASYNC) == 0;
}

}  // namespace

FAKE int cuStreamCreate(void** stream, unsigned flags) {
  return enter(__func__, Needs::kContext, [&](Driver& driver, Lock&) {
    if (flags > kNonBlocking) return fake::kInvalidValue;
    if (flags != kNonBlocking) ++driver.stats[fake::kBlockingStreams];
    *stream = driver.make_stream(fake::this_thread().current());
    return fake::kSuccess;
  });
}

FAKE int cuStreamDestroy_v2(void* handle) {
  return enter(__func__, Needs::kContext, [&](Driver& driver, Lock&) {
    fake::Stream* stream = handle == nullptr ? nullptr : driver.stream_of(handle);
    if (stream == nullptr) return fake::kInvalidHandle;
    stream->is_dead = true;  // its work still runs, as in CUDA
    return fake::kSuccess;
  });
}

FAKE int cuStreamSynchronize(void* handle) {
  return enter(__func__, Needs::kContext, [&](Driver& driver, Lock& lock) {
    fake::Stream* stream = driver.stream_of(handle);
    if (stream == nullptr) return static_cast<int>(fake::kInvalidHandle);
    if (stream->is_capturing || driver.breaks_capture()) {
      return static_cast<int>(fake::kCaptureUnsupported);
    }
    return driver.wait_for(lock, driver.push_mark(lock, *stream));
  });
}

FAKE int cuStreamWaitEvent(void* stream_handle, void* event_handle, unsigned flags) {
  return enter(__func__, Needs::kContext, [&](Driver& driver, Lock& lock) {
    fake::Stream* stream = driver.stream_of(stream_handle);
    const fake::Event* event = driver.event_of(event_handle);
    if (stream == nullptr || event == nullptr) return fake::kInvalidHandle;
    if (flags != 0) return fake::kInvalidValue;
    if (event->last == nullptr) return fake::kSuccess;  // never recorded: nothing to wait for
    Op op;
    op.kind = Op::Kind::kWait;
    op.mark = event->last;
    driver.push(lock, *stream, std::move(op));
    return fake::kSuccess;
  });
}

FAKE int cuStreamIsCapturing(void* handle, int* status) {
  return enter(__func__, Needs::kContext, [&](Driver& driver, Lock&) {
    const fake::Stream* stream = driver.stream_of(handle);
    if (stream == nullptr) return fake::kInvalidHandle;
    *status = stream->is_capturing ? 1 : 0;
    return fake::kSuccess;
  });
}

FAKE int cuEventCreate(void** handle, unsigned flags) {
  return enter(__func__, Needs::kContext, [&](Driver& driver, Lock&) {
    if (flags > 7) return fake::kInvalidValue;
    auto event = std::make_unique<fake::Event>();
    event->context = fake::this_thread().current();
    event->is_blocking = (flags & 1) != 0;
    *handle = event.get();
    driver.events.emplace(event.get(), std::move(event));
    ++driver.stats[fake::kEventsNow];
    return fake::kSuccess;
  });
}

FAKE int cuEventDestroy_v2(void* handle) {
  return enter(__func__, Needs::kContext, [&](Driver& driver, Lock&) {
    fake::Event* event = driver.event_of(handle);
    if (event == nullptr) return fake::kInvalidHandle;
    event->is_dead = true;  // kept, so that later uses are counted as kDeadUses
    --driver.stats[fake::kEventsNow];
    return fake::kSuccess;
  });
}

FAKE int cuEventRecord(void* event_handle, void* stream_handle) {
  return enter(__func__, Needs::kContext, [&](Driver& driver, Lock& lock) {
    fake::Event* event = driver.event_of(event_handle);
    fake::Stream* stream = driver.stream_of(stream_handle);
    if (event == nullptr || stream == nullptr) return fake::kInvalidHandle;
    if (stream->is_capturing) return fake::kCaptureUnsupported;
    event->last = driver.push_mark(lock, *stream);
    return fake::kSuccess;
  });
}

FAKE int cuEventQuery(void* handle) {
  return enter(__func__, Needs::kContext, [&](Driver& driver, Lock& lock) {
    const fake::Event* event = driver.event_of(handle);
    if (event == nullptr) return fake::kInvalidHandle;
    if (driver.breaks_capture()) return fake::kCaptureUnsupported;
    const std::shared_ptr<fake::Mark> mark = event->last;
    if (mark == nullptr || mark->is_done) {
      return mark != nullptr && fake::Clock::now() < mark->due ? fake::kNotReady : fake::kSuccess;
    }
    // A device makes progress by itself: repeated queries must see the event done at last.
    if (driver.mode != fake::kAsync && ++mark->times_asked > kQueriesUntilProgress) {
      driver.advance(lock, *mark->stream);
    }
    return mark->is_done ? fake::kSuccess : fake::kNotReady;
  });
}

FAKE int cuEventSynchronize(void* handle) {
  return enter(__func__, Needs::kContext, [&](Driver& driver, Lock& lock) {
    const fake::Event* event = driver.event_of(handle);
    if (event == nullptr) return static_cast<int>(fake::kInvalidHandle);
    if (driver.breaks_capture()) return static_cast<int>(fake::kCaptureUnsupported);
    if (event->last == nullptr) return static_cast<int>(fake::kSuccess);
    return driver.wait_for(lock, std::shared_ptr<fake::Mark>(event->last), !event->is_blocking);
  });
}

// Controls

FAKE void fakecuda_mode(int mode, int delay_us) {
  Driver& driver = Driver::get();
  const Lock lock(driver.mutex);
  driver.mode = mode;
  driver.delay_us = delay_us;
  for (const auto& [handle, stream] : driver.streams) driver.wake(*stream);
}

FAKE void fakecuda_timed(double nbytes_per_second, long latency_ns) {
  Driver& driver = Driver::get();
  Lock lock(driver.mutex);
  driver.run_all(lock, nullptr);
  driver.mode = fake::kTimed;
  driver.link = {nbytes_per_second, std::chrono::nanoseconds(latency_ns)};
}

FAKE void fakecuda_engine_times(int device, int direction, fake::EngineTimes* times) {
  Driver& driver = Driver::get();
  const Lock lock(driver.mutex);
  *times = driver.engines[device][direction].times();
}

FAKE void fakecuda_fault(const char* function, long nth, int code) {
  Driver& driver = Driver::get();
  const Lock lock(driver.mutex);
  fake::Function& entry = driver.functions[function];
  entry.fails_at.reset();
  entry.code = code;
  if (code != 0) entry.fails_at = nth == 0 ? 0 : entry.calls + nth;
}

FAKE void fakecuda_ignore(const char* function, int on) {
  Driver& driver = Driver::get();
  const Lock lock(driver.mutex);
  driver.functions[function].is_ignored = on != 0;
}

FAKE void fakecuda_clear() {
  Driver& driver = Driver::get();
  const Lock lock(driver.mutex);
  driver.drop_queued();
  driver.functions.clear();
  driver.attributes.clear();
  driver.sticky = 0;
  if (driver.mode == fake::kGone) driver.mode = fake::kEager;
  std::fill(std::begin(driver.stats), std::begin(driver.stats) + fake::kRangesNow, 0);
  for (const auto& [handle, stream] : driver.streams) {
    stream->is_capturing = false;
    stream->free_at = {};
  }
  for (auto& engines : driver.engines) engines[0] = engines[1] = {};
}

FAKE long fakecuda_calls(const char* function) {
  Driver& driver = Driver::get();
  const Lock lock(driver.mutex);
  const auto entry = driver.functions.find(function);
  return entry == driver.functions.end() ? 0 : entry->second.calls;
}

FAKE long fakecuda_stat(int stat) {
  Driver& driver = Driver::get();
  const Lock lock(driver.mutex);
  if (stat == fake::kRangesNow) return static_cast<long>(driver.pinned.size());
  if (stat == fake::kRangesNbytesNow) {
    long sum = 0;
    for (const auto& [begin, range] : driver.pinned) sum += static_cast<long>(range.nbytes);
    return sum;
  }
  if (stat == fake::kUnmappedRangesNow) {
    return std::ranges::count_if(driver.pinned, [](const auto& entry) {
      return !is_mapped(entry.first, entry.second.nbytes);
    });
  }
  return stat >= 0 && stat <= fake::kEventsNow ? driver.stats[stat] : -1;
}

FAKE void fakecuda_capturing(int device, int on) {
  Driver& driver = Driver::get();
  const Lock lock(driver.mutex);
  driver.retain(device)->default_stream->is_capturing = on != 0;
}

FAKE void fakecuda_capturing_stream(void* stream, int on) {
  Driver& driver = Driver::get();
  const Lock lock(driver.mutex);
  driver.streams.at(stream)->is_capturing = on != 0;
}

FAKE void fakecuda_devices(int count) {
  Driver& driver = Driver::get();
  const Lock lock(driver.mutex);
  driver.device_count = std::min(count, fake::kMaxDevices);
}

FAKE void fakecuda_attribute(int id, int value) {
  Driver& driver = Driver::get();
  const Lock lock(driver.mutex);
  driver.attributes[id] = value;
}

FAKE long fakecuda_pending(int device) {
  Driver& driver = Driver::get();
  const Lock lock(driver.mutex);
  return driver.pending(driver.contexts[device]);
}

FAKE void fakecuda_run() {
  Driver& driver = Driver::get();
  Lock lock(driver.mutex);
  driver.run_all(lock, nullptr);
}
