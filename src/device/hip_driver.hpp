// AMD's runtime, by the functions that the loads use. Declarations as in the HIP runtime API
// reference (https://rocm.docs.amd.com/projects/HIP/). Never run on such a device: off unless it is
// asked for.
#pragma once

#include <cstddef>
#include <string>

#include "device/driver.hpp"

namespace safetensors::device {

namespace hip {

using Result = int;

/// Pointers to the runtime's functions, each named for its symbol.
struct Functions {
  Result (*hipGetDevice)(int*);
  Result (*hipSetDevice)(int);
  Result (*hipHostRegister)(void*, std::size_t, unsigned flags);
  Result (*hipHostUnregister)(void*);
  Result (*hipHostMalloc)(void**, std::size_t, unsigned flags);
  Result (*hipHostFree)(void*);
  Result (*hipStreamCreateWithFlags)(Stream*, unsigned flags);
  Result (*hipStreamSynchronize)(Stream);
  Result (*hipStreamWaitEvent)(Stream, Event, unsigned flags);
  Result (*hipStreamIsCapturing)(Stream, int* status);
  Result (*hipEventCreateWithFlags)(Event*, unsigned flags);
  Result (*hipEventRecord)(Event, Stream);
  Result (*hipEventQuery)(Event);
  Result (*hipEventSynchronize)(Event);
  Result (*hipEventDestroy)(Event);
  Result (*hipMemcpyAsync)(void*, const void*, std::size_t, int kind, Stream);
  const char* (*hipGetErrorName)(Result);
  Result (*hipThreadExchangeStreamCaptureMode)(int* mode);  ///< nullptr in old versions
};

}  // namespace hip

/// The runtime of this machine, or that of a path that is given; nullptr when there is none with
/// all that is needed. The first call decides.
[[nodiscard]] const Driver* hip_driver(const char* path = nullptr) noexcept;

}  // namespace safetensors::device
