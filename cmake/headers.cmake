# safetensors_find_headers(NAME HEADER header SUBFOLDER folder GIT_REPOSITORY url GIT_TAG commit)
#
# Sets SAFETENSORS_NAME_INCLUDE_DIR to a folder with the headers of a library: those of the system, else
# those in third_party, which source archives of releases have (scripts/make_sdist.py), else fetched at
# the commit. They are built into the library and not seen by its users. Sets
# SAFETENSORS_NAME_COMMIT unless the headers are the system's.
option(SAFETENSORS_SYSTEM_HEADERS "Use the system's headers of RapidJSON and xxHash, if it has them" ON)

function(safetensors_find_headers name)
  cmake_parse_arguments(arg "" "HEADER;SUBFOLDER;GIT_REPOSITORY;GIT_TAG" "" ${ARGN})
  string(TOUPPER ${name} upper)
  set(variable SAFETENSORS_${upper}_INCLUDE_DIR)
  get_filename_component(bundled ${PROJECT_SOURCE_DIR}/third_party/${name}/${arg_SUBFOLDER} ABSOLUTE)
  set(doc "Folder that holds ${arg_HEADER}")
  if(SAFETENSORS_SYSTEM_HEADERS)
    find_path(${variable} ${arg_HEADER} DOC "${doc}")
  endif()
  find_path(${variable} ${arg_HEADER} DOC "${doc}" PATHS ${bundled}
            NO_DEFAULT_PATH NO_CMAKE_FIND_ROOT_PATH)
  if(NOT ${variable})
    safetensors_fetch(${name} ${arg_GIT_REPOSITORY} ${arg_GIT_TAG})
    set(bundled ${${name}_SOURCE_DIR}/${arg_SUBFOLDER})
    set(${variable} ${bundled} PARENT_SCOPE)
    set(${variable} ${bundled})
  endif()
  if(${variable} STREQUAL bundled)
    set(SAFETENSORS_${upper}_COMMIT ${arg_GIT_TAG} PARENT_SCOPE)
  endif()
endfunction()

# FetchContent's own error does not say what to install.
macro(safetensors_fetch name url commit)
  message(STATUS "${name} not found: fetching it")
  include(FetchContent)
  string(TOUPPER ${name} fetch_upper)
  if(NOT FETCHCONTENT_SOURCE_DIR_${fetch_upper} AND NOT IS_DIRECTORY ${FETCHCONTENT_BASE_DIR}/${name}-src)
    find_package(Git QUIET)
    set(fetch_status "not tried")
    if(GIT_EXECUTABLE AND NOT FETCHCONTENT_FULLY_DISCONNECTED)
      execute_process(
        COMMAND ${CMAKE_COMMAND} -E env GIT_TERMINAL_PROMPT=0 ${GIT_EXECUTABLE} ls-remote ${url} HEAD
        RESULT_VARIABLE fetch_status OUTPUT_QUIET ERROR_QUIET TIMEOUT 60)
    endif()
    if(NOT fetch_status EQUAL 0)
      message(FATAL_ERROR "The headers of ${name} are not installed and cannot be fetched from ${url}: install "
        "RapidJSON and xxHash (Debian: rapidjson-dev and libxxhash-dev; for the C++ tests, doctest-dev), or "
        "build from the source archive of a release, which has the headers of both.")
    endif()
  endif()
  FetchContent_Declare(${name}
    GIT_REPOSITORY ${url}
    GIT_TAG ${commit}
    GIT_SUBMODULES ""  # RapidJSON's tests have their framework as one
    SOURCE_SUBDIR none)  # headers only: its own build is not wanted
  FetchContent_MakeAvailable(${name})
endmacro()
