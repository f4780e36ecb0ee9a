// RapidJSON, compiled in a namespace of our own and with its default configuration.
//
// A static library contains RapidJSON's functions as weak symbols, and the linker keeps one of all
// functions with the same name. In namespace `rapidjson` this could be that of a program which
// configures RapidJSON otherwise, for example to throw an exception of its own.
#pragma once

#if defined(RAPIDJSON_RAPIDJSON_H_)
#error "RapidJSON was included before base/rapidjson.hpp, which chooses its namespace"
#endif

// What a project defines for all of its sources must not change the reader.
#undef RAPIDJSON_48BITPOINTER_OPTIMIZATION
#undef RAPIDJSON_64BIT
#undef RAPIDJSON_ALIGN
#undef RAPIDJSON_ALLOCATOR_DEFAULT_CHUNK_CAPACITY
#undef RAPIDJSON_ASSERT
#undef RAPIDJSON_ASSERT_THROWS
#undef RAPIDJSON_CPLUSPLUS
#undef RAPIDJSON_DELETE
#undef RAPIDJSON_DOXYGEN_RUNNING
#undef RAPIDJSON_ENDIAN
#undef RAPIDJSON_ERROR_CHARTYPE
#undef RAPIDJSON_ERROR_STRING
#undef RAPIDJSON_FORCEINLINE
#undef RAPIDJSON_FREE
#undef RAPIDJSON_HAS_CXX11
#undef RAPIDJSON_HAS_CXX11_NOEXCEPT
#undef RAPIDJSON_HAS_CXX11_RANGE_FOR
#undef RAPIDJSON_HAS_CXX11_RVALUE_REFS
#undef RAPIDJSON_HAS_CXX11_TYPETRAITS
#undef RAPIDJSON_HAS_CXX17
#undef RAPIDJSON_HAS_STDSTRING
#undef RAPIDJSON_LIKELY
#undef RAPIDJSON_MALLOC
#undef RAPIDJSON_NAMESPACE
#undef RAPIDJSON_NAMESPACE_BEGIN
#undef RAPIDJSON_NAMESPACE_END
#undef RAPIDJSON_NEON
#undef RAPIDJSON_NEW
#undef RAPIDJSON_NOEXCEPT
#undef RAPIDJSON_NOEXCEPT_ASSERT
#undef RAPIDJSON_NO_INT64DEFINE
#undef RAPIDJSON_NO_SIZETYPEDEFINE
#undef RAPIDJSON_PARSE_DEFAULT_FLAGS
#undef RAPIDJSON_PARSE_ERROR
#undef RAPIDJSON_PARSE_ERROR_EARLY_RETURN
#undef RAPIDJSON_PARSE_ERROR_NORETURN
#undef RAPIDJSON_REALLOC
#undef RAPIDJSON_SIMD
#undef RAPIDJSON_SSE2
#undef RAPIDJSON_SSE42
#undef RAPIDJSON_STATIC_ASSERT
#undef RAPIDJSON_UINT64_C2
#undef RAPIDJSON_UNLIKELY
#undef RAPIDJSON_USE_MEMBERSMAP

#define RAPIDJSON_NAMESPACE safetensors_rapidjson

#include <rapidjson/error/en.h>
#include <rapidjson/memorystream.h>
#include <rapidjson/reader.h>

namespace safetensors {

namespace rapidjson = ::safetensors_rapidjson;

}  // namespace safetensors
