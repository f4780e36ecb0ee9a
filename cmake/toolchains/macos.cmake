# macOS on 64-bit Arm, by Zig's clang and libc++: shows that the sources compile and link there.
# ZIG in the environment is the path of the program zig.
# Give RapidJSON by -DSAFETENSORS_RAPIDJSON_INCLUDE_DIR and xxHash by
# -DSAFETENSORS_XXHASH_INCLUDE_DIR: folders that hold nothing else.
set(CMAKE_SYSTEM_NAME Darwin)
set(CMAKE_SYSTEM_PROCESSOR arm64)
set(CMAKE_CXX_COMPILER $ENV{ZIG} c++ -target aarch64-macos)
set(CMAKE_CXX_ARCHIVE_CREATE "$ENV{ZIG} ar qc <TARGET> <LINK_FLAGS> <OBJECTS>")
set(CMAKE_CXX_ARCHIVE_FINISH "$ENV{ZIG} ranlib <TARGET>")
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
