#include "patch/kernels.hpp"

namespace safetensors::patch {
namespace {

struct UsableKernels {
  std::array<const Kernels*, 2> list{};
  std::size_t count = 0;
};

UsableKernels find_usable_kernels() noexcept {
  UsableKernels usable;
  usable.list[usable.count++] = &kBaselineKernels;
#if defined(SAFETENSORS_PATCH_AVX2)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") &&
      __builtin_cpu_supports("popcnt")) {
    usable.list[usable.count++] = &kAvx2Kernels;
  }
#endif
  return usable;
}

// Found when the library is loaded: a child that forks during the first use of a local static would
// wait for ever for the thread that was initialising it.
const UsableKernels kUsable = find_usable_kernels();

}  // namespace

std::span<const Kernels* const> usable_kernels() noexcept {
  return std::span(kUsable.list).first(kUsable.count);
}

}  // namespace safetensors::patch
