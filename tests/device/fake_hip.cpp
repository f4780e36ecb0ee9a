// AMD's runtime for tests, over the fake CUDA driver: each thread has a current device instead of a
// stack of contexts.
#include <cstddef>

#include "fake_cuda.hpp"

#define EXPORT __attribute__((visibility("default")))

namespace {

thread_local int current = 0;

/// The current device's context, for one call.
class Context {
 public:
  Context() {
    void* context = nullptr;
    code_ = cuInit(0);
    if (code_ == 0) code_ = cuDevicePrimaryCtxRetain(&context, current);
    if (code_ == 0) code_ = cuCtxPushCurrent_v2(context);
    is_pushed_ = code_ == 0;
  }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  ~Context() {
    if (is_pushed_) cuCtxPopCurrent_v2(nullptr);
  }
  [[nodiscard]] int code() const { return code_; }

 private:
  int code_ = 0;
  bool is_pushed_ = false;
};

template <typename Call>
int within(const Call& call) {
  const Context context;
  return context.code() != 0 ? context.code() : call();
}

}  // namespace

extern "C" {

EXPORT int hipGetDevice(int* device) {
  *device = current;
  return 0;
}
EXPORT int hipSetDevice(int device) {
  if (const int code = cuInit(0); code != 0) return code;
  int found = 0;
  if (const int code = cuDeviceGet(&found, device); code != 0) return code;
  current = device;
  return 0;
}
EXPORT int hipHostRegister(void* memory, std::size_t nbytes, unsigned flags) {
  return within([&] { return cuMemHostRegister_v2(memory, nbytes, flags); });
}
EXPORT int hipHostUnregister(void* memory) {
  return within([&] { return cuMemHostUnregister(memory); });
}
EXPORT int hipHostMalloc(void** memory, std::size_t nbytes, unsigned flags) {
  return within([&] { return cuMemHostAlloc(memory, nbytes, flags); });
}
EXPORT int hipHostFree(void* memory) {
  return within([&] { return cuMemFreeHost(memory); });
}
EXPORT int hipStreamCreateWithFlags(void** stream, unsigned flags) {
  return within([&] { return cuStreamCreate(stream, flags); });
}
EXPORT int hipStreamSynchronize(void* stream) {
  return within([&] { return cuStreamSynchronize(stream); });
}
EXPORT int hipStreamWaitEvent(void* stream, void* event, unsigned flags) {
  return within([&] { return cuStreamWaitEvent(stream, event, flags); });
}
EXPORT int hipStreamIsCapturing(void* stream, int* status) {
  return within([&] { return cuStreamIsCapturing(stream, status); });
}
EXPORT int hipThreadExchangeStreamCaptureMode(int* mode) {
  return within([&] { return cuThreadExchangeStreamCaptureMode(mode); });
}
EXPORT int hipEventCreateWithFlags(void** event, unsigned flags) {
  return within([&] { return cuEventCreate(event, flags); });
}
EXPORT int hipEventRecord(void* event, void* stream) {
  return within([&] { return cuEventRecord(event, stream); });
}
EXPORT int hipEventQuery(void* event) {
  return within([&] { return cuEventQuery(event); });
}
EXPORT int hipEventSynchronize(void* event) {
  return within([&] { return cuEventSynchronize(event); });
}
EXPORT int hipEventDestroy(void* event) {
  return within([&] { return cuEventDestroy_v2(event); });
}
EXPORT int hipMemcpyAsync(void* to, const void* from, std::size_t nbytes, int kind, void* stream) {
  if (kind != 1) return 21;  // hipErrorInvalidMemcpyDirection
  return within([&] {
    return cuMemcpyHtoDAsync_v2(reinterpret_cast<unsigned long long>(to), from, nbytes, stream);
  });
}
EXPORT const char* hipGetErrorName(int code) {
  const char* name = nullptr;
  return cuGetErrorName(code, &name) == 0 ? name : nullptr;
}

}  // extern "C"
