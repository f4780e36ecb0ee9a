// The kernels for x86 processors with AVX2. xxhash.cmake compiles this file with the options if the
// compiler knows them.
#if defined(__AVX2__) && defined(__BMI__) && defined(__POPCNT__)

#define SAFETENSORS_VARIANT avx2_kernels
#include "patch/kernels_all.hpp"

namespace safetensors::patch {

constinit const Kernels kAvx2Kernels = avx2_kernels::make_kernels("avx2");

}  // namespace safetensors::patch

#endif
