# Linux by Zig's clang and libc++: modules for the wheels, which scripts/wheels.sh makes.
# From the environment: ZIG_CXX, a program that calls `zig c++` for the target; ZIG_AR and ZIG_RANLIB,
# programs that call `zig ar` and `zig ranlib`; ZIG_PROCESSOR, the target's processor; ZIG_LIBRARIES,
# files to link with, see below.
# Give RapidJSON by -DSAFETENSORS_RAPIDJSON_INCLUDE_DIR and xxHash by
# -DSAFETENSORS_XXHASH_INCLUDE_DIR: folders that hold nothing else.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR $ENV{ZIG_PROCESSOR})
set(CMAKE_CXX_COMPILER $ENV{ZIG_CXX})
# Of the same LLVM as the compiler: the host's, if older, cannot read what -flto compiles to, and
# CMake would build the core without it.
set(CMAKE_AR $ENV{ZIG_AR})
set(CMAKE_RANLIB $ENV{ZIG_RANLIB})
set(CMAKE_CXX_COMPILER_AR $ENV{ZIG_AR})
set(CMAKE_CXX_COMPILER_RANLIB $ENV{ZIG_RANLIB})
set(CMAKE_CXX_FLAGS_INIT "-ffunction-sections -fdata-sections")
# -s, because the host's strip need not know the target. The files are
# - libgcc_s.so.1. To end a thread, glibc unwinds its stack with this library, which calls
#   the C++ runtime of the module. That must use the same unwinder and not Zig's own.
# - for x86-64, libgcc.a, because Zig lacks what __builtin_cpu_supports needs.
set(CMAKE_MODULE_LINKER_FLAGS_INIT "-s $ENV{ZIG_LIBRARIES}")
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
# ccache does not know clang's precompiled headers without more options.
set(CMAKE_DISABLE_PRECOMPILE_HEADERS ON)
# Zig compiles its C++ library anew for each set of options that a program is linked with.
set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
# So CMake cannot try options of the linker. Zig links libc++ statically, and with -z relro and -z now.
set(SAFETENSORS_HAS_STATIC_LIBSTDCXX ON)
