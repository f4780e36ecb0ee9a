// Internal: for this library's tests and Python extension. Not installed, and not part of the
// interface.
#pragma once

namespace safetensors::detail {

/// Uses the library at this path as the CUDA driver from now on; an empty path selects the
/// machine's own again. Devices that were opened before keep their driver.
///
/// Thread safety: may be called by several threads at once.
void use_cuda_driver(const char* path);

}  // namespace safetensors::detail
