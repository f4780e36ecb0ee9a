#include "device/cuda_driver.hpp"

#include <array>
#include <atomic>
#include <memory>
#include <optional>

#include "io/environment.hpp"
#include "io/system.hpp"
#include "safetensors/detail/cuda_driver.hpp"
#include "safetensors/error.hpp"

namespace safetensors::device {
namespace {

#if defined(_WIN32)
constexpr const char* kLibrary = "nvcuda.dll";
#else
constexpr const char* kLibrary = "libcuda.so.1";
#endif

// Values of the CUDA Driver API: CUDA_SUCCESS, CU_STREAM_NON_BLOCKING and so on.
constexpr cuda::Result kSuccess = 0;
constexpr cuda::Result kNotReady = 600;
constexpr unsigned kStreamNonBlocking = 1;
constexpr unsigned kEventBlockingSync = 1;
constexpr unsigned kEventDisableTiming = 2;
constexpr unsigned kHostPortable = 1;
constexpr int kCaptureModeRelaxed = 2;
constexpr int kAttributeIntegrated = 18;
constexpr int kAttributeHostRegisterSupported = 99;
constexpr int kAttributeHostNumaId = 134;
constexpr cuda::Result kErrorCaptureImplicit = 906;

/// Fills in the functions of a library. Returns why it cannot be used, or nothing on success.
std::optional<std::string> load(const char* path, cuda::Functions& functions) {
  const std::optional<io::DynamicLibrary> library = io::DynamicLibrary::open(path);
  if (!library) return std::string("there is no CUDA driver (") + path + " cannot be loaded)";
  std::optional<std::string> missing;
  const auto find = [&](auto& function, const char* name, bool is_needed = true) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(library->symbol(name));
    if (function == nullptr && is_needed && !missing) missing = name;
  };
  find(functions.cuInit, "cuInit");
  find(functions.cuDeviceGet, "cuDeviceGet");
  find(functions.cuDeviceGetAttribute, "cuDeviceGetAttribute");
  find(functions.cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain");
  find(functions.cuCtxPushCurrent_v2, "cuCtxPushCurrent_v2");
  find(functions.cuCtxPopCurrent_v2, "cuCtxPopCurrent_v2");
  find(functions.cuMemHostRegister_v2, "cuMemHostRegister_v2");
  find(functions.cuMemHostUnregister, "cuMemHostUnregister");
  find(functions.cuMemHostAlloc, "cuMemHostAlloc");
  find(functions.cuMemFreeHost, "cuMemFreeHost");
  find(functions.cuStreamCreate, "cuStreamCreate");
  find(functions.cuStreamSynchronize, "cuStreamSynchronize");
  find(functions.cuStreamWaitEvent, "cuStreamWaitEvent");
  find(functions.cuStreamIsCapturing, "cuStreamIsCapturing");
  find(functions.cuEventCreate, "cuEventCreate");
  find(functions.cuEventRecord, "cuEventRecord");
  find(functions.cuEventQuery, "cuEventQuery");
  find(functions.cuEventSynchronize, "cuEventSynchronize");
  find(functions.cuEventDestroy_v2, "cuEventDestroy_v2");
  find(functions.cuMemcpyHtoDAsync_v2, "cuMemcpyHtoDAsync_v2");
  find(functions.cuMemcpyDtoHAsync_v2, "cuMemcpyDtoHAsync_v2");
  find(functions.cuGetErrorName, "cuGetErrorName");
  find(functions.cuDeviceGetPCIBusId, "cuDeviceGetPCIBusId");
  find(functions.cuThreadExchangeStreamCaptureMode, "cuThreadExchangeStreamCaptureMode", false);
  if (!missing) return std::nullopt;
  return "the CUDA driver is too old: it has no " + *missing;
}

/// The outcome of a search for a driver. Never destroyed, as loads may run while the process ends.
struct Found {
  std::unique_ptr<const CudaDriver> driver;
  std::string why_not;
  Found* before = nullptr;
};

// Atomic pointers instead of a mutex or a local static: a fork could copy those while locked.
constinit std::atomic<Found*> all{nullptr};  // a list that only grows, so that leaks are reachable
constinit std::atomic<const Found*> chosen{nullptr};      // by use_cuda_driver()
constinit std::atomic<const Found*> of_machine{nullptr};  // found under the usual name

const Found* search(const char* path) {
  auto found = std::make_unique<Found>();
  cuda::Functions functions{};
  if (auto why = load(path, functions)) {
    found->why_not = *std::move(why);
  } else {
    found->driver = std::make_unique<const CudaDriver>(functions);
  }
  found->before = all.load();
  while (!all.compare_exchange_weak(found->before, found.get())) {
  }
  return found.release();
}

/// Threads that call this at once may all search; the first result is used by all.
const Found& driver_of_machine() {
  const Found* found = of_machine.load(std::memory_order_acquire);
  if (found != nullptr) return *found;
  const Found* const made = search(kLibrary);
  return of_machine.compare_exchange_strong(found, made) ? *made : *found;
}

const Found& current() {
  const Found* const found = chosen.load(std::memory_order_acquire);
  return found != nullptr ? *found : driver_of_machine();
}

}  // namespace

void* CudaDriver::open(int index) const {
  check(f_.cuInit(0), "cuInit");
  void* context = nullptr;
  check(f_.cuDevicePrimaryCtxRetain(&context, ordinal(index)), "cuDevicePrimaryCtxRetain");
  return context;
}

DeviceProperties CudaDriver::properties(int index) const {
  const cuda::Ordinal device = ordinal(index);
  return {.is_integrated = attribute(device, kAttributeIntegrated, 0) != 0,
          .can_register = attribute(device, kAttributeHostRegisterSupported, 1) != 0,
          .numa_node = numa_node(device)};
}

void CudaDriver::push_context(void* context) const {
  check(f_.cuCtxPushCurrent_v2(context), "cuCtxPushCurrent");
}

void CudaDriver::pop_context() const noexcept {
  cuda::Context popped = nullptr;
  (void)f_.cuCtxPopCurrent_v2(&popped);
}

void CudaDriver::exchange_capture_mode(int& mode) const {
  if (f_.cuThreadExchangeStreamCaptureMode == nullptr) return;
  check(f_.cuThreadExchangeStreamCaptureMode(&mode), "cuThreadExchangeStreamCaptureMode");
}

Stream CudaDriver::make_stream() const {
  Stream stream = nullptr;
  check(f_.cuStreamCreate(&stream, kStreamNonBlocking), "cuStreamCreate");
  return stream;
}

void CudaDriver::wait_for_stream(Stream stream) const {
  check(f_.cuStreamSynchronize(stream), "cuStreamSynchronize");
}

void CudaDriver::order_after(Stream stream, Event event) const {
  check(f_.cuStreamWaitEvent(stream, event, 0), "cuStreamWaitEvent");
}

bool CudaDriver::is_capturing(Stream stream) const {
  int status = 0;
  const cuda::Result result = f_.cuStreamIsCapturing(stream, &status);
  // The legacy default stream returns this while any other stream is being captured.
  if (result == kErrorCaptureImplicit) return true;
  check(result, "cuStreamIsCapturing");
  return status != 0;
}

Event CudaDriver::make_event() const {
  Event event = nullptr;
  check(f_.cuEventCreate(&event, kEventBlockingSync | kEventDisableTiming), "cuEventCreate");
  return event;
}

void CudaDriver::destroy(Event event) const noexcept { (void)f_.cuEventDestroy_v2(event); }

void CudaDriver::record(Event event, Stream stream) const {
  check(f_.cuEventRecord(event, stream), "cuEventRecord");
}

void CudaDriver::wait_for_event(Event event) const {
  check(f_.cuEventSynchronize(event), "cuEventSynchronize");
}

bool CudaDriver::is_done(Event event) const {
  const cuda::Result result = f_.cuEventQuery(event);
  if (result == kNotReady) return false;
  check(result, "cuEventQuery");
  return true;
}

void CudaDriver::copy_to_device(std::uint64_t to, const std::byte* from, std::size_t nbytes,
                                Stream stream) const {
  check(f_.cuMemcpyHtoDAsync_v2(to, from, nbytes, stream), "cuMemcpyHtoDAsync");
}

void CudaDriver::copy_from_device(std::byte* to, std::uint64_t from, std::size_t nbytes,
                                  Stream stream) const {
  check(f_.cuMemcpyDtoHAsync_v2(to, from, nbytes, stream), "cuMemcpyDtoHAsync");
}

bool CudaDriver::pin(void* memory, std::size_t nbytes) const noexcept {
  return f_.cuMemHostRegister_v2(memory, nbytes, kHostPortable) == kSuccess;
}

bool CudaDriver::unpin(void* memory) const noexcept {
  return f_.cuMemHostUnregister(memory) == kSuccess;
}

void* CudaDriver::allocate_pinned(std::size_t nbytes) const noexcept {
  void* memory = nullptr;
  return f_.cuMemHostAlloc(&memory, nbytes, kHostPortable) == kSuccess ? memory : nullptr;
}

bool CudaDriver::free_pinned(void* memory) const noexcept {
  return f_.cuMemFreeHost(memory) == kSuccess;
}

cuda::Ordinal CudaDriver::ordinal(int index) const {
  cuda::Ordinal device = 0;
  check(f_.cuDeviceGet(&device, index), "cuDeviceGet");
  return device;
}

int CudaDriver::attribute(cuda::Ordinal device, int which, int otherwise) const noexcept {
  int value = 0;
  return f_.cuDeviceGetAttribute(&value, which, device) == kSuccess ? value : otherwise;
}

int CudaDriver::numa_node(cuda::Ordinal device) const {
  // Drivers report the node since CUDA 12.2; before that, the operating system does.
  const int node = attribute(device, kAttributeHostNumaId, -1);
  if (node >= 0) return node;
  std::array<char, 32> address{};
  const auto length = static_cast<int>(address.size());
  if (f_.cuDeviceGetPCIBusId(address.data(), length, device) != kSuccess) return -1;
  return io::node_of_pci(address.data());
}

void CudaDriver::check(cuda::Result result, const char* function) const {
  if (result == kSuccess) return;
  const char* name = nullptr;
  if (f_.cuGetErrorName(result, &name) != kSuccess || name == nullptr) name = "unknown error";
  fail(ErrorCode::kDevice,
       std::string("CUDA error ") + name + " (" + std::to_string(result) + ") in " + function);
}

ScopedRelaxedCapture::ScopedRelaxedCapture(const CudaDriver& driver)
    : driver_(driver), previous_mode_(kCaptureModeRelaxed) {
  driver_.exchange_capture_mode(previous_mode_);
}

ScopedRelaxedCapture::~ScopedRelaxedCapture() {
  try {
    driver_.exchange_capture_mode(previous_mode_);
  } catch (const Error&) {  // the context is dead, and the mode with it
    return;
  }
}

const CudaDriver* cuda_driver() noexcept {
  try {
    return current().driver.get();
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

std::string why_no_cuda_driver() { return current().why_not; }

}  // namespace safetensors::device

namespace safetensors::detail {

void use_cuda_driver(const char* path) {
  using namespace device;
  chosen.store(*path == '\0' ? nullptr : search(path), std::memory_order_release);
}

bool is_cuda_engine_wanted() { return io::env_flag("SAFETENSORS_CUDA_ENGINE").value_or(true); }

}  // namespace safetensors::detail
