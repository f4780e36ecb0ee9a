// NVIDIA's driver, reduced to the functions that loads and saves call.
//
// Declarations follow the CUDA Driver API reference
// (https://docs.nvidia.com/cuda/cuda-driver-api/). The ABI of a symbol never changes: a changed
// function gets a new suffix, such as _v2. tests/device/test_sigcheck.cpp compares the declarations
// with cuda.h where that is installed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace safetensors::device {

using Stream = void*;
using Event = void*;

namespace cuda {

using Result = int;
using Ordinal = int;
using Context = void*;
using Address = unsigned long long;

/// Pointers to the driver's functions, each named for its symbol.
struct Functions {
  Result (*cuInit)(unsigned flags);
  Result (*cuDeviceGet)(Ordinal*, int index);
  Result (*cuDeviceGetAttribute)(int*, int attribute, Ordinal);
  Result (*cuDevicePrimaryCtxRetain)(Context*, Ordinal);
  Result (*cuCtxPushCurrent_v2)(Context);
  Result (*cuCtxPopCurrent_v2)(Context*);
  Result (*cuMemHostRegister_v2)(void*, std::size_t, unsigned flags);
  Result (*cuMemHostUnregister)(void*);
  Result (*cuMemHostAlloc)(void**, std::size_t, unsigned flags);
  Result (*cuMemFreeHost)(void*);
  Result (*cuStreamCreate)(Stream*, unsigned flags);
  Result (*cuStreamSynchronize)(Stream);
  Result (*cuStreamWaitEvent)(Stream, Event, unsigned flags);
  Result (*cuStreamIsCapturing)(Stream, int* status);
  Result (*cuEventCreate)(Event*, unsigned flags);
  Result (*cuEventRecord)(Event, Stream);
  Result (*cuEventQuery)(Event);
  Result (*cuEventSynchronize)(Event);
  Result (*cuEventDestroy_v2)(Event);
  Result (*cuMemcpyHtoDAsync_v2)(Address, const void*, std::size_t, Stream);
  Result (*cuMemcpyDtoHAsync_v2)(void*, Address, std::size_t, Stream);
  Result (*cuGetErrorName)(Result, const char**);
  Result (*cuDeviceGetPCIBusId)(char*, int length, Ordinal);
  Result (*cuThreadExchangeStreamCaptureMode)(int* mode);  ///< nullptr before CUDA 10.1
};

}  // namespace cuda

/// What a load needs to know about a device.
struct DeviceProperties {
  bool is_integrated = false;  ///< the device uses the host's memory
  bool can_register = true;    ///< existing host memory can be pinned
  int numa_node = -1;          ///< the NUMA node next to the device; -1: unknown
};

/// The functions of one driver library. Functions below the first group need a current context on
/// the calling thread: see ScopedContext.
///
/// Throws: Error kDevice, with the names of the driver's function and error, from every function
///   that is not noexcept.
/// Thread safety: all members may be called by several threads at once.
/// Lifetime: never destroyed, as loads may run while the process ends.
class CudaDriver {
 public:
  explicit CudaDriver(const cuda::Functions& functions) : f_(functions) {}

  /// Returns the device's primary context, which stays retained. Initialises the driver.
  [[nodiscard]] void* open(int index) const;
  [[nodiscard]] DeviceProperties properties(int index) const;
  void push_context(void* context) const;
  void pop_context() const noexcept;
  /// Sets this thread's capture mode, and `mode` to the previous one.
  void exchange_capture_mode(int& mode) const;

  [[nodiscard]] Stream make_stream() const;
  void wait_for_stream(Stream stream) const;
  /// Makes later work on `stream` wait for the work that `event` has recorded so far.
  void order_after(Stream stream, Event event) const;
  [[nodiscard]] bool is_capturing(Stream stream) const;

  /// Returns an event without timing, on which the host waits without spinning.
  [[nodiscard]] Event make_event() const;
  void destroy(Event event) const noexcept;
  void record(Event event, Stream stream) const;
  void wait_for_event(Event event) const;
  [[nodiscard]] bool is_done(Event event) const;

  /// Starts a copy from host memory, which must not change until an event that was recorded after
  /// the copy is done.
  void copy_to_device(std::uint64_t to, const std::byte* from, std::size_t nbytes,
                      Stream stream) const;
  /// Starts a copy to host memory, which holds the bytes when an event that was recorded after the
  /// copy is done.
  void copy_from_device(std::byte* to, std::uint64_t from, std::size_t nbytes, Stream stream) const;

  /// Pins existing memory for all contexts. Returns false if the driver refuses.
  [[nodiscard]] bool pin(void* memory, std::size_t nbytes) const noexcept;
  /// Undoes pin(). Returns false if the memory may still be pinned; it must then stay mapped.
  [[nodiscard]] bool unpin(void* memory) const noexcept;
  /// Returns pinned memory of the driver's own, or nullptr.
  [[nodiscard]] void* allocate_pinned(std::size_t nbytes) const noexcept;
  /// Undoes allocate_pinned(). Returns false if the driver kept the memory.
  [[nodiscard]] bool free_pinned(void* memory) const noexcept;

 private:
  [[nodiscard]] cuda::Ordinal ordinal(int index) const;
  [[nodiscard]] int attribute(cuda::Ordinal device, int which, int otherwise) const noexcept;
  [[nodiscard]] int numa_node(cuda::Ordinal device) const;
  void check(cuda::Result result, const char* function) const;

  cuda::Functions f_;
};

/// Makes a context current on this thread while it lives.
class ScopedContext {
 public:
  ScopedContext(const CudaDriver& driver, void* context) : driver_(driver) {
    driver.push_context(context);
  }
  ScopedContext(const ScopedContext&) = delete;
  ScopedContext& operator=(const ScopedContext&) = delete;
  ~ScopedContext() { driver_.pop_context(); }

 private:
  const CudaDriver& driver_;
};

/// Lets this thread pin memory and wait for events while another thread captures a graph. In the
/// default mode such calls would invalidate the capture.
class ScopedRelaxedCapture {
 public:
  explicit ScopedRelaxedCapture(const CudaDriver& driver);
  ScopedRelaxedCapture(const ScopedRelaxedCapture&) = delete;
  ScopedRelaxedCapture& operator=(const ScopedRelaxedCapture&) = delete;
  ~ScopedRelaxedCapture();

 private:
  const CudaDriver& driver_;
  int previous_mode_;
};

/// Returns the driver in use, or nullptr if none was found that has all functions.
[[nodiscard]] const CudaDriver* cuda_driver() noexcept;
/// Returns why cuda_driver() is nullptr, for an error message.
[[nodiscard]] std::string why_no_cuda_driver();

}  // namespace safetensors::device
