// NVIDIA's driver, by the functions that the loads use. Declarations as in the CUDA Driver API
// reference (https://docs.nvidia.com/cuda/cuda-driver-api/): a name with its suffix is one ABI for
// ever. tests/device/test_sigcheck.cpp compares them with cuda.h where there is one.
#pragma once

#include <cstddef>
#include <string>

#include "device/driver.hpp"

namespace safetensors::device {

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
  Result (*cuGetErrorName)(Result, const char**);
  Result (*cuDeviceGetPCIBusId)(char*, int length, Ordinal);
  Result (*cuThreadExchangeStreamCaptureMode)(int* mode);  ///< nullptr before CUDA 10.1
};

}  // namespace cuda

/// The driver of this machine; nullptr when there is none with all that is needed.
[[nodiscard]] const Driver* cuda_driver() noexcept;
/// Why there is none, for an error's text.
[[nodiscard]] std::string why_no_cuda_driver();

/// What use_cuda_driver does.
void use_driver(const std::string& path);

}  // namespace safetensors::device
