// Loading into the memory of GPUs, and bulk loads in the background.
//
// The driver is found at run time: a program that uses this runs on machines without one, and is
// built without its headers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "safetensors/buffer.hpp"
#include "safetensors/byte_source.hpp"
#include "safetensors/export.hpp"
#include "safetensors/slice.hpp"

namespace safetensors {

namespace device {
class Context;
class LoadState;
}  // namespace device

/// How loads share the machine. Zero: as the library thinks best.
struct LoadConfig {
  unsigned threads = 0;            ///< readers of one load; 0: by the processors and the files
  std::size_t chunk_nbytes = 0;    ///< bytes that one read brings; 0: 4 MiB
  std::size_t staging_nbytes = 0;  ///< pinned memory that the process keeps; 0: 128 MiB
  unsigned streams = 0;            ///< of each device, for copies; 0: 2
  unsigned slots = 0;              ///< chunks that one reader has in flight; 0: 2

  friend bool operator==(const LoadConfig&, const LoadConfig&) = default;
};

/// The process's settings, at first those of the environment: SAFETENSORS_IO_THREADS,
/// SAFETENSORS_IO_CHUNK_MB, SAFETENSORS_STAGING_MB. Zeros are filled in.
[[nodiscard]] SAFETENSORS_API LoadConfig load_config();
/// Changes them, for loads that begin later. Throws Error kInvalidArgument for sizes that are no
/// multiples of 4096 or beyond all reason.
SAFETENSORS_API void set_load_config(const LoadConfig& config);

/// Unpins the memory that is kept for loads and that no load uses, and frees it. Returns the number
/// of bytes that were freed: memory that the driver fails to unpin stays allocated for ever. May be
/// called while a graph is being captured, which goes on.
SAFETENSORS_API std::size_t release_staging();

/// Where a load puts bytes: a CUDA device, or this machine's memory. Cheap to copy, thread safe.
class SAFETENSORS_API Device {
 public:
  /// This machine's memory: addresses are pointers.
  Device() noexcept = default;
  /// A CUDA device by its index among those the process sees: its primary context, which the
  /// runtime API and torch share. Initialises the driver, so that who relies on another to do so
  /// (torch after a fork) lets it go first. Throws Error kDevice: no driver, too old a driver, no
  /// such device, or a process that forked after it had used the device.
  [[nodiscard]] static Device cuda(int index);
  /// Whether there is a driver with all that is needed. Initialises nothing.
  [[nodiscard]] static bool has_cuda() noexcept;

  [[nodiscard]] bool is_host() const noexcept { return context_ == nullptr; }
  /// Whether work on `stream` is being captured into a graph: then nothing may be loaded. Throws
  /// Error kDevice. False for the host.
  [[nodiscard]] bool is_capturing(void* stream) const;
  /// Whether the device's memory is this machine's, as with Jetson.
  [[nodiscard]] bool is_integrated() const noexcept;

 private:
  friend class device::LoadState;
  friend class Load;
  explicit Device(device::Context* context) noexcept : context_(context) {}
  device::Context* context_ = nullptr;  // lives for ever
};

/// One tensor to load, or a part of one.
struct LoadTensor {
  std::string_view name;     ///< for errors; the caller's, valid until the load is gone
  std::uint32_t source = 0;  ///< which of the load's sources
  std::uint64_t offset = 0;  ///< of the tensor's first byte, in the source
  std::uint64_t nbytes = 0;  ///< that are written: the tensor's, or those of `runs`
  std::uint64_t to = 0;      ///< where: an address of the device's memory, or a pointer
  /// The part of the tensor that is wanted, if not all of it; gathered on the way. Runs lie within
  /// the tensor (the caller has checked that), and nbytes is theirs.
  std::optional<ByteRuns> runs = std::nullopt;
};

struct LoadOptions {
  unsigned threads = 0;  ///< readers; 0: LoadConfig's
};

/// Moves bytes of files to memory of a device, by several threads that each read into pinned memory
/// of their own and copy from there while they read on.
///
///     Load load(Device::cuda(0), {source});
///     load.add(tensors, stream);
///     load.finish();
///     load.wait();
///
/// add() may be called again while the load runs. All members are thread safe but for wait(), which
/// one thread calls. The memory belongs to the caller, who keeps it until the load is done, stopped
/// or destroyed: then no copy is under way. Bytes are there, for every stream, when the load says
/// that a tensor is ready.
class SAFETENSORS_API Load {
 public:
  using Index = std::uint32_t;
  /// Called by wait() now and then, with bytes that have landed and bytes that were added.
  using Progress = std::function<void(std::uint64_t done, std::uint64_t total)>;

  Load(Device device, std::vector<std::shared_ptr<const ByteSource>> sources,
       LoadOptions options = {});
  Load(const Load&) = delete;
  Load& operator=(const Load&) = delete;
  /// Stops it, and waits for its threads. In a process forked from the load's own it does nothing.
  ~Load();

  /// Adds tensors, in the order of their bytes as far as may be, and returns the index of the
  /// first; the others follow. Copies begin after the work that is on `stream` (of CUDA; the
  /// caller's) by now: memory that was allocated on it may still be in use by that work.
  /// `is_first`: before what waits to be read. Throws Error kInvalidArgument: a destination or a
  /// range that cannot be, or a stream that is being captured; kDevice.
  Index add(std::span<const LoadTensor> tensors, void* stream = nullptr, bool is_first = false);
  /// Nothing is added any more.
  void finish();

  /// Starts the threads and returns. Else wait() starts them, or does a small load itself, and one
  /// for which the system has no thread.
  void start();
  /// Until all that was added has landed, or another thread stopped the load, as is_stopped()
  /// tells; finish() was called before. Throws what the sources and the device throw, with the
  /// tensor's name, and what `interrupt` and `progress` throw: nothing is under way any more then.
  void wait(const Interrupt& interrupt = {}, const Progress& progress = {});
  /// Until one tensor has landed. False when the load was stopped before. Throws what the sources
  /// and the device throw, what `interrupt` throws (then the load goes on), and Error:
  /// kInvalidArgument for a tensor that was not added, kIo when no thread can be started.
  [[nodiscard]] bool wait_for(Index tensor, const Interrupt& interrupt = {});
  /// A tensor that has landed and was not handed out by this function, in the order of landing;
  /// waits for one. None when all that was added was handed out, or the load was stopped. Throws as
  /// wait_for().
  [[nodiscard]] std::optional<Index> next_ready(const Interrupt& interrupt = {});

  /// Whether it was stopped, by stop() or an error.
  [[nodiscard]] bool is_stopped() const noexcept;
  /// No byte lands after this: asks the threads to stop, and waits for them. Tensors that are ready
  /// stay so.
  void stop() noexcept;

  /// Whether this process began it, and not one that it was forked from. A forked process may
  /// destroy it, which does nothing, and no more. In one that a callback of the load forked, the
  /// function that called it throws Error kInvalidArgument.
  [[nodiscard]] bool is_own() const noexcept;

  /// Bytes that have landed, and bytes that were added.
  [[nodiscard]] std::uint64_t done_nbytes() const noexcept;
  [[nodiscard]] std::uint64_t total_nbytes() const noexcept;
  /// Threads that were started.
  [[nodiscard]] unsigned thread_count() const noexcept;

 private:
  friend SAFETENSORS_API void wait_all(std::span<Load* const> loads, const Interrupt& interrupt,
                                       const Progress& progress);
  device::LoadState* state_;
};

/// wait() for several loads at once, as of several devices: they run side by side, and those that
/// were not started share the readers that one would have. The first that fails or is stopped stops
/// the others. Progress is that of all together.
SAFETENSORS_API void wait_all(std::span<Load* const> loads, const Interrupt& interrupt = {},
                              const Load::Progress& progress = {});

}  // namespace safetensors
