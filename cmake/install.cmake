# What `cmake --install` puts in place: headers, the library, and files for find_package.
include(CMakePackageConfigHelpers)
set(SAFETENSORS_CMAKE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/safetensors)

install(TARGETS safetensors EXPORT safetensorsTargets
  COMPONENT development
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY include/safetensors TYPE INCLUDE COMPONENT development)
install(EXPORT safetensorsTargets NAMESPACE safetensors::
  DESTINATION ${SAFETENSORS_CMAKE_DIR} COMPONENT development)
configure_package_config_file(cmake/safetensorsConfig.cmake.in
  ${PROJECT_BINARY_DIR}/safetensorsConfig.cmake INSTALL_DESTINATION ${SAFETENSORS_CMAKE_DIR})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/safetensorsConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/safetensorsConfig.cmake
              ${PROJECT_BINARY_DIR}/safetensorsConfigVersion.cmake
  DESTINATION ${SAFETENSORS_CMAKE_DIR} COMPONENT development)
