#include "device/hip_driver.hpp"

#include <memory>
#include <new>
#include <optional>
#include <type_traits>

#include "io/dynamic_library.hpp"

namespace safetensors::device {
namespace {

// Names and values of the HIP runtime API.
constexpr hip::Result kSuccess = 0;
constexpr hip::Result kNotReady = 600;
constexpr hip::Result kErrorCaptureImplicit = 906;
constexpr unsigned kStreamNonBlocking = 1;
constexpr unsigned kEventBlockingSync = 1;
constexpr unsigned kEventDisableTiming = 2;
constexpr unsigned kHostPortable = 1;
constexpr int kHostToDevice = 1;

std::optional<io::DynamicLibrary> open_library(const char* path) {
  if (path != nullptr) return io::DynamicLibrary::open(path);
  for (const char* const name : {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so"}) {
    if (auto library = io::DynamicLibrary::open(name)) return library;
  }
  return std::nullopt;
}

std::optional<hip::Functions> load(const char* path) {
  const std::optional<io::DynamicLibrary> library = open_library(path);
  if (!library) return std::nullopt;
  hip::Functions functions{};
  bool has_all = true;
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(library->symbol(name));
    has_all = has_all && function != nullptr;
  };
  find(functions.hipGetDevice, "hipGetDevice");
  find(functions.hipSetDevice, "hipSetDevice");
  find(functions.hipHostRegister, "hipHostRegister");
  find(functions.hipHostUnregister, "hipHostUnregister");
  find(functions.hipHostMalloc, "hipHostMalloc");
  find(functions.hipHostFree, "hipHostFree");
  find(functions.hipStreamCreateWithFlags, "hipStreamCreateWithFlags");
  find(functions.hipStreamSynchronize, "hipStreamSynchronize");
  find(functions.hipStreamWaitEvent, "hipStreamWaitEvent");
  find(functions.hipStreamIsCapturing, "hipStreamIsCapturing");
  find(functions.hipEventCreateWithFlags, "hipEventCreateWithFlags");
  find(functions.hipEventRecord, "hipEventRecord");
  find(functions.hipEventQuery, "hipEventQuery");
  find(functions.hipEventSynchronize, "hipEventSynchronize");
  find(functions.hipEventDestroy, "hipEventDestroy");
  find(functions.hipMemcpyAsync, "hipMemcpyAsync");
  find(functions.hipGetErrorName, "hipGetErrorName");
  if (!has_all) return std::nullopt;
  find(functions.hipThreadExchangeStreamCaptureMode, "hipThreadExchangeStreamCaptureMode");
  return functions;
}

/// HIP has a current device for each thread, and no contexts: a context here is the device's
/// number, counted from one, as a pointer.
class HipDriver final : public Driver {
 public:
  explicit HipDriver(const hip::Functions& functions) : f_(functions) {}

  [[nodiscard]] void* open(int index) const override {
    void* const context = context_of(index);
    leave(enter(context));
    return context;
  }
  [[nodiscard]] Facts facts(int /*index*/) const override { return {}; }

  [[nodiscard]] void* enter(void* context) const override {
    int before = 0;
    check(f_.hipGetDevice(&before), "hipGetDevice");
    const int wanted = index_of(context);
    if (wanted != before) check(f_.hipSetDevice(wanted), "hipSetDevice");
    return context_of(before);
  }
  void leave(void* before) const noexcept override { (void)f_.hipSetDevice(index_of(before)); }

  [[nodiscard]] Stream make_stream() const override {
    Stream stream = nullptr;
    check(f_.hipStreamCreateWithFlags(&stream, kStreamNonBlocking), "hipStreamCreateWithFlags");
    return stream;
  }
  void wait_for_stream(Stream stream) const override {
    check(f_.hipStreamSynchronize(stream), "hipStreamSynchronize");
  }
  void order_after(Stream stream, Event event) const override {
    check(f_.hipStreamWaitEvent(stream, event, 0), "hipStreamWaitEvent");
  }
  [[nodiscard]] bool is_capturing(Stream stream) const override {
    int status = 0;
    const hip::Result result = f_.hipStreamIsCapturing(stream, &status);
    if (result == kErrorCaptureImplicit) return true;
    check(result, "hipStreamIsCapturing");
    return status != 0;
  }
  void exchange_capture_mode(int& mode) const override {
    if (f_.hipThreadExchangeStreamCaptureMode == nullptr) return;
    check(f_.hipThreadExchangeStreamCaptureMode(&mode), "hipThreadExchangeStreamCaptureMode");
  }

  [[nodiscard]] Event make_event() const override {
    Event event = nullptr;
    check(f_.hipEventCreateWithFlags(&event, kEventBlockingSync | kEventDisableTiming),
          "hipEventCreateWithFlags");
    return event;
  }
  void destroy(Event event) const noexcept override { (void)f_.hipEventDestroy(event); }
  void record(Event event, Stream stream) const override {
    check(f_.hipEventRecord(event, stream), "hipEventRecord");
  }
  void wait_for_event(Event event) const override {
    check(f_.hipEventSynchronize(event), "hipEventSynchronize");
  }
  [[nodiscard]] bool is_done(Event event) const override {
    const hip::Result result = f_.hipEventQuery(event);
    if (result == kNotReady) return false;
    check(result, "hipEventQuery");
    return true;
  }

  void copy_to_device(std::uint64_t to, const std::byte* from, std::size_t nbytes,
                      Stream stream) const override {
    check(f_.hipMemcpyAsync(pointer_of(to), from, nbytes, kHostToDevice, stream), "hipMemcpyAsync");
  }

  [[nodiscard]] bool pin(void* memory, std::size_t nbytes) const noexcept override {
    return f_.hipHostRegister(memory, nbytes, kHostPortable) == kSuccess;
  }
  [[nodiscard]] bool unpin(void* memory) const noexcept override {
    return f_.hipHostUnregister(memory) == kSuccess;
  }
  [[nodiscard]] void* allocate_pinned(std::size_t nbytes) const noexcept override {
    void* memory = nullptr;
    return f_.hipHostMalloc(&memory, nbytes, kHostPortable) == kSuccess ? memory : nullptr;
  }
  [[nodiscard]] bool free_pinned(void* memory) const noexcept override {
    return f_.hipHostFree(memory) == kSuccess;
  }

 private:
  [[nodiscard]] static void* context_of(int index) noexcept {
    return pointer_of(static_cast<std::uint64_t>(index) + 1);
  }
  [[nodiscard]] static int index_of(void* context) noexcept {
    return static_cast<int>(reinterpret_cast<std::uintptr_t>(context) - 1);
  }
  void check(hip::Result result, const char* function) const {
    if (result == kSuccess) return;
    const char* const name = f_.hipGetErrorName(result);
    fail(ErrorCode::kDevice, std::string("HIP error ") +
                                 (name == nullptr ? "unknown error" : name) + " (" +
                                 std::to_string(result) + ") in " + function);
  }

  hip::Functions f_;
};

const Driver* search(const char* path) {
  const std::optional<hip::Functions> functions = load(path);
  return functions ? new HipDriver(*functions) : nullptr;
}

}  // namespace

const Driver* hip_driver(const char* path) noexcept {
  try {
    static const Driver* const driver = search(path);
    return driver;
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

}  // namespace safetensors::device
