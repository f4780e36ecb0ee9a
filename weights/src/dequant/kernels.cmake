# How the inner loops of dequantising are compiled: for speed in every build; without fused
# multiplication and addition, so that all machines give the same bits; and such that a compiler may
# compute both sides of a choice, whose exceptions nobody looks at.
include(CheckCXXSourceCompiles)
set(kernel_options "")
if(NOT MSVC)
  set(kernel_options -O3 -ffp-contract=off -fno-trapping-math)
endif()
set(kernel_folder ${CMAKE_CURRENT_LIST_DIR})
set_source_files_properties(${kernel_folder}/kernels_baseline.cpp
  ${kernel_folder}/distant_rows.cpp ${kernel_folder}/grouped.cpp
  PROPERTIES
  COMPILE_OPTIONS "${kernel_options}")

# Without these options kernels_avx2.cpp is empty. They need a compiler that knows the instructions,
# and can ask the processor for them.
if(NOT MSVC)
  set(avx2_options -mavx2 -mf16c)
  # GCC bug 54412: on Windows it spills wide registers as if the stack were aligned for them.
  if(MINGW AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    list(APPEND avx2_options -Wa,-muse-unaligned-vector-move)
  endif()
  list(JOIN avx2_options " " CMAKE_REQUIRED_FLAGS)
  check_cxx_source_compiles("
    #include <immintrin.h>
    int main() {
      return __builtin_cpu_supports(\"avx2\") && __builtin_cpu_supports(\"f16c\") &&
             _cvtsh_ss(0) > 1.0F;
    }" SAFETENSORS_HAS_AVX2)
  unset(CMAKE_REQUIRED_FLAGS)
  if(SAFETENSORS_HAS_AVX2)
    set_source_files_properties(${kernel_folder}/kernels_avx2.cpp PROPERTIES
      COMPILE_OPTIONS "${kernel_options};${avx2_options}")
    set_source_files_properties(${kernel_folder}/kernels.cpp PROPERTIES
      COMPILE_DEFINITIONS SAFETENSORS_AVX2_KERNELS)
  endif()
endif()
