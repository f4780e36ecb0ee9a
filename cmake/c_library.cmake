# libsafetensors_c: the C interface alone, with all that it needs inside and everything else hidden. Its
# name has the version of the C ABI, so that C programs do not depend on the version of the C++ interface.
file(STRINGS include/safetensors/version.h abi REGEX "define SAFETENSORS_ABI_VERSION")
string(REGEX REPLACE ".* " "" SAFETENSORS_ABI_VERSION "${abi}")

# safetensors_add_to_c(TARGET): adds the objects of a library, and its C functions, which are its sources
# in src/c. A static library has those compiled to be hidden, so they are compiled again.
function(safetensors_add_to_c target)
  if(BUILD_SHARED_LIBS)
    target_sources(safetensors_c PRIVATE $<TARGET_OBJECTS:${target}>)
    return()
  endif()
  get_target_property(sources ${target} SOURCES)
  list(FILTER sources INCLUDE REGEX "^src/c/")
  set_source_files_properties(${sources} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  target_sources(safetensors_c PRIVATE ${sources}
    "$<FILTER:$<TARGET_OBJECTS:${target}>,EXCLUDE,/${target}[.]dir/([.]/)?src/c/>")
endfunction()

# safetensors_export_from_c(MAP): exports the functions that a version script names. A node of a script
# never changes after its release: functions that are added later get a node of their own, which inherits
# the one before.
function(safetensors_export_from_c map)
  if(UNIX AND NOT APPLE)
    target_link_options(safetensors_c PRIVATE LINKER:--version-script=${map})
    set_property(TARGET safetensors_c APPEND PROPERTY LINK_DEPENDS ${map})
  endif()
endfunction()

add_library(safetensors_c SHARED)
add_library(safetensors::c ALIAS safetensors_c)
safetensors_add_to_c(safetensors)
safetensors_export_from_c(${PROJECT_SOURCE_DIR}/cmake/exports_c.map)
target_compile_features(safetensors_c PRIVATE cxx_std_20)
target_include_directories(safetensors_c
  PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
         $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>
  PRIVATE src)
target_link_libraries(safetensors_c PRIVATE Threads::Threads ${CMAKE_DL_LIBS})
target_compile_definitions(safetensors_c PRIVATE SAFETENSORS_BUILDING _FILE_OFFSET_BITS=64)
set_target_properties(safetensors_c PROPERTIES
  EXPORT_NAME c
  LINKER_LANGUAGE CXX
  CXX_VISIBILITY_PRESET hidden
  VISIBILITY_INLINES_HIDDEN ON
  VERSION ${SAFETENSORS_ABI_VERSION}.${PROJECT_VERSION}
  SOVERSION ${SAFETENSORS_ABI_VERSION})
safetensors_warnings(safetensors_c)
safetensors_hardening(safetensors_c)
