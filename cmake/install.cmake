# What `cmake --install` puts in place: headers, the library, and files for find_package and
# pkg-config. Components: runtime (a shared library) and development (all the rest). Static and
# shared may be installed into one prefix, by two builds.
include(CMakePackageConfigHelpers)
set(SAFETENSORS_CMAKE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/safetensors)
if(BUILD_SHARED_LIBS)
  set(SAFETENSORS_KIND shared)
else()
  set(SAFETENSORS_KIND static)
endif()

# install_library(TARGET NAME): the targets of NAME-targets.cmake.
function(install_library target name)
  install(TARGETS ${target} EXPORT ${name}
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
      COMPONENT runtime NAMELINK_COMPONENT development
    RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT runtime)
  install(EXPORT ${name} NAMESPACE safetensors:: FILE ${name}-targets.cmake
    DESTINATION ${SAFETENSORS_CMAKE_DIR} COMPONENT development)
endfunction()

install_library(safetensors safetensors-${SAFETENSORS_KIND})
if(SAFETENSORS_BUILD_C)
  install_library(safetensors_c safetensors-c)
endif()
install(DIRECTORY include/safetensors TYPE INCLUDE COMPONENT development PATTERN detail EXCLUDE)

# For a C program the C++ run-time library is a library like others.
foreach(name stdc++ c++)
  if(name IN_LIST CMAKE_CXX_IMPLICIT_LINK_LIBRARIES)
    set(SAFETENSORS_CXX_LIBRARY ${name})
    break()
  endif()
endforeach()

configure_package_config_file(cmake/safetensorsConfig.cmake.in
  ${PROJECT_BINARY_DIR}/safetensorsConfig.cmake INSTALL_DESTINATION ${SAFETENSORS_CMAKE_DIR})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/safetensorsConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/safetensorsConfig.cmake
              ${PROJECT_BINARY_DIR}/safetensorsConfigVersion.cmake
  DESTINATION ${SAFETENSORS_CMAKE_DIR} COMPONENT development)

# The prefix is relative to the .pc file: `cmake --install --prefix` may move everything. Folders
# that were given as absolute paths stay where they are.
if(IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}")
  set(SAFETENSORS_PC_PREFIX ${CMAKE_INSTALL_PREFIX})
else()
  file(RELATIVE_PATH SAFETENSORS_PC_PREFIX /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
  string(REGEX REPLACE "/$" "" SAFETENSORS_PC_PREFIX "\${pcfiledir}/${SAFETENSORS_PC_PREFIX}")
endif()
foreach(name LIBDIR INCLUDEDIR)
  set(SAFETENSORS_PC_${name} "\${prefix}")
  cmake_path(APPEND SAFETENSORS_PC_${name} "${CMAKE_INSTALL_${name}}")
endforeach()
set(SAFETENSORS_PC_CFLAGS "")
if(NOT BUILD_SHARED_LIBS)
  set(SAFETENSORS_PC_CFLAGS " -DSAFETENSORS_STATIC")
endif()
set(SAFETENSORS_PC_PRIVATE -pthread)
foreach(name IN LISTS CMAKE_DL_LIBS)
  string(APPEND SAFETENSORS_PC_PRIVATE " -l${name}")
endforeach()
if(SAFETENSORS_CXX_LIBRARY)
  string(PREPEND SAFETENSORS_PC_PRIVATE "-l${SAFETENSORS_CXX_LIBRARY} ")
endif()
# install_pkgconfig(NAME): NAME.pc, of cmake/NAME.pc.in in the caller's project.
function(install_pkgconfig name)
  configure_file(cmake/${name}.pc.in ${PROJECT_BINARY_DIR}/${name}.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/${name}.pc
    DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT development)
endfunction()
install_pkgconfig(safetensors)
if(SAFETENSORS_BUILD_C)
  install_pkgconfig(safetensors-c)
endif()
