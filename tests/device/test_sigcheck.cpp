// Compares the library's declarations of the CUDA driver with cuda.h, where that is installed.
#include <doctest/doctest.h>

#if defined(SAFETENSORS_HAS_CUDA_H)
#include <cuda.h>
#endif

#include <cstddef>
#include <type_traits>

#include "device/cuda_driver.hpp"

#if defined(SAFETENSORS_HAS_CUDA_H)

namespace {

using safetensors::device::cuda::Functions;

/// The type without cuda.h that has the same ABI: int for enumerations, void* for handles.
template <typename T>
struct Plain {
  using Number = std::conditional_t<std::is_enum_v<T>, int, T>;
  using Type = std::conditional_t<std::is_class_v<T>, void, Number>;
};
template <typename T>
struct Plain<const T> {
  using Type = const typename Plain<T>::Type;
};
template <typename T>
struct Plain<T*> {
  using Type = typename Plain<T>::Type*;
};
template <typename Result, typename... Arguments>
struct Plain<Result(Arguments...)> {
  using Type = typename Plain<Result>::Type(typename Plain<Arguments>::Type...);
};

/// `Theirs` is the function's type in cuda.h, `Ours` that of the library's pointer.
template <typename Theirs, typename Ours>
constexpr bool kIsSame = std::is_same_v<typename Plain<Theirs>::Type, std::remove_pointer_t<Ours>>;

static_assert(sizeof(CUresult) == sizeof(int) && sizeof(CUdevice_attribute) == sizeof(int) &&
              sizeof(CUstreamCaptureStatus) == sizeof(int) &&
              sizeof(CUstreamCaptureMode) == sizeof(int));

// The check itself must find wrong declarations.
static_assert(!kIsSame<decltype(cuEventRecord), decltype(Functions::cuEventQuery)>);
static_assert(!kIsSame<decltype(cuMemHostAlloc), decltype(Functions::cuMemHostRegister_v2)>);

#define SAFETENSORS_CHECK_SIGNATURE(NAME) \
  static_assert(kIsSame<decltype(::NAME), decltype(Functions::NAME)>, #NAME)
SAFETENSORS_CHECK_SIGNATURE(cuInit);
SAFETENSORS_CHECK_SIGNATURE(cuDeviceGet);
SAFETENSORS_CHECK_SIGNATURE(cuDeviceGetAttribute);
SAFETENSORS_CHECK_SIGNATURE(cuDevicePrimaryCtxRetain);
SAFETENSORS_CHECK_SIGNATURE(cuCtxPushCurrent_v2);
SAFETENSORS_CHECK_SIGNATURE(cuCtxPopCurrent_v2);
SAFETENSORS_CHECK_SIGNATURE(cuMemHostRegister_v2);
SAFETENSORS_CHECK_SIGNATURE(cuMemHostUnregister);
SAFETENSORS_CHECK_SIGNATURE(cuMemHostAlloc);
SAFETENSORS_CHECK_SIGNATURE(cuMemFreeHost);
SAFETENSORS_CHECK_SIGNATURE(cuStreamCreate);
SAFETENSORS_CHECK_SIGNATURE(cuStreamSynchronize);
SAFETENSORS_CHECK_SIGNATURE(cuStreamWaitEvent);
SAFETENSORS_CHECK_SIGNATURE(cuStreamIsCapturing);
SAFETENSORS_CHECK_SIGNATURE(cuEventCreate);
SAFETENSORS_CHECK_SIGNATURE(cuEventRecord);
SAFETENSORS_CHECK_SIGNATURE(cuEventQuery);
SAFETENSORS_CHECK_SIGNATURE(cuEventSynchronize);
SAFETENSORS_CHECK_SIGNATURE(cuEventDestroy_v2);
SAFETENSORS_CHECK_SIGNATURE(cuMemcpyHtoDAsync_v2);
SAFETENSORS_CHECK_SIGNATURE(cuMemcpyDtoHAsync_v2);
SAFETENSORS_CHECK_SIGNATURE(cuGetErrorName);
SAFETENSORS_CHECK_SIGNATURE(cuDeviceGetPCIBusId);
SAFETENSORS_CHECK_SIGNATURE(cuThreadExchangeStreamCaptureMode);
#undef SAFETENSORS_CHECK_SIGNATURE

// No function is missing above: the sum of the pointers is the size of the table.
static_assert(sizeof(Functions) == 24 * sizeof(void*));

// The constants in src/device/ and in the fake driver.
static_assert(CU_STREAM_NON_BLOCKING == 1);
static_assert(CU_EVENT_BLOCKING_SYNC == 1);
static_assert(CU_EVENT_DISABLE_TIMING == 2);
static_assert(CU_MEMHOSTREGISTER_PORTABLE == 1);
static_assert(CU_MEMHOSTALLOC_PORTABLE == 1);
static_assert(CU_DEVICE_ATTRIBUTE_INTEGRATED == 18);
static_assert(CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED == 99);
static_assert(CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED == 113);
static_assert(CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID == 134);
static_assert(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL == 9);
static_assert(CU_STREAM_CAPTURE_MODE_RELAXED == 2);
static_assert(CU_STREAM_CAPTURE_STATUS_NONE == 0);
static_assert(CUDA_ERROR_INVALID_VALUE == 1);
static_assert(CUDA_ERROR_OUT_OF_MEMORY == 2);
static_assert(CUDA_ERROR_NOT_INITIALIZED == 3);
static_assert(CUDA_ERROR_DEINITIALIZED == 4);
static_assert(CUDA_ERROR_NO_DEVICE == 100);
static_assert(CUDA_ERROR_INVALID_DEVICE == 101);
static_assert(CUDA_ERROR_INVALID_CONTEXT == 201);
static_assert(CUDA_ERROR_INVALID_HANDLE == 400);
static_assert(CUDA_ERROR_NOT_READY == 600);
static_assert(CUDA_ERROR_ILLEGAL_ADDRESS == 700);
static_assert(CUDA_ERROR_CONTEXT_IS_DESTROYED == 709);
static_assert(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED == 712);
static_assert(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED == 713);
static_assert(CUDA_ERROR_LAUNCH_FAILED == 719);
static_assert(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED == 900);
static_assert(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT == 906);

}  // namespace

TEST_CASE("declarations are those of cuda.h") {
  MESSAGE("compared with version ", CUDA_VERSION);
  CHECK(CUDA_VERSION >= 10010);
}

#else

TEST_CASE("declarations are those of cuda.h") {
  MESSAGE("skipped: no cuda.h was found when this was built");
  CHECK(sizeof(safetensors::device::cuda::Functions) % sizeof(void*) == 0);
}

#endif
