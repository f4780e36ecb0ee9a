// XXH3 by xxHash's header, compiled into each file that includes this one as static functions, with
// the instructions that the file is compiled for and xxHash's default configuration. The layout of
// XXH3_state_t is the same for all of them.
#pragma once

#include <cstddef>

// What a project defines for all of its sources must not change the functions.
#undef NO_CLANG_BUILTIN
#undef XXH32_ENDJMP
#undef XXH3_INLINE_SECRET
#undef XXH3_NEON_LANES
#undef XXH3_STREAM_USE_STACK
#undef XXH_ACC_ALIGN
#undef XXH_CPU_LITTLE_ENDIAN
#undef XXH_DEBUGLEVEL
#undef XXH_DISPATCH_AVX2
#undef XXH_DISPATCH_AVX512
#undef XXH_DOXYGEN
#undef XXH_ENABLE_AUTOVECTORIZE
#undef XXH_EXPORT
#undef XXH_FORCE_ALIGN_CHECK
#undef XXH_FORCE_MEMORY_ACCESS
#undef XXH_HAS_INCLUDE
#undef XXH_IMPLEMENTATION
#undef XXH_IMPORT
#undef XXH_INLINE_ALL
#undef XXH_NAMESPACE
#undef XXH_NO_INLINE_HINTS
#undef XXH_NO_LONG_LONG
#undef XXH_NO_PREFETCH
#undef XXH_NO_STDLIB
#undef XXH_NO_STREAM
#undef XXH_NO_VZIP_HACK
#undef XXH_NO_XXH3
#undef XXH_OLD_NAMES
#undef XXH_PREFETCH_DIST
#undef XXH_PRIVATE_API
#undef XXH_SECRET_DEFAULT_SIZE
#undef XXH_SIZE_OPT
#undef XXH_STATIC_ASSERT
#undef XXH_STATIC_LINKING_ONLY
#undef XXH_TARGET_AVX2
#undef XXH_TARGET_AVX512
#undef XXH_TARGET_SSE2
#undef XXH_VECTOR
#undef XXH_VSX_BE
#undef XXH_X86DISPATCH

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace safetensors {

/// XXH3_128bits_update with AVX2. Requires: a processor that has AVX2.
void xxh3_update_avx2(XXH3_state_t& state, const void* bytes, std::size_t size) noexcept;

}  // namespace safetensors
