// The kernels, for x86 processors with AVX2 and F16C. Compiled with both switched on, where the
// compiler has them (kernels.cmake).
#if defined(__AVX2__) && defined(__F16C__)

#define SAFETENSORS_VARIANT avx2_kernels
#include "weights/dequant/kernels_all.hpp"

namespace safetensors::weights {

constinit const Kernels kAvx2Kernels = avx2_kernels::make_kernels("avx2");

}  // namespace safetensors::weights

#endif
