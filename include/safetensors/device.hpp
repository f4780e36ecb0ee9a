// Loads of tensors to the memory of GPUs and to host memory, in the foreground or the background;
// and copies from GPUs, for saves.
//
// The CUDA driver is found at run time. Programs that include this header need no CUDA headers to
// build, and no driver to run.
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

// Settings ---------------------------------------------------------------------------------------

/// Limits on the threads and pinned memory of loads. A zero selects the default given here.
struct LoadConfig {
  static constexpr unsigned kMaxThreads = 256;  ///< the largest value of `threads`

  /// Readers of one load. 0: one for each processor, at most 12; from 8 to 16 if a source is not in
  /// the page cache. All loads of the process together use at most 32, but each at least one.
  unsigned threads = 0;
  std::size_t chunk_nbytes = 0;    ///< bytes of one read; 0: 4 MiB
  std::size_t staging_nbytes = 0;  ///< pinned memory of the process; 0: 128 MiB
  unsigned streams = 0;            ///< CUDA streams of each device; 0: 2
  unsigned slots = 0;              ///< chunks that one reader has in flight; 0: 2

  friend bool operator==(const LoadConfig&, const LoadConfig&) = default;
};

/// Returns the process's settings, with zeros replaced by the defaults; `threads` stays 0. Before
/// the first set_load_config(), they are those of the environment variables SAFETENSORS_IO_THREADS,
/// SAFETENSORS_IO_CHUNK_MB and SAFETENSORS_STAGING_MB.
///
/// Throws: Error kInvalidArgument, naming the variable, if one has a value that is not allowed.
/// Thread safety: may be called at any time, also in a forked process. So may set_load_config().
[[nodiscard]] SAFETENSORS_API LoadConfig load_config();

/// Changes the settings for loads that are made later.
///
/// Throws: Error kInvalidArgument if `chunk_nbytes` is not a multiple of 4096 or is above 1 GiB, or
///   if there are more than kMaxThreads threads, 64 streams or 64 slots.
SAFETENSORS_API void set_load_config(const LoadConfig& config);

/// Unpins and frees the staging memory that no load is using, and returns its size in bytes. Memory
/// that the driver fails to unpin stays allocated and is not counted. A graph that is being
/// captured on another stream is not disturbed.
///
/// Thread safety: may be called at any time.
SAFETENSORS_API std::size_t release_staging();

// Devices ----------------------------------------------------------------------------------------

struct HostCopy;

/// The destination of a load, or the source of copies: a CUDA device or host memory. Cheap to copy.
///
/// Thread safety: may be used from several threads at once.
class SAFETENSORS_API Device {
 public:
  /// Makes a device that is host memory: the addresses in LoadTensor::to are pointers.
  Device() noexcept = default;

  /// Returns the CUDA device with this index among the devices visible to the process.
  ///
  /// Uses the device's primary context, the one that the CUDA runtime and torch use, and
  /// initialises the driver if nobody has. If another library must initialise it first (torch,
  /// after a fork), call that library before this function.
  ///
  /// Throws: Error kDevice if there is no driver, the driver is too old, the device does not exist,
  ///   or the process was forked from one that had used a device.
  [[nodiscard]] static Device cuda(int index);
  /// Returns whether there is a CUDA driver with all functions that loads need. Does not initialise
  /// the driver.
  [[nodiscard]] static bool has_cuda() noexcept;

  /// Returns whether this is host memory.
  [[nodiscard]] bool is_host() const noexcept { return context_ == nullptr; }
  /// Returns whether `stream` is being captured into a graph, during which nothing can be loaded;
  /// false for the host.
  ///
  /// Throws: Error kDevice.
  [[nodiscard]] bool is_capturing(void* stream) const;
  /// Returns whether the device uses host memory, as on Jetson; true for the host.
  [[nodiscard]] bool is_integrated() const noexcept;

 private:
  friend class Load;
  friend SAFETENSORS_API void copy_to_host(Device device, void* stream,
                                           std::span<const HostCopy> copies,
                                           const Interrupt& interrupt);
  explicit Device(device::Context* context) noexcept : context_(context) {}
  device::Context* context_ = nullptr;  // never destroyed
};

/// Bytes to copy from a device.
struct HostCopy {
  std::uint64_t from = 0;   ///< their address on the device
  std::span<std::byte> to;  ///< any host memory
};

/// Copies bytes of a CUDA device to host memory, through the pinned memory that loads use too. The
/// copies start after the work that is on `stream`, a CUstream or nullptr for the default stream,
/// at the time of the call. Returns when all bytes have been copied.
///
/// Requires: the device's memory is not freed or changed during the call. No two copies overlap in
///   host memory.
/// Throws: Error kDevice; kInvalidArgument for the host, or while the stream is being captured into
///   a graph; kOutOfMemory; and what `interrupt` throws. Then some bytes have been copied.
/// Thread safety: may be called by several threads at once.
SAFETENSORS_API void copy_to_host(Device device, void* stream, std::span<const HostCopy> copies,
                                  const Interrupt& interrupt = {});

// Loads ------------------------------------------------------------------------------------------

/// A tensor to load, or a part of one.
struct LoadTensor {
  std::string_view name;     ///< for error messages
  std::uint32_t source = 0;  ///< index into the load's sources
  std::uint64_t offset = 0;  ///< of the tensor's first byte in the source
  std::uint64_t nbytes = 0;  ///< bytes to load: the tensor's, or the sum of `runs`
  std::uint64_t to = 0;      ///< destination: a device address, or a pointer for the host
  /// The parts of the tensor to load, and where each goes from `to` on. Empty: all bytes, which
  /// follow each other.
  ///
  /// Requires: the runs lie within the tensor and the destination. No two go to the same bytes.
  std::vector<ByteRuns> runs = {};
};

/// What a load reads of one source.
struct PlannedReads {
  std::uint64_t wanted_nbytes = 0;  ///< of the tensors
  std::uint64_t read_nbytes = 0;    ///< with the gaps between them that are read as well
  std::uint64_t read_count = 0;     ///< reads, or requests to a server
};

/// Returns what a Load of `tensors` to host memory would read of each source. Reads nothing;
/// LoadTensor::to is not used. Exact for sources whose reads are requests; of files, the bytes are
/// an upper limit, because gaps beside long tensors are skipped.
///
/// `gap_nbytes` replaces ReadCost::gap_nbytes of all sources.
/// Throws: Error kInvalidArgument if a tensor lies outside its source.
[[nodiscard]] SAFETENSORS_API std::vector<PlannedReads> planned_reads(
    std::span<const std::shared_ptr<const ByteSource>> sources, std::span<const LoadTensor> tensors,
    std::optional<std::uint64_t> gap_nbytes = {});

/// Options of one Load.
struct LoadOptions {
  unsigned threads = 0;  ///< readers of this load; 0: LoadConfig::threads
};

/// Copies tensors from files to device memory with several reader threads. Each reader fills pinned
/// buffers and starts asynchronous copies from them while it reads the next chunk.
///
///     file --read--> pinned slot --async copy--> device memory
///                    (2 per reader)
///
/// For the host, readers read to the destination itself.
///
///     Load load(Device::cuda(0), {source});
///     load.add(tensors, stream);
///     load.finish();
///     load.wait();
///
/// Tensors may be added while the load runs. Once a tensor is reported ready, its bytes are visible
/// to work on every stream.
///
/// Thread safety: all members may be called by several threads at once, but only one thread may
///   call wait().
/// Lifetime: the caller owns the destination memory and must keep it allocated until the load has
///   finished, stopped or been destroyed; after that no copy is in flight. Names in LoadTensor must
///   stay valid as long as the load exists.
class SAFETENSORS_API Load {
 public:
  using Index = std::uint32_t;
  /// Receives the number of bytes loaded so far and the number of bytes added.
  using Progress = std::function<void(std::uint64_t done, std::uint64_t total)>;

  /// Makes a load without tensors, with the settings of load_config() at the time of the call.
  Load(Device device, std::vector<std::shared_ptr<const ByteSource>> sources,
       LoadOptions options = {});
  Load(const Load&) = delete;
  Load& operator=(const Load&) = delete;
  /// Stops the load and joins its threads. Does nothing in a process that was forked from the
  /// load's own.
  ~Load();

  /// Adds tensors and returns the index of the first; the others follow. Reads go through the files
  /// in ascending order as far as possible. Tensors added with `is_first` are read before all that
  /// no reader has started to read.
  ///
  /// Copies start after the work that is on `stream`, a CUDA stream, at the time of the call: the
  /// allocator of the destination memory may have taken it from that work. nullptr is the default
  /// stream.
  ///
  /// Throws: Error kInvalidArgument if a destination is null, a tensor lies outside its source, the
  ///   stream is being captured, or finish() was called; kDevice.
  Index add(std::span<const LoadTensor> tensors, void* stream = nullptr, bool is_first = false);
  /// Declares that no more tensors will be added.
  void finish();

  /// Starts the threads and returns. Optional: the functions that wait start them. wait() loads on
  /// the calling thread if the load is small and was not started. Where the system starts no
  /// thread, each function that waits loads on the calling thread.
  void start();
  /// Blocks until every added tensor is loaded, or another thread calls stop() (see is_stopped()).
  /// Calls `interrupt` and `progress` from time to time on the calling thread; the last call of
  /// `progress` has done == total unless the load was stopped.
  ///
  /// Requires: finish() has been called; only one thread waits.
  /// Throws: errors of the sources and the device, naming the tensor, and whatever `interrupt` or
  ///   `progress` throws. When it throws, no copy is in flight.
  void wait(const Interrupt& interrupt = {}, const Progress& progress = {});
  /// Blocks until one tensor is loaded. Returns false if the load was stopped before that.
  ///
  /// Throws: errors of the sources and the device, naming the tensor; Error kInvalidArgument if no
  ///   such tensor was added; whatever `interrupt` throws, after which the load goes on.
  [[nodiscard]] bool wait_for(Index tensor, const Interrupt& interrupt = {});
  /// Returns a loaded tensor that this function has not returned before, in the order in which they
  /// became ready; blocks until there is one. Returns nothing when all added tensors have been
  /// returned, or the load was stopped.
  ///
  /// Throws: as wait_for().
  [[nodiscard]] std::optional<Index> next_ready(const Interrupt& interrupt = {});

  /// Returns whether stop() or an error stopped the load.
  [[nodiscard]] bool is_stopped() const noexcept;
  /// Stops the load and joins its threads. No byte is written afterwards. Tensors that are ready
  /// stay ready.
  void stop() noexcept;

  /// Returns whether this process made the load. A process forked from it may only destroy its
  /// copy: functions that add, start or wait throw Error kInvalidArgument there, also if a callback
  /// forks.
  [[nodiscard]] bool is_own() const noexcept;

  /// Returns the number of bytes loaded.
  [[nodiscard]] std::uint64_t done_nbytes() const noexcept;
  /// Returns the number of bytes added.
  [[nodiscard]] std::uint64_t total_nbytes() const noexcept;
  /// Returns the number of threads that were started.
  [[nodiscard]] unsigned thread_count() const noexcept;

 private:
  friend SAFETENSORS_API void wait_all(std::span<Load* const> loads, const Interrupt& interrupt,
                                       const Progress& progress);
  device::LoadState* state_;
};

/// Waits for several loads, for example to several devices, as Load::wait() does for one. They run
/// at the same time; those that were not started share the default number of readers of one load.
/// `progress` receives the sums over all loads. The first load that fails or is stopped stops the
/// others.
///
/// Requires: as Load::wait(), for each load.
/// Throws: as Load::wait(). When it throws, no copy of any of the loads is in flight.
SAFETENSORS_API void wait_all(std::span<Load* const> loads, const Interrupt& interrupt = {},
                              const Load::Progress& progress = {});

}  // namespace safetensors
