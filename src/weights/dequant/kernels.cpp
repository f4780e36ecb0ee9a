#include "weights/dequant/kernels.hpp"

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
  // The operating system has its say in this as well: it must save the wide registers.
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) {
    usable.list[usable.count++] = &kAvx2Kernels;
  }
#endif
  return usable;
}

const Usable& usable() noexcept {
  static const Usable found = find_usable();
  return found;
}

}  // namespace

std::span<const Kernels* const> usable_kernels() noexcept {
  const Usable& found = usable();
  return std::span(found.list).first(found.count);
}

const Kernels& best_kernels() noexcept { return *usable_kernels().back(); }

}  // namespace safetensors::weights
