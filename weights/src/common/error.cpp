#include "safetensors/weights/error.hpp"

#include <array>

#include "base/text.hpp"
#include "common/fail.hpp"

namespace safetensors::weights {
namespace {

/// A code, its name, and the core's code that is nearest to it.
struct Row {
  Errc code;
  std::string_view name;
  ErrorCode core;
};

// In the order of the enumeration, whose first value is 1.
constexpr std::array<Row, kErrcCount> kRows = {{
    {Errc::io, "io", ErrorCode::kIo},
    {Errc::bad_magic, "bad_magic", ErrorCode::kInvalidHeaderJson},
    {Errc::version, "version", ErrorCode::kInvalidHeaderJson},
    {Errc::truncated, "truncated", ErrorCode::kIncompleteData},
    {Errc::overflow, "overflow", ErrorCode::kOverflow},
    {Errc::limit, "limit", ErrorCode::kHeaderTooLarge},
    {Errc::duplicate, "duplicate", ErrorCode::kDuplicateName},
    {Errc::bad_name, "bad_name", ErrorCode::kInvalidTensorInfo},
    {Errc::bad_type, "bad_type", ErrorCode::kUnsupportedDtype},
    {Errc::bad_shape, "bad_shape", ErrorCode::kInvalidTensorInfo},
    {Errc::bad_offset, "bad_offset", ErrorCode::kInvalidOffset},
    {Errc::alignment, "alignment", ErrorCode::kInvalidOffset},
    {Errc::json, "json", ErrorCode::kInvalidHeaderJson},
    {Errc::config, "config", ErrorCode::kInvalidHeaderJson},
    {Errc::missing_shard, "missing_shard", ErrorCode::kIncompleteModel},
    {Errc::quant_mismatch, "quant_mismatch", ErrorCode::kInvalidTensorInfo},
    {Errc::mixed_types, "mixed_types", ErrorCode::kInvalidArgument},
    {Errc::f16_overflow, "f16_overflow", ErrorCode::kInvalidArgument},
    {Errc::unknown_tensor, "unknown_tensor", ErrorCode::kTensorNotFound},
    {Errc::unsupported, "unsupported", ErrorCode::kUnsupportedDtype},
}};

/// A code of the core, and the code of this layer that is nearest to it.
struct InverseRow {
  ErrorCode core;
  Errc code;
};

// In the order of the enumeration, whose first value is 1.
constexpr std::array<InverseRow, kErrorCodeCount> kInverseRows = {{
    {ErrorCode::kInvalidHeaderUtf8, Errc::json},
    {ErrorCode::kInvalidHeaderJson, Errc::json},
    {ErrorCode::kHeaderTooLarge, Errc::limit},
    {ErrorCode::kHeaderTooSmall, Errc::truncated},
    {ErrorCode::kInvalidHeaderLength, Errc::truncated},
    {ErrorCode::kDuplicateName, Errc::duplicate},
    {ErrorCode::kInvalidOffset, Errc::bad_offset},
    {ErrorCode::kInvalidTensorInfo, Errc::bad_shape},
    {ErrorCode::kIncompleteData, Errc::truncated},
    {ErrorCode::kOverflow, Errc::overflow},
    {ErrorCode::kMisalignedSlice, Errc::bad_shape},
    {ErrorCode::kTensorNotFound, Errc::unknown_tensor},
    {ErrorCode::kTooManyIndices, Errc::unsupported},
    {ErrorCode::kIndexOutOfBounds, Errc::unsupported},
    {ErrorCode::kInvalidSlice, Errc::unsupported},
    {ErrorCode::kInvalidArgument, Errc::unsupported},
    {ErrorCode::kUnsupportedDtype, Errc::bad_type},
    {ErrorCode::kNotRegularFile, Errc::io},
    {ErrorCode::kIo, Errc::io},
    {ErrorCode::kFileChanged, Errc::io},
    {ErrorCode::kOutOfMemory, Errc::io},
    {ErrorCode::kDevice, Errc::io},
    {ErrorCode::kWrittenTwice, Errc::unsupported},
    {ErrorCode::kMissingTensors, Errc::unsupported},
    {ErrorCode::kOutOfOrder, Errc::unsupported},
    {ErrorCode::kWriterClosed, Errc::unsupported},
    {ErrorCode::kInvalidPatch, Errc::unsupported},
    {ErrorCode::kWrongBase, Errc::unsupported},
    {ErrorCode::kPatchApplied, Errc::unsupported},
    {ErrorCode::kDamaged, Errc::io},
    {ErrorCode::kNoModel, Errc::missing_shard},
    {ErrorCode::kSeveralModels, Errc::unsupported},
    {ErrorCode::kIncompleteModel, Errc::missing_shard},
}};

/// Whether each row is at the index of its enumerator: a forgotten row is a zero, and fits nowhere.
template <typename Rows, typename Code>
constexpr bool are_in_order(const Rows& rows, Code member) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (static_cast<std::size_t>(rows[i].*member) != i + 1) return false;
  }
  return true;
}
static_assert(are_in_order(kRows, &Row::code));
static_assert(are_in_order(kInverseRows, &InverseRow::core));
static_assert(kErrcCount == static_cast<std::size_t>(Errc::unsupported));

const Row* find_row(Errc code) noexcept {
  const std::size_t row = static_cast<std::size_t>(code) - 1;  // 0 wraps past the end
  return row < kRows.size() ? &kRows[row] : nullptr;
}

ErrorCode to_error_code(Errc code) noexcept {
  const Row* const row = find_row(code);
  return row == nullptr ? ErrorCode::kInvalidArgument : row->core;
}

Errc to_errc(ErrorCode code) noexcept {
  const std::size_t row = static_cast<std::size_t>(code) - 1;
  return row < kInverseRows.size() ? kInverseRows[row].code : Errc::unsupported;
}

/// The text but for the file's name, which the base adds.
std::string line_of(const std::string& subject, std::uint64_t offset, const std::string& message) {
  std::string where = subject.empty() ? std::string() : "`" + clipped(subject) + "`";
  if (offset != 0) where += (where.empty() ? "at byte " : " at byte ") + std::to_string(offset);
  return where.empty() ? message : where + ": " + message;
}

}  // namespace

std::string_view name(Errc code) noexcept {
  const Row* const row = find_row(code);
  return row == nullptr ? "unknown" : row->name;
}

WeightsError::WeightsError(Errc code, const std::filesystem::path& path, const std::string& subject,
                           std::uint64_t offset, const std::string& message, int os_error)
    : safetensors::Error(to_error_code(code), line_of(subject, offset, message),
                         {.path = path, .subject = subject, .os_error = os_error}),
      offset_(offset),
      code_(code) {}

WeightsError::~WeightsError() = default;

void fail(Errc code, const std::filesystem::path& path, std::string_view subject,
          const std::string& message, std::uint64_t offset) {
  throw WeightsError(code, path, std::string(subject), offset, message);
}

void rethrow_core_error(const safetensors::Error& error, const std::filesystem::path& path,
                        std::string_view subject) {
  const std::string name(subject);
  throw WeightsError(to_errc(error.code()), error.with_context(line_of(name, 0, {}), path, name));
}

}  // namespace safetensors::weights
