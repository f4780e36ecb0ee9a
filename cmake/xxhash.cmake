# xxHash 0.8
safetensors_find_headers(xxhash
  HEADER xxhash.h
  SUBFOLDER ""
  GIT_REPOSITORY https://github.com/Cyan4973/xxHash.git
  GIT_TAG bbb27a5efb85b92a0486cf361a8635715a53f6ba)

# Without these options xxh3_avx2.cpp is empty. They need a compiler that knows the instructions, and
# can ask the processor for them.
if(NOT MSVC)
  set_source_files_properties(src/patch/kernels_baseline.cpp PROPERTIES COMPILE_OPTIONS -O3)
  include(CheckCXXSourceCompiles)
  set(xxh3_avx2_options -mavx2)
  # GCC bug 54412: on Windows it spills wide registers as if the stack were aligned for them.
  if(MINGW AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    list(APPEND xxh3_avx2_options -Wa,-muse-unaligned-vector-move)
  endif()
  list(JOIN xxh3_avx2_options " " CMAKE_REQUIRED_FLAGS)
  check_cxx_source_compiles("
    #include <immintrin.h>
    int main() {
      return __builtin_cpu_supports(\"avx2\") && _mm256_movemask_epi8(_mm256_setzero_si256()) == 1;
    }" SAFETENSORS_XXH3_HAS_AVX2)
  unset(CMAKE_REQUIRED_FLAGS)
  if(SAFETENSORS_XXH3_HAS_AVX2)
    set_source_files_properties(src/check/xxh3_avx2.cpp PROPERTIES
      COMPILE_OPTIONS "${xxh3_avx2_options}")
    set_source_files_properties(src/check/digest.cpp PROPERTIES
      COMPILE_DEFINITIONS SAFETENSORS_XXH3_AVX2)
    set_source_files_properties(src/patch/kernels_avx2.cpp PROPERTIES
      COMPILE_OPTIONS "-O3;${xxh3_avx2_options};-mbmi;-mpopcnt")
    set_source_files_properties(src/patch/kernels.cpp PROPERTIES
      COMPILE_DEFINITIONS SAFETENSORS_PATCH_AVX2)
  endif()
endif()
