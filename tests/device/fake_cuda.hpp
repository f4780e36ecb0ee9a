// The controls of a fake CUDA driver. Its device memory is host memory, and its streams run their
// work when the mode says so.
#pragma once

#include <cstddef>

namespace fake {

enum Mode : int {
  kEager = 0,  ///< work runs in the call that queues it
  kAsync = 1,  ///< each stream has a thread
  kLazy = 2,   ///< work runs only when something waits for it, as late as CUDA permits
  kGone = 3,   ///< the driver was shut down: every call returns 4
  kTimed = 4,  ///< copies take time and copy nothing; see fakecuda_timed()
};

enum Direction : int { kToDevice = 0, kToHost = 1 };

/// What one copy engine did in timed mode since fakecuda_clear(). Times are nanoseconds of the
/// system's monotonic clock.
struct EngineTimes {
  long copies;
  long nbytes;
  long busy_ns;   ///< of all copies, as if all had been from pinned memory
  long begin_ns;  ///< of the first copy; 0 if there was none
  long end_ns;    ///< of the last copy, which may not have been reached yet
};

/// What fakecuda_stat() counts: since fakecuda_clear(), but for those named ...Now.
enum Stat : int {
  kPageableCopies = 0,    ///< copies from memory that is not pinned
  kCallsWithoutContext,   ///< refused with 201
  kCopiedBytes,           ///< by copies that ran
  kDeadUses,              ///< calls with a handle that was destroyed or is invalid
  kForeignUses,           ///< calls with a handle of another context
  kUnpinnedInUse,         ///< memory unpinned or freed before a copy from it ran
  kBlockingStreams,       ///< streams made without CU_STREAM_NON_BLOCKING
  kMaxCopiesFromAddress,  ///< the most copies in flight from one address at once
  kCapturesBroken,        ///< calls that invalidated a capture
  kRangesNow,             ///< ranges of pinned memory
  kRangesNbytesNow,       ///< and their bytes
  kContextDepthNow,       ///< contexts pushed and not popped, on all threads
  kEventsNow,             ///< events created and not destroyed
  kUnmappedRangesNow,     ///< registered ranges whose memory is no longer mapped
};

}  // namespace fake

extern "C" {

/// Sets how work runs from now on. Unless eager, each piece is delayed by a random time of at most
/// `delay_us`. Queued work stays queued: kAsync starts it, other modes run it when something waits
/// for it.
void fakecuda_mode(int mode, int delay_us);
/// Runs all queued work, and begins the timed mode. Each device has a copy engine for each
/// direction, which copies one after the other, in the order of the calls. A copy takes
/// `latency_ns`, then a second for `nbytes_per_second` bytes; one from or to pageable memory takes
/// four times as long, and returns when it is done. No bytes are copied, but events and streams are
/// only done when the copies before them would be.
void fakecuda_timed(double nbytes_per_second, long latency_ns);
void fakecuda_engine_times(int device, int direction, fake::EngineTimes* times);
/// Makes the nth call of a function from now on return `code` and do nothing; all calls if nth is
/// 0. Code 0 removes the fault. Codes that end a context (700, 719) are returned by all later
/// calls, and queued work is dropped.
void fakecuda_fault(const char* function, long nth, int code);
/// Makes a function return success and do nothing.
void fakecuda_ignore(const char* function, int on);
/// Resets faults, ignored functions, errors, counts, captures, attributes and kGone, and drops
/// queued work.
void fakecuda_clear();
/// Returns the number of calls since fakecuda_clear(), including those that failed.
long fakecuda_calls(const char* function);
long fakecuda_stat(int stat);
/// Sets whether the default stream of a device is being captured.
void fakecuda_capturing(int device, int on);
/// Sets the same for a stream made by cuStreamCreate().
void fakecuda_capturing_stream(void* stream, int on);
void fakecuda_devices(int count);
void fakecuda_attribute(int id, int value);
/// Returns how many pieces of work on a device's streams have not run.
long fakecuda_pending(int device);
/// Runs all queued work, in any mode.
void fakecuda_run();

// The driver's functions, with which tests use the device as other libraries would.
int cuInit(unsigned flags);
int cuDeviceGet(int* device, int ordinal);
int cuDeviceGetAttribute(int* value, int id, int device);
int cuDeviceGetPCIBusId(char* id, int nbytes, int device);
int cuGetErrorName(int code, const char** name);
int cuDevicePrimaryCtxRetain(void** context, int device);
int cuCtxPushCurrent_v2(void* context);
int cuCtxPopCurrent_v2(void** context);
int cuCtxGetCurrent(void** context);
int cuMemAlloc_v2(unsigned long long* memory, std::size_t nbytes);
int cuMemFree_v2(unsigned long long memory);
int cuMemHostAlloc(void** memory, std::size_t nbytes, unsigned flags);
int cuMemFreeHost(void* memory);
int cuMemHostRegister_v2(void* memory, std::size_t nbytes, unsigned flags);
int cuMemHostUnregister(void* memory);
int cuMemcpyHtoDAsync_v2(unsigned long long to, const void* from, std::size_t nbytes, void* stream);
int cuMemcpyDtoHAsync_v2(void* to, unsigned long long from, std::size_t nbytes, void* stream);
int cuMemsetD8Async(unsigned long long to, unsigned char value, std::size_t nbytes, void* stream);
int cuStreamCreate(void** stream, unsigned flags);
int cuStreamDestroy_v2(void* stream);
int cuStreamSynchronize(void* stream);
int cuStreamWaitEvent(void* stream, void* event, unsigned flags);
int cuStreamIsCapturing(void* stream, int* status);
int cuEventCreate(void** event, unsigned flags);
int cuEventDestroy_v2(void* event);
int cuEventRecord(void* event, void* stream);
int cuEventQuery(void* event);
int cuEventSynchronize(void* event);
int cuThreadExchangeStreamCaptureMode(int* mode);

}  // extern "C"
