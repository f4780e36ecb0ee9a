# RapidJSON's headers: those of the system, else fetched at a pinned commit. They are built into
# the library and not seen by its users.
find_path(SAFETENSORS_RAPIDJSON_INCLUDE_DIR rapidjson/reader.h
          DOC "Folder that holds rapidjson/reader.h")
if(NOT SAFETENSORS_RAPIDJSON_INCLUDE_DIR)
  message(STATUS "RapidJSON not found (Debian: rapidjson-dev): fetching it")
  include(FetchContent)
  FetchContent_Declare(rapidjson
    GIT_REPOSITORY https://github.com/Tencent/rapidjson.git
    GIT_TAG 24b5e7a8b27f42fa16b96fc70aade9106cf7102f
    GIT_SUBMODULES ""  # its tests' framework would be fetched too
    SOURCE_SUBDIR none)  # headers only: its own build is not wanted
  FetchContent_MakeAvailable(rapidjson)
  set(SAFETENSORS_RAPIDJSON_INCLUDE_DIR ${rapidjson_SOURCE_DIR}/include)
endif()
