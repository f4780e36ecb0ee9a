#include "dequant/kernels.hpp"

#include <array>

namespace safetensors::weights {
namespace {

struct Usable {
  std::array<const Kernels*, 2> list{};
  std::size_t count = 0;
};

Usable find_usable() noexcept {
  Usable usable;
  usable.list[usable.count++] = &kBaselineKernels;
#if defined(SAFETENSORS_AVX2_KERNELS)
  // Also asks whether the operating system saves the wide registers.
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) {
    usable.list[usable.count++] = &kAvx2Kernels;
  }
#endif
  return usable;
}

// Found when the library is loaded: a child that forks during the first use of a local static would
// wait for ever for the thread that was initialising it.
const Usable usable = find_usable();

}  // namespace

std::span<const Kernels* const> usable_kernels() noexcept {
  return std::span(usable.list).first(usable.count);
}

const Kernels& best_kernels() noexcept { return *usable_kernels().back(); }

}  // namespace safetensors::weights
