# The warnings that our own code is held to.
function(safetensors_warnings target)
  if(MSVC)
    target_compile_options(${target} PRIVATE /W4 $<$<BOOL:${SAFETENSORS_WERROR}>:/WX>)
  else()
    target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wshadow -Wconversion
                           $<$<BOOL:${SAFETENSORS_WERROR}>:-Werror>)
  endif()
endfunction()
