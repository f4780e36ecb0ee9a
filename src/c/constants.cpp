// The constants of the C interface, held to those of C++, and their names.
#include <cstddef>
#include <optional>
#include <string_view>

#include "c/guard.hpp"
#include "safetensors/dtype.hpp"
#include "safetensors/error.hpp"
#include "safetensors/safetensors.h"

namespace {

using safetensors::Dtype;
using safetensors::ErrorCode;

// find_package compares CMake's version, programs that of version.h.
static_assert(std::string_view(SAFETENSORS_VERSION) == SAFETENSORS_PROJECT_VERSION);

constexpr bool is(ErrorCode code, int number) { return static_cast<int>(code) == number; }
static_assert(is(ErrorCode::kInvalidHeaderUtf8, SAFETENSORS_INVALID_HEADER_UTF8));
static_assert(is(ErrorCode::kInvalidHeaderJson, SAFETENSORS_INVALID_HEADER_JSON));
static_assert(is(ErrorCode::kHeaderTooLarge, SAFETENSORS_HEADER_TOO_LARGE));
static_assert(is(ErrorCode::kHeaderTooSmall, SAFETENSORS_HEADER_TOO_SMALL));
static_assert(is(ErrorCode::kInvalidHeaderLength, SAFETENSORS_INVALID_HEADER_LENGTH));
static_assert(is(ErrorCode::kDuplicateName, SAFETENSORS_DUPLICATE_NAME));
static_assert(is(ErrorCode::kInvalidOffset, SAFETENSORS_INVALID_OFFSET));
static_assert(is(ErrorCode::kInvalidTensorInfo, SAFETENSORS_INVALID_TENSOR_INFO));
static_assert(is(ErrorCode::kIncompleteData, SAFETENSORS_INCOMPLETE_DATA));
static_assert(is(ErrorCode::kOverflow, SAFETENSORS_OVERFLOW));
static_assert(is(ErrorCode::kMisalignedSlice, SAFETENSORS_MISALIGNED_SLICE));
static_assert(is(ErrorCode::kTensorNotFound, SAFETENSORS_TENSOR_NOT_FOUND));
static_assert(is(ErrorCode::kTooManyIndices, SAFETENSORS_TOO_MANY_INDICES));
static_assert(is(ErrorCode::kIndexOutOfBounds, SAFETENSORS_INDEX_OUT_OF_BOUNDS));
static_assert(is(ErrorCode::kInvalidSlice, SAFETENSORS_INVALID_SLICE));
static_assert(is(ErrorCode::kInvalidArgument, SAFETENSORS_INVALID_ARGUMENT));
static_assert(is(ErrorCode::kUnsupportedDtype, SAFETENSORS_UNSUPPORTED_DTYPE));
static_assert(is(ErrorCode::kNotRegularFile, SAFETENSORS_NOT_REGULAR_FILE));
static_assert(is(ErrorCode::kIo, SAFETENSORS_IO));
static_assert(is(ErrorCode::kFileChanged, SAFETENSORS_FILE_CHANGED));
static_assert(is(ErrorCode::kOutOfMemory, SAFETENSORS_OUT_OF_MEMORY));
static_assert(is(ErrorCode::kDevice, SAFETENSORS_DEVICE));
static_assert(is(ErrorCode::kWrittenTwice, SAFETENSORS_WRITTEN_TWICE));
static_assert(is(ErrorCode::kMissingTensors, SAFETENSORS_MISSING_TENSORS));
static_assert(is(ErrorCode::kOutOfOrder, SAFETENSORS_OUT_OF_ORDER));
static_assert(is(ErrorCode::kWriterClosed, SAFETENSORS_WRITER_CLOSED));
static_assert(is(ErrorCode::kInvalidPatch, SAFETENSORS_INVALID_PATCH));
static_assert(is(ErrorCode::kWrongBase, SAFETENSORS_WRONG_BASE));
static_assert(is(ErrorCode::kPatchApplied, SAFETENSORS_PATCH_APPLIED));
static_assert(is(ErrorCode::kDamaged, SAFETENSORS_DAMAGED));
static_assert(is(ErrorCode::kNoModel, SAFETENSORS_NO_MODEL));
static_assert(is(ErrorCode::kSeveralModels, SAFETENSORS_SEVERAL_MODELS));
static_assert(is(ErrorCode::kIncompleteModel, SAFETENSORS_INCOMPLETE_MODEL));

// Dtype is in layout order, so a new type could change numbers: a table must translate them then.
constexpr bool is(Dtype dtype, int number) { return static_cast<int>(dtype) == number; }
static_assert(safetensors::kDtypeCount == 22);
static_assert(is(Dtype::kU64, SAFETENSORS_U64) && is(Dtype::kI64, SAFETENSORS_I64));
static_assert(is(Dtype::kF64, SAFETENSORS_F64) && is(Dtype::kC64, SAFETENSORS_C64));
static_assert(is(Dtype::kF32, SAFETENSORS_F32) && is(Dtype::kU32, SAFETENSORS_U32));
static_assert(is(Dtype::kI32, SAFETENSORS_I32) && is(Dtype::kBF16, SAFETENSORS_BF16));
static_assert(is(Dtype::kF16, SAFETENSORS_F16) && is(Dtype::kU16, SAFETENSORS_U16));
static_assert(is(Dtype::kI16, SAFETENSORS_I16));
static_assert(is(Dtype::kF8E5M2FNUZ, SAFETENSORS_F8_E5M2FNUZ));
static_assert(is(Dtype::kF8E4M3FNUZ, SAFETENSORS_F8_E4M3FNUZ));
static_assert(is(Dtype::kF8E8M0, SAFETENSORS_F8_E8M0));
static_assert(is(Dtype::kF8E4M3, SAFETENSORS_F8_E4M3));
static_assert(is(Dtype::kF8E5M2, SAFETENSORS_F8_E5M2));
static_assert(is(Dtype::kI8, SAFETENSORS_I8) && is(Dtype::kU8, SAFETENSORS_U8));
static_assert(is(Dtype::kF6E3M2, SAFETENSORS_F6_E3M2));
static_assert(is(Dtype::kF6E2M3, SAFETENSORS_F6_E2M3));
static_assert(is(Dtype::kF4, SAFETENSORS_F4) && is(Dtype::kBool, SAFETENSORS_BOOL));

bool is_dtype(std::int32_t number) {
  return number >= 0 && static_cast<std::size_t>(number) < safetensors::kDtypeCount;
}

}  // namespace

std::uint32_t safetensors_abi_version() { return SAFETENSORS_ABI_VERSION; }

const char* safetensors_version() { return SAFETENSORS_VERSION; }

const char* safetensors_code_name(std::int32_t code) {
  if (code == SAFETENSORS_INTERNAL) return "INTERNAL";
  if (code == SAFETENSORS_STOPPED) return "STOPPED";
  if (code == SAFETENSORS_OK) return "OK";
  if (code < 0 || code > SAFETENSORS_INCOMPLETE_MODEL) return nullptr;
  // The names are literals, which end with a NUL.
  return safetensors::name(static_cast<ErrorCode>(code)).data();
}

const char* safetensors_dtype_name(std::int32_t dtype) {
  // The names are literals, which end with a NUL.
  return is_dtype(dtype) ? safetensors::name(static_cast<Dtype>(dtype)).data() : nullptr;
}

std::int32_t safetensors_dtype_from_name(const char* name, std::size_t name_size) {
  std::optional<Dtype> dtype;
  (void)safetensors::c::guarded(nullptr, [&] {
    dtype = safetensors::parse_dtype(safetensors::c::text_of(name, name_size, "name"));
  });
  return dtype ? static_cast<std::int32_t>(*dtype) : -1;
}

std::uint32_t safetensors_dtype_bits(std::int32_t dtype) {
  return is_dtype(dtype) ? safetensors::bit_size(static_cast<Dtype>(dtype)) : 0;
}
