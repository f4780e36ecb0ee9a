# The warnings that our own code is held to.
function(safetensors_warnings target)
  if(MSVC)
    target_compile_options(${target} PRIVATE /W4 $<$<BOOL:${SAFETENSORS_WERROR}>:/WX>)
  else()
    # A switch that lacks an enumerator never compiles.
    target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wshadow -Wconversion
                           -Werror=switch
                           $<$<BOOL:${SAFETENSORS_WERROR}>:-Werror>)
    # g++ 12 at -O3 sees overlaps in its own std::string (GCC bug 105651).
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
      target_compile_options(${target} PRIVATE -Wno-restrict)
    endif()
    # A unity build includes the sources, and g++ takes what they define for parts of headers.
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      target_compile_options(${target} PRIVATE
                             $<$<BOOL:$<TARGET_PROPERTY:UNITY_BUILD>>:-Wno-subobject-linkage>)
    endif()
  endif()
endfunction()
