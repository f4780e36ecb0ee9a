// The entry points of contexts and memory, with the CUDA driver's names and types.
#include "fake_cuda.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "fake_driver.hpp"

// Handles are void* and enumerations int, which have the same ABI as the types of cuda.h.
#define FAKE extern "C" __attribute__((visibility("default")))

namespace {

using fake::Driver;
using fake::enter;
using fake::Lock;
using fake::Needs;
using fake::Op;
using Address = unsigned long long;

constexpr int kHostRegisterSupported = 99;
constexpr int kReadOnlyRegisterSupported = 113;
constexpr int kHostNumaId = 134;
constexpr int kPointerDevice = 9;  // CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL

std::byte* pointer(Address address) {
  return reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(address));
}

fake::Context* current() { return fake::this_thread().current(); }

bool is_device(const Driver& driver, int device) {
  return device >= 0 && device < driver.device_count;
}

void* allocate(std::size_t alignment, std::size_t nbytes) {
  void* memory = nullptr;
  return ::posix_memalign(&memory, alignment, nbytes) == 0 ? memory : nullptr;
}

/// Removes pinned memory that a caller unpins or frees.
void unpin(Driver& driver, std::uintptr_t begin) {
  const auto range = driver.pinned.find(begin);
  const auto* memory = reinterpret_cast<const std::byte*>(begin);
  if (driver.is_read_later(memory, range->second.nbytes)) ++driver.stats[fake::kUnpinnedInUse];
  driver.pinned.erase(range);
}

/// Queues work on the stream of a handle.
int queue(Driver& driver, Lock& lock, void* handle, Op op) {
  fake::Stream* stream = driver.stream_of(handle);
  if (stream == nullptr) return fake::kInvalidHandle;
  if (stream->is_capturing) return fake::kCaptureUnsupported;
  driver.push(lock, *stream, std::move(op));
  return fake::kSuccess;
}

}  // namespace

// The driver and its devices

FAKE int cuInit(unsigned flags) {
  return enter(__func__, Needs::kNothing, [&](Driver& driver, Lock&) {
    if (flags != 0) return fake::kInvalidValue;
    if (driver.device_count == 0) return fake::kNoDevice;
    driver.initialise();
    return fake::kSuccess;
  });
}

FAKE int cuDriverGetVersion(int* version) {
  return enter(__func__, Needs::kNothing, [&](Driver&, Lock&) {
    *version = 13000;
    return fake::kSuccess;
  });
}

FAKE int cuDeviceGetCount(int* count) {
  return enter(__func__, Needs::kInit, [&](const Driver& driver, Lock&) {
    *count = driver.device_count;
    return fake::kSuccess;
  });
}

FAKE int cuDeviceGet(int* device, int ordinal) {
  return enter(__func__, Needs::kInit, [&](const Driver& driver, Lock&) {
    if (!is_device(driver, ordinal)) return fake::kInvalidDevice;
    *device = ordinal;
    return fake::kSuccess;
  });
}

FAKE int cuDeviceGetAttribute(int* value, int id, int device) {
  return enter(__func__, Needs::kInit, [&](const Driver& driver, Lock&) {
    if (!is_device(driver, device)) return fake::kInvalidDevice;
    const auto set = driver.attributes.find(id);
    if (set != driver.attributes.end()) {
      *value = set->second;
    } else if (id == kHostRegisterSupported || id == kReadOnlyRegisterSupported) {
      *value = 1;
    } else {
      *value = id == kHostNumaId ? -1 : 0;  // also 18, CU_DEVICE_ATTRIBUTE_INTEGRATED
    }
    return fake::kSuccess;
  });
}

FAKE int cuDeviceGetPCIBusId(char* id, int nbytes, int device) {
  return enter(__func__, Needs::kInit, [&](const Driver& driver, Lock&) {
    if (!is_device(driver, device)) return fake::kInvalidDevice;
    if (nbytes < 13) return fake::kInvalidValue;
    // No machine has this bus, so that /sys has no entry for it.
    std::snprintf(id, static_cast<std::size_t>(nbytes), "FFFF:%02X:00.0", device & 0xFF);
    return fake::kSuccess;
  });
}

FAKE int cuDevicePrimaryCtxRetain(void** context, int device) {
  return enter(__func__, Needs::kInit, [&](Driver& driver, Lock&) {
    if (!is_device(driver, device)) return fake::kInvalidDevice;
    *context = driver.retain(device);
    return fake::kSuccess;
  });
}

// Contexts

FAKE int cuCtxPushCurrent_v2(void* context) {
  return enter(__func__, Needs::kInit, [&](Driver& driver, Lock&) {
    const auto known = std::ranges::find_if(
        driver.contexts, [&](const auto& each) { return &each == context && each.is_retained; });
    if (known == std::end(driver.contexts)) return fake::kInvalidContext;
    fake::this_thread().contexts.push_back(&*known);
    ++driver.stats[fake::kContextDepthNow];
    return fake::kSuccess;
  });
}

FAKE int cuCtxPopCurrent_v2(void** context) {
  // Also after errors: a caller must be able to restore its context.
  Driver& driver = Driver::get();
  if (driver.is_forked()) return fake::kNotInitialised;
  Lock lock(driver.mutex);
  const std::optional<int> result = driver.refuse(lock, __func__, Needs::kContext);
  const int ended = driver.mode == fake::kGone ? fake::kDeinitialised : driver.sticky;
  if (result && (ended == 0 || *result != ended)) return *result;
  std::vector<fake::Context*>& contexts = fake::this_thread().contexts;
  if (contexts.empty()) return fake::kInvalidContext;
  if (context != nullptr) *context = contexts.back();
  contexts.pop_back();
  --driver.stats[fake::kContextDepthNow];
  return result.value_or(fake::kSuccess);
}

FAKE int cuCtxGetCurrent(void** context) {
  return enter(__func__, Needs::kInit, [&](Driver&, Lock&) {
    *context = current();
    return fake::kSuccess;
  });
}

FAKE int cuThreadExchangeStreamCaptureMode(int* mode) {
  return enter(__func__, Needs::kNothing, [&](Driver&, Lock&) {
    if (*mode < 0 || *mode > 2) return fake::kInvalidValue;
    std::swap(*mode, fake::this_thread().capture_mode);
    return fake::kSuccess;
  });
}

// Memory

FAKE int cuMemHostRegister_v2(void* memory, std::size_t nbytes, unsigned) {
  return enter(__func__, Needs::kContext, [&](Driver& driver, Lock&) {
    if (memory == nullptr || nbytes == 0) return fake::kInvalidValue;
    if (driver.breaks_capture()) return fake::kCaptureUnsupported;
    const auto begin = reinterpret_cast<std::uintptr_t>(memory);
    const auto next = driver.pinned.lower_bound(begin + nbytes);
    if (next != driver.pinned.begin()) {
      const auto& [other, range] = *std::prev(next);
      if (begin < other + range.nbytes) return fake::kAlreadyRegistered;
    }
    driver.pinned[begin] = {nbytes, false, {}};
    return fake::kSuccess;
  });
}

FAKE int cuMemHostUnregister(void* memory) {
  return enter(__func__, Needs::kContext, [&](Driver& driver, Lock&) {
    if (driver.breaks_capture()) return fake::kCaptureUnsupported;
    const auto begin = reinterpret_cast<std::uintptr_t>(memory);
    const auto range = driver.pinned.find(begin);
    if (range == driver.pinned.end() || range->second.is_allocated) return fake::kNotRegistered;
    unpin(driver, begin);
    return fake::kSuccess;
  });
}

FAKE int cuMemHostAlloc(void** memory, std::size_t nbytes, unsigned) {
  return enter(__func__, Needs::kContext, [&](Driver& driver, Lock&) {
    if (nbytes == 0) return fake::kInvalidValue;
    if (driver.breaks_capture()) return fake::kCaptureUnsupported;
    *memory = allocate(4096, nbytes);
    if (*memory == nullptr) return fake::kOutOfMemory;
    driver.pinned[reinterpret_cast<std::uintptr_t>(*memory)] = {nbytes, true, {}};
    return fake::kSuccess;
  });
}

FAKE int cuMemFreeHost(void* memory) {
  return enter(__func__, Needs::kContext, [&](Driver& driver, Lock&) {
    if (driver.breaks_capture()) return fake::kCaptureUnsupported;
    const auto begin = reinterpret_cast<std::uintptr_t>(memory);
    const auto range = driver.pinned.find(begin);
    if (range == driver.pinned.end() || !range->second.is_allocated) return fake::kInvalidValue;
    unpin(driver, begin);
    std::free(memory);
    return fake::kSuccess;
  });
}

FAKE int cuMemAlloc_v2(Address* memory, std::size_t nbytes) {
  return enter(__func__, Needs::kContext, [&](Driver& driver, Lock&) {
    if (nbytes == 0) return fake::kInvalidValue;
    if (driver.breaks_capture()) return fake::kCaptureUnsupported;
    void* const made = allocate(512, nbytes);
    if (made == nullptr) return fake::kOutOfMemory;
    *memory = reinterpret_cast<std::uintptr_t>(made);
    driver.allocated[reinterpret_cast<std::uintptr_t>(made)] = current()->device;
    return fake::kSuccess;
  });
}

FAKE int cuMemFree_v2(Address memory) {
  return enter(__func__, Needs::kContext, [&](Driver& driver, Lock& lock) {
    if (driver.breaks_capture()) return fake::kCaptureUnsupported;
    if (driver.allocated.erase(static_cast<std::uintptr_t>(memory)) == 0) {
      return fake::kInvalidValue;
    }
    driver.run_all(lock, current());  // as cuMemFree does
    std::free(pointer(memory));
    return fake::kSuccess;
  });
}

FAKE int cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  return enter(__func__, Needs::kContext, [&](Driver&, Lock&) {
    *free = *total = std::size_t{16} << 30;
    return fake::kSuccess;
  });
}

FAKE int cuPointerGetAttribute(void* value, int id, Address memory) {
  return enter(__func__, Needs::kContext, [&](Driver& driver, Lock&) {
    if (id != kPointerDevice) return fake::kInvalidValue;
    // Tests use any host memory as device memory.
    const auto owned = driver.allocated.find(static_cast<std::uintptr_t>(memory));
    *static_cast<int*>(value) = owned == driver.allocated.end() ? current()->device : owned->second;
    return fake::kSuccess;
  });
}

FAKE int cuMemcpyHtoDAsync_v2(Address to, const void* from, std::size_t nbytes, void* stream) {
  return enter(__func__, Needs::kContext, [&](Driver& driver, Lock& lock) {
    Op op;
    op.kind = Op::Kind::kCopy;
    op.to = pointer(to);
    const auto* const memory = static_cast<const std::byte*>(from);
    op.from = driver.seen_by_device(memory, nbytes);
    op.nbytes = nbytes;
    if (op.from == nullptr) {
      // CUDA copies pageable memory before it returns; the copy reaches the device in stream order.
      ++driver.stats[fake::kPageableCopies];
      op.is_pageable = true;
      if (driver.mode != fake::kTimed) op.staged.assign(memory, memory + nbytes);
      op.from = op.staged.data();
    }
    return queue(driver, lock, stream, std::move(op));
  });
}

FAKE int cuMemcpyDtoHAsync_v2(void* to, Address from, std::size_t nbytes, void* stream) {
  return enter(__func__, Needs::kContext, [&](Driver& driver, Lock& lock) {
    Op op;
    op.kind = Op::Kind::kCopy;
    op.direction = fake::kToHost;
    op.to = static_cast<std::byte*>(to);
    op.from = pointer(from);
    op.nbytes = nbytes;
    op.is_pageable = driver.seen_by_device(op.to, nbytes) == nullptr;
    if (op.is_pageable) ++driver.stats[fake::kPageableCopies];
    return queue(driver, lock, stream, std::move(op));
  });
}

FAKE int cuMemsetD8Async(Address to, unsigned char value, std::size_t nbytes, void* stream) {
  return enter(__func__, Needs::kContext, [&](Driver& driver, Lock& lock) {
    Op op;
    op.kind = Op::Kind::kFill;
    op.to = pointer(to);
    op.value = value;
    op.nbytes = nbytes;
    return queue(driver, lock, stream, std::move(op));
  });
}

// Errors

FAKE int cuGetErrorName(int code, const char** name) {
  switch (code) {
    case fake::kSuccess:
      *name = "CUDA_SUCCESS";
      break;
    case fake::kOutOfMemory:
      *name = "CUDA_ERROR_OUT_OF_MEMORY";
      break;
    case fake::kInvalidDevice:
      *name = "CUDA_ERROR_INVALID_DEVICE";
      break;
    case 700:
      *name = "CUDA_ERROR_ILLEGAL_ADDRESS";
      break;
    case 719:
      *name = "CUDA_ERROR_LAUNCH_FAILED";
      break;
    default:
      *name = nullptr;  // as cuGetErrorName() does for an unknown code
      return fake::kInvalidValue;
  }
  return fake::kSuccess;
}
