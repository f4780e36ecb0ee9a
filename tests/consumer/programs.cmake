# The programs, over safetensors::safetensors, wherever that came from.
enable_testing()
set(CMAKE_C_STANDARD 99)
set(CMAKE_C_EXTENSIONS OFF)

# A plug-in: a shared object around the library, static or not. That it links is the test.
function(consumer_plugin name source)
  add_library(${name} MODULE ${source})
  target_link_libraries(${name} PRIVATE ${ARGN})
endfunction()

function(consumer_program name source)
  add_executable(${name} ${source})
  target_link_libraries(${name} PRIVATE safetensors::safetensors)
  target_compile_options(${name} PRIVATE -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror)
  add_test(NAME ${name} COMMAND ${name} ${CMAKE_CURRENT_BINARY_DIR}/${name}.safetensors)
endfunction()

# The functions in docs/cpp.md, which run.sh puts here: they need only compile.
function(consumer_compiles name source)
  add_library(${name} OBJECT ${source})
  target_link_libraries(${name} PRIVATE safetensors::safetensors)
endfunction()

get_property(languages GLOBAL PROPERTY ENABLED_LANGUAGES)
if("C" IN_LIST languages)
  consumer_program(consumer_c main.c)
  consumer_compiles(docs_c docs.c)
  if(TARGET safetensors::weights)  # whose headers have a folder of their own, unless installed
    target_link_libraries(docs_c PRIVATE safetensors::weights)
  endif()
endif()
if("CXX" IN_LIST languages)
  consumer_program(consumer main.cpp)
  consumer_plugin(plugin main.cpp safetensors::safetensors)
  consumer_plugin(plugin_weights weights.cpp safetensors::weights)
  consumer_compiles(docs_cpp docs.cpp)

  configure_file(main.c ${CMAKE_CURRENT_BINARY_DIR}/c_as_cxx.cpp COPYONLY)
  consumer_program(consumer_c_as_cxx ${CMAKE_CURRENT_BINARY_DIR}/c_as_cxx.cpp)

  # The weight layer, and what docs/weights.md shows of it.
  add_executable(consumer_weights weights.cpp)
  target_link_libraries(consumer_weights PRIVATE safetensors::weights)
  consumer_compiles(docs_weights weights_docs.cpp)
  target_link_libraries(docs_weights PRIVATE safetensors::weights)
  add_test(NAME consumer_weights COMMAND consumer_weights consumer.safetensors)
  set_tests_properties(consumer_weights PROPERTIES DEPENDS consumer)

  # A program that configures RapidJSON for itself, if the system has it.
  find_path(CONSUMER_RAPIDJSON rapidjson/reader.h)
  if(CONSUMER_RAPIDJSON)
    add_executable(own_rapidjson own_rapidjson.cpp)
    target_link_libraries(own_rapidjson PRIVATE safetensors::weights)
    target_include_directories(own_rapidjson SYSTEM PRIVATE ${CONSUMER_RAPIDJSON})
    target_compile_definitions(own_rapidjson PRIVATE CONSUMER_WEIGHTS)
    add_test(NAME own_rapidjson COMMAND own_rapidjson own_rapidjson)
  endif()

  # The program in README.md, which run.sh puts here: it lists model.safetensors.
  consumer_program(readme readme.cpp)
  add_test(NAME model COMMAND ${CMAKE_COMMAND} -E copy consumer.safetensors model.safetensors)
  set_tests_properties(model PROPERTIES DEPENDS consumer)
  set_tests_properties(readme PROPERTIES DEPENDS model PASS_REGULAR_EXPRESSION
    ": [0-9]+ axes, [0-9]+ bytes")
endif()
