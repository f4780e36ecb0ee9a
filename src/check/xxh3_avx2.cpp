// XXH3 for x86 processors with AVX2. xxhash.cmake compiles this file with the option if the
// compiler knows it.
#if defined(__AVX2__)

#include "base/xxh3.hpp"

namespace safetensors {

void xxh3_update_avx2(XXH3_state_t& state, const void* bytes, std::size_t size) noexcept {
  (void)XXH3_128bits_update(&state, bytes, size);
}

}  // namespace safetensors

#endif
