// Internal: for this library's tests and Python extension. Not installed, and not part of the
// interface.
#pragma once

namespace safetensors::detail {

/// Uses the library at this path as the CUDA driver from now on; an empty path selects the
/// machine's own again. Devices that were opened before keep their driver.
///
/// Thread safety: may be called by several threads at once.
void use_cuda_driver(const char* path);

/// Returns whether the environment variable SAFETENSORS_CUDA_ENGINE lets a program's own copies to
/// CUDA devices be made by this library: it is unset, 1 or on.
///
/// Throws: Error kInvalidArgument, naming the variable, unless it is one of these, 0 or off.
bool is_cuda_engine_wanted();

}  // namespace safetensors::detail
