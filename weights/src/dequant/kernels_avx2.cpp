// The kernels for x86 processors with AVX2 and F16C. kernels.cmake compiles this file with both
// options if the compiler knows them.
#if defined(__AVX2__) && defined(__F16C__)

#define SAFETENSORS_VARIANT avx2_kernels
#include "dequant/kernels_all.hpp"

namespace safetensors::weights {

constinit const Kernels kAvx2Kernels = avx2_kernels::make_kernels("avx2");

}  // namespace safetensors::weights

#endif
