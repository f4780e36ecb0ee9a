// A CUDA driver for tests, over this machine's memory: what the tests that steer it need. "Device
// memory" is memory, and streams run their work when the mode says so.
#pragma once

#include <cstddef>

namespace fake {

enum Mode : int {
  kEager = 0,  ///< work runs in the call that asks for it
  kAsync = 1,  ///< each stream has a thread
  kLazy = 2,   ///< work runs only when something waits for it: nothing happens that was not ordered
  kGone = 3,   ///< the driver was shut down: every call returns 4
};

/// What fakecuda_stat() counts. The first ones since fakecuda_clear().
enum Stat : int {
  kPageableCopies = 0,     ///< copies from memory that is not pinned
  kCallsWithoutContext,    ///< refused with 201
  kCopiedBytes,            ///< by copies that ran
  kDeadUses,               ///< calls with a stream or event that is destroyed, or never was one
  kForeignUses,            ///< calls with a stream or event of another context
  kUnpinnedInUse,          ///< memory unpinned or freed while a copy from it had not run
  kBlockingStreams,        ///< streams made without CU_STREAM_NON_BLOCKING
  kMostCopiesFromAddress,  ///< the most copies from one address that were under way at once
  kCapturesBroken,         ///< calls that a capture forbids, and that ended it
  kRangesNow,              ///< ranges of pinned memory
  kRangesNbytesNow,        ///< and their bytes
  kContextDepthNow,        ///< contexts pushed and not popped, by all threads
  kEventsNow,              ///< events created and not destroyed
  kUnmappedRangesNow,      ///< registered ranges whose memory is no longer mapped
};

}  // namespace fake

extern "C" {

/// How work runs from now on, each piece after a random while of at most `delay_us` unless eager.
/// Work that waits stays: kAsync takes it up, other modes run it when something waits for it.
void fakecuda_mode(int mode, int delay_us);
/// Lets the nth call of a function from now on return `code` and do nothing; all calls when nth is
/// 0. Code 0 takes that back. Codes that end a context (700, 719) are returned by all later calls,
/// and what was queued is dropped.
void fakecuda_fault(const char* function, long nth, int code);
/// Lets a function return success and do nothing.
void fakecuda_ignore(const char* function, int on);
/// Forgets faults, what is ignored, errors, counts, captures, attributes, kGone, and queued work.
void fakecuda_clear();
/// Calls since fakecuda_clear(), also those that failed.
long fakecuda_calls(const char* function);
long fakecuda_stat(int stat);
/// Whether the default stream of a device is being captured.
void fakecuda_capturing(int device, int on);
/// The same for a stream that cuStreamCreate() made.
void fakecuda_capturing_stream(void* stream, int on);
void fakecuda_devices(int count);
void fakecuda_attribute(int id, int value);
/// Work of a device's streams that did not run.
long fakecuda_pending(int device);
/// Runs all of it, whatever the mode.
void fakecuda_run();

// The driver's own functions, by which tests use the device as its other users do.
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
