# A header of ours that includes a library of headers must give the same code whatever macros of that
# library a project defines.
#
#   cmake -DCOMPILER=c++ -DHEADER=src/base/x.hpp -DSOURCES=src -DFOLDER=FOLDER -DLIBRARY="FOLDER/*.h" -DPREFIX=X_
#         -P check_configuration.cmake
#
# The macros are those in the conditions of the files LIBRARY whose names begin with PREFIX.
cmake_policy(VERSION 3.22)
set(names "")
file(GLOB_RECURSE files ${LIBRARY})
foreach(file IN LISTS files)
  file(STRINGS ${file} conditions REGEX "^ *# *(el)?if|^ *(&&|[|][|])")
  foreach(line IN LISTS conditions)
    string(REGEX MATCHALL "${PREFIX}[A-Za-z0-9_]+" found "${line}")
    list(APPEND names ${found})
  endforeach()
endforeach()
list(REMOVE_DUPLICATES names)
# Include guards end with an underscore, or with a long number.
list(FILTER names EXCLUDE REGEX "_$|_[0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f]+$")
list(LENGTH names count)
if(count LESS 20)
  message(FATAL_ERROR "only ${count} macros begin with ${PREFIX}: ${names}")
endif()

set(options -I${SOURCES} -I${FOLDER})

# Sets `result` to the preprocessed header, after the macros in ARGN are defined; to an error's text if
# it does not compile.
function(preprocess result)
  execute_process(
    COMMAND ${COMPILER} -std=c++20 -w -E -P -x c++ ${options} ${ARGN} ${HEADER}
    OUTPUT_VARIABLE text ERROR_VARIABLE error RESULT_VARIABLE status)
  if(NOT status EQUAL 0)
    set(text "does not compile: ${error}")
  endif()
  set(${result} "${text}" PARENT_SCOPE)
endfunction()

preprocess(expected)
if(expected MATCHES "^does not compile")
  message(FATAL_ERROR "${HEADER} ${expected}")
endif()
set(wrong "")
foreach(value 1 other)
  list(TRANSFORM names REPLACE "(.+)" "-D\\1=${value}" OUTPUT_VARIABLE all)
  preprocess(text ${all})
  if(NOT text STREQUAL expected)  # which of them?
    foreach(option IN LISTS all)
      preprocess(text ${option})
      if(NOT text STREQUAL expected)
        list(APPEND wrong ${option})
      endif()
    endforeach()
    if(NOT wrong)
      set(wrong "all together with the value ${value}")
    endif()
  endif()
endforeach()
if(wrong)
  list(JOIN wrong ", " wrong)
  message(FATAL_ERROR "${HEADER} must undefine these macros, which change what it gives: ${wrong}")
endif()
message(STATUS "none of ${count} macros changes ${HEADER}")
