// The kernels for every processor that the rest of the library runs on.
#define SAFETENSORS_VARIANT baseline_kernels
#include "dequant/kernels_all.hpp"

namespace safetensors::weights {

constinit const Kernels kBaselineKernels = baseline_kernels::make_kernels("baseline");

}  // namespace safetensors::weights
