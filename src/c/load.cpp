// Loads to devices.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "c/file.hpp"
#include "c/guard.hpp"
#include "c/options.hpp"
#include "c/request.hpp"
#include "safetensors/device.hpp"

using safetensors::Device;
using safetensors::ErrorCode;
using safetensors::fail;
using safetensors::Interrupt;
using safetensors::c::check_pointer;
using safetensors::c::guarded;
using safetensors::c::LoadList;
using safetensors::c::Selected;
using safetensors::c::Stopped;
using safetensors::c::Watch;

/// A load that runs.
struct safetensors_load {
 public:
  safetensors_load(Device device, const LoadList& list, const safetensors_load_options& options)
      : count_(list.tensors().size()),
        files_(list.files()),
        load_(device, list.sources(), {.threads = options.threads}) {
    (void)load_.add(list.tensors(), options.stream);
    load_.finish();
    load_.start();
  }

  /// Blocks until all is loaded.
  ///
  /// Throws: what Load::wait() throws; Error kInvalidArgument if another thread waits; Stopped if
  ///   the load was stopped before.
  void wait(const Watch& watch) {
    if (is_waiting_.exchange(true)) {
      fail(ErrorCode::kInvalidArgument, "another thread waits for this load");
    }
    const Waiting waiting{is_waiting_};
    const Interrupt interrupt = watch.interrupt();
    load_.wait(
        [&] {
          if (interrupt) keep_stop(interrupt);
        },
        [&](std::uint64_t done, std::uint64_t total) {
          keep_stop([&] { watch.show(done, total); });
        });
    check_running();
  }

  /// Returns the number of a request that is loaded, or after the last one how many there are.
  /// Throws: what Load::next_ready() throws; Stopped if the load was stopped before.
  std::size_t next(const Watch& watch) {
    const auto poll = [&, interrupt = watch.interrupt()] {
      if (interrupt) interrupt();
      const std::uint64_t done = load_.done_nbytes();
      watch.show(done, load_.total_nbytes());
    };
    if (const auto ready = load_.next_ready(poll)) return *ready;
    check_running();
    watch.show(load_.total_nbytes(), load_.total_nbytes());
    return count_;
  }

 private:
  struct Waiting {
    std::atomic<bool>& is_waiting;
    ~Waiting() { is_waiting = false; }
  };

  /// Calls a callback of the program. If it stops the load, keeps its number before other threads
  /// can see that the load has stopped.
  template <typename Callback>
  void keep_stop(const Callback& callback) {
    try {
      callback();
    } catch (const Stopped& stopped) {
      stopped_by_ = stopped.value;
      throw;
    }
  }

  void check_running() const {
    if (load_.is_stopped()) throw Stopped{stopped_by_};
  }

  std::size_t count_;
  std::vector<safetensors::SafeOpen> files_;  // whose names the load refers to
  safetensors::Load load_;
  std::atomic<bool> is_waiting_{false};
  std::atomic<std::int32_t> stopped_by_{0};
};

namespace {

Device device_of(const safetensors_load_options& options) {
  switch (options.device) {
    case SAFETENSORS_HOST:
      if (options.device_index != 0 || options.stream != nullptr) {
        fail(ErrorCode::kInvalidArgument, "host memory has neither an index nor a stream");
      }
      return {};
    case SAFETENSORS_CUDA:
      return Device::cuda(options.device_index);
    default:
      fail(ErrorCode::kInvalidArgument,
           "no kind of device has number " + std::to_string(options.device));
  }
}

/// Returns where the bytes of a request go.
void* place_of(const safetensors_request& request, std::size_t number, const Selected& selected,
               const safetensors_load_options& options) {
  const std::uint64_t nbytes = selected.nbytes();
  if (request.dtype != SAFETENSORS_AS_STORED &&
      safetensors::c::dtype_of(request.dtype) != selected.info.dtype) {
    fail(ErrorCode::kInvalidArgument, "a load does not convert elements",
         {.subject = std::string(selected.info.name)});
  }
  const bool is_allocated = request.to == nullptr && options.allocate != nullptr && nbytes != 0;
  if (!is_allocated) {
    safetensors::detail::check_size(selected.info, nbytes, request.room, &selected.from->path());
    return request.to;
  }
  void* to = nullptr;
  const std::int32_t code = options.allocate(options.context, number, nbytes, &to);
  if (code != 0) throw Stopped{code};
  if (to == nullptr) throw std::bad_alloc();
  return to;
}

}  // namespace

std::int32_t safetensors_load_start(const safetensors_file* file,
                                    const safetensors_request* requests, std::size_t count,
                                    const safetensors_load_options* options,
                                    safetensors_load** load, safetensors_error* error) {
  return guarded(error, [&] {
    check_pointer(file, 1, "file");
    check_pointer(requests, count, "requests");
    check_pointer(load, 1, "load");
    const auto given = safetensors::c::options_of(options, "options");
    safetensors::c::check_reserved(given.reserved);
    const Device device = device_of(given);
    if (count > std::numeric_limits<safetensors::Load::Index>::max()) throw std::bad_alloc();
    std::vector<Selected> all;
    all.reserve(count);
    for (const safetensors_request& each : std::span(requests, count)) {
      safetensors::c::select(*file, each, true, all.emplace_back());
    }
    LoadList list;
    for (std::size_t i = 0; i < count; ++i) {
      const Selected& each = all[i];
      const auto to = reinterpret_cast<std::uintptr_t>(place_of(requests[i], i, each, given));
      list.add(*each.from, each.file, each.info, each.runs.all(), each.nbytes(), to);
    }
    *load = new safetensors_load(device, list, given);
  });
}

std::int32_t safetensors_load_next(safetensors_load* load, std::size_t* number,
                                   const safetensors_watch* watch, safetensors_error* error) {
  return guarded(error, [&] {
    check_pointer(load, 1, "load");
    check_pointer(number, 1, "number");
    *number = load->next(Watch(watch));
  });
}

std::int32_t safetensors_load_wait(safetensors_load* load, const safetensors_watch* watch,
                                   safetensors_error* error) {
  return guarded(error, [&] {
    check_pointer(load, 1, "load");
    load->wait(Watch(watch));
  });
}

// NOLINTNEXTLINE(misc-const-correctness): frees it
void safetensors_load_free(safetensors_load* load) { delete load; }

std::uint64_t safetensors_release_staging() {
  std::uint64_t nbytes = 0;
  (void)guarded(nullptr, [&] { nbytes = safetensors::release_staging(); });
  return nbytes;
}
