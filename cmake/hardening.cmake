# safetensors_hardening(TARGET): defences against faults of memory, in releases for Linux. A compiler or
# linker that lacks one goes without it. Other builds have sanitizers, or are not optimised, which
# _FORTIFY_SOURCE needs.
include(CheckCXXCompilerFlag)
include(CheckLinkerFlag)
set(hardening "")
set(hardening_link "")
if(CMAKE_SYSTEM_NAME STREQUAL "Linux" AND CMAKE_BUILD_TYPE MATCHES "^(Release|RelWithDebInfo)$"
   AND NOT SAFETENSORS_SANITIZE)
  # -U: a distribution's own flags may name another level.
  set(hardening -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3)
  foreach(flag stack-protector-strong stack-clash-protection cf-protection)
    check_cxx_compiler_flag(-f${flag} SAFETENSORS_HAS_${flag})
    if(SAFETENSORS_HAS_${flag})
      list(APPEND hardening -f${flag})
    endif()
  endforeach()
  foreach(flag relro now)
    check_linker_flag(CXX LINKER:-z,${flag} SAFETENSORS_HAS_z_${flag})
    if(SAFETENSORS_HAS_z_${flag})
      list(APPEND hardening_link LINKER:-z,${flag})
    endif()
  endforeach()
endif()

function(safetensors_hardening target)
  target_compile_options(${target} PRIVATE ${hardening})
  get_target_property(type ${target} TYPE)
  if(NOT type STREQUAL "OBJECT_LIBRARY")
    target_link_options(${target} PRIVATE ${hardening_link})
  endif()
endfunction()
