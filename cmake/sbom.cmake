# The wheel's list of the libraries that are compiled into it: a CycloneDX file in the folder that PEP 770
# gives. It has no date and no serial number, so that equal builds give equal wheels.
set(components "")
set(references "")

macro(safetensors_component name version licence purl)
  list(APPEND components "
    {\"type\": \"library\", \"bom-ref\": \"${name}\", \"name\": \"${name}\", \"version\": \"${version}\",
     \"licenses\": [{\"expression\": \"${licence}\"}], \"purl\": \"${purl}\"}")
  list(APPEND references "\"${name}\"")
endmacro()

# safetensors_header_component(NAME HEADER MACROS LICENCE REPOSITORY): with the version that macros of the
# header give, and with the commit if the headers are not the system's.
macro(safetensors_header_component name header macros licence repository)
  string(TOUPPER ${name} upper)
  file(STRINGS ${SAFETENSORS_${upper}_INCLUDE_DIR}/${header} version REGEX "^ *# *define +${macros} +[0-9]+")
  list(TRANSFORM version REPLACE "^ *# *define +[A-Z_]+ +([0-9]+).*" "\\1")
  list(JOIN version . version)
  string(TOLOWER pkg:generic/${name}@${version} purl)
  if(SAFETENSORS_${upper}_COMMIT)
    set(purl pkg:github/${repository}@${SAFETENSORS_${upper}_COMMIT})
  endif()
  safetensors_component(${name} ${version} ${licence} ${purl})
endmacro()

safetensors_header_component(RapidJSON rapidjson/rapidjson.h "RAPIDJSON_(MAJOR|MINOR|PATCH)_VERSION"
  MIT tencent/rapidjson)
safetensors_header_component(xxHash xxhash.h "XXH_VERSION_(MAJOR|MINOR|RELEASE)"
  BSD-2-Clause cyan4973/xxhash)
safetensors_component(pybind11 "${pybind11_VERSION}" BSD-3-Clause pkg:pypi/pybind11@${pybind11_VERSION})
# The compiler's C++ library is compiled in where it is linked statically.
if(SAFETENSORS_HAS_STATIC_LIBSTDCXX AND NOT SAFETENSORS_SANITIZE)
  include(CheckCXXSymbolExists)
  check_cxx_symbol_exists(_LIBCPP_VERSION version SAFETENSORS_HAS_LIBCXX)
  set(version ${CMAKE_CXX_COMPILER_VERSION})
  if(SAFETENSORS_HAS_LIBCXX)
    safetensors_component(libc++ ${version} "Apache-2.0 WITH LLVM-exception" pkg:generic/libc%2B%2B@${version})
  elseif(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    safetensors_component(libstdc++ ${version} "GPL-3.0-or-later WITH GCC-exception-3.1"
      pkg:generic/libstdc%2B%2B@${version})
  endif()
endif()
list(JOIN components , components)
list(JOIN references ", " references)
configure_file(${PROJECT_SOURCE_DIR}/cmake/sbom.cdx.json.in ${PROJECT_BINARY_DIR}/safetensors.cdx.json @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/safetensors.cdx.json
  DESTINATION ${SKBUILD_METADATA_DIR}/sboms COMPONENT python)
