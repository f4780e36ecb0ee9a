// XXH3 by xxHash's header, compiled into each file that includes this one, with the instructions
// that the file is compiled for. The layout of XXH3_state_t is the same for all of them.
#pragma once

#include <cstddef>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace safetensors {

/// XXH3_128bits_update with AVX2. Requires: a processor that has AVX2.
void xxh3_update_avx2(XXH3_state_t& state, const void* bytes, std::size_t size) noexcept;

}  // namespace safetensors
