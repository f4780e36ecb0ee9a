#include "safetensors/weights/error.hpp"

#include <utility>

#include "base/text.hpp"
#include "weights/fail.hpp"

namespace safetensors::weights {
namespace {

/// What the base says of it.
ErrorCode roughly(Errc code) noexcept {
  switch (code) {
    case Errc::io:
    case Errc::missing_shard:
      return ErrorCode::kIo;
    case Errc::truncated:
      return ErrorCode::kIncompleteData;
    case Errc::overflow:
      return ErrorCode::kOverflow;
    case Errc::duplicate:
      return ErrorCode::kDuplicateName;
    case Errc::bad_offset:
    case Errc::alignment:
      return ErrorCode::kInvalidOffset;
    case Errc::limit:
      return ErrorCode::kHeaderTooLarge;
    case Errc::json:
    case Errc::config:
    case Errc::bad_magic:
    case Errc::version:
      return ErrorCode::kInvalidHeaderJson;
    case Errc::bad_name:
    case Errc::bad_shape:
    case Errc::quant_mismatch:
      return ErrorCode::kInvalidTensorInfo;
    case Errc::bad_type:
    case Errc::unsupported:
      return ErrorCode::kUnsupportedDtype;
    case Errc::unknown_tensor:
      return ErrorCode::kTensorNotFound;
    case Errc::mixed_types:
    case Errc::f16_overflow:
      break;
  }
  return ErrorCode::kInvalidArgument;
}

/// What the weight layer says of the core's errors.
Errc closely(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::kDuplicateName:
      return Errc::duplicate;
    case ErrorCode::kInvalidHeaderUtf8:
    case ErrorCode::kInvalidHeaderJson:
      return Errc::json;
    case ErrorCode::kHeaderTooLarge:
      return Errc::limit;
    case ErrorCode::kHeaderTooSmall:
    case ErrorCode::kInvalidHeaderLength:
    case ErrorCode::kIncompleteData:
      return Errc::truncated;
    case ErrorCode::kInvalidOffset:
      return Errc::bad_offset;
    case ErrorCode::kInvalidTensorInfo:
    case ErrorCode::kMisalignedSlice:
      return Errc::bad_shape;
    case ErrorCode::kOverflow:
      return Errc::overflow;
    case ErrorCode::kTensorNotFound:
      return Errc::unknown_tensor;
    case ErrorCode::kUnsupportedDtype:
      return Errc::bad_type;
    case ErrorCode::kIo:
    case ErrorCode::kFileChanged:
    case ErrorCode::kNotRegularFile:
    case ErrorCode::kOutOfMemory:
    case ErrorCode::kDevice:
      return Errc::io;
    case ErrorCode::kTooManyIndices:
    case ErrorCode::kIndexOutOfBounds:
    case ErrorCode::kInvalidSlice:
    case ErrorCode::kInvalidArgument:
      break;
  }
  return Errc::unsupported;
}

std::string line_of(const std::filesystem::path& path, std::string_view subject,
                    std::uint64_t offset, const std::string& message) {
  std::string line;
  if (!path.empty()) line = shown(path) + ": ";
  if (!subject.empty()) line += "`" + clipped(subject) + "`: ";
  line += message;
  if (offset != 0) line += " (at byte " + std::to_string(offset) + ")";
  return line;
}

}  // namespace

std::string_view name(Errc code) noexcept {
  switch (code) {
    case Errc::io:
      return "io";
    case Errc::bad_magic:
      return "bad_magic";
    case Errc::version:
      return "version";
    case Errc::truncated:
      return "truncated";
    case Errc::overflow:
      return "overflow";
    case Errc::limit:
      return "limit";
    case Errc::duplicate:
      return "duplicate";
    case Errc::bad_name:
      return "bad_name";
    case Errc::bad_type:
      return "bad_type";
    case Errc::bad_shape:
      return "bad_shape";
    case Errc::bad_offset:
      return "bad_offset";
    case Errc::alignment:
      return "alignment";
    case Errc::json:
      return "json";
    case Errc::config:
      return "config";
    case Errc::missing_shard:
      return "missing_shard";
    case Errc::quant_mismatch:
      return "quant_mismatch";
    case Errc::mixed_types:
      return "mixed_types";
    case Errc::f16_overflow:
      return "f16_overflow";
    case Errc::unknown_tensor:
      return "unknown_tensor";
    case Errc::unsupported:
      return "unsupported";
  }
  return "unknown";
}

Error::Error(Errc code, std::filesystem::path path, std::string subject, std::uint64_t offset,
             const std::string& message, int os_error)
    : safetensors::Error(roughly(code), line_of(path, subject, offset, message), os_error),
      code_(code),
      path_(std::move(path)),
      offset_(offset),
      subject_(std::move(subject)) {}

Error::~Error() = default;

std::string shown(const std::filesystem::path& path) {
  const std::u8string text = path.u8string();
  return {text.begin(), text.end()};
}

void fail(Errc code, const std::filesystem::path& path, std::string_view subject,
          const std::string& message, std::uint64_t offset) {
  throw Error(code, path, std::string(subject), offset, message);
}

void fail_as_core(const safetensors::Error& error, const std::filesystem::path& path,
                  std::string_view subject) {
  throw Error(closely(error.code()), path, std::string(subject), 0, error.what(), error.os_error());
}

}  // namespace safetensors::weights
