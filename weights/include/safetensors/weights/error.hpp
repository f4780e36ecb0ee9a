// The exception of the weight layer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "safetensors/error.hpp"
#include "safetensors/export.hpp"

namespace safetensors::weights {

/// The kind of fault. Values are stable: new ones are added at the end. The enumerators are spelled
/// as in Python.
enum class Errc : std::uint8_t {
  io = 1,          ///< the operating system reported an error, or the file was changed after it
                   ///< was opened
  bad_magic,       ///< neither GGUF nor safetensors
  version,         ///< a version or byte order of GGUF that is not supported
  truncated,       ///< the file ends before what it claims to hold
  overflow,        ///< a size does not fit in 64 bits
  limit,           ///< a count, length or depth above what is allowed
  duplicate,       ///< a name or key occurs twice, or two tensors have one canonical name
  bad_name,        ///< a name or key is empty, too long, not UTF-8, or has a NUL
  bad_type,        ///< a type that does not exist or does not fit
  bad_shape,       ///< dimensions that no tensor of its type can have
  bad_offset,      ///< a tensor outside the data, overlapping another one, or after a gap
  alignment,       ///< an invalid alignment, or an offset that is not aligned
  json,            ///< text that is not JSON, or not the expected JSON
  config,          ///< a configuration value of the wrong type or outside its range
  missing_shard,   ///< a file of a set is absent
  quant_mismatch,  ///< quantisation parameters and shapes disagree
  mixed_types,     ///< tensors of different types cannot be fused
  f16_overflow,    ///< a value is too large for F16
  unknown_tensor,  ///< no tensor of that name
  unsupported,     ///< a format, type or scheme that is known and not supported
};

inline constexpr std::size_t kErrcCount = 20;

/// Returns the name of a code, such as "bad_magic".
[[nodiscard]] SAFETENSORS_API std::string_view name(Errc code) noexcept;

/// The only exception that the weight layer throws itself; std::bad_alloc may also leave it.
///
/// code() hides that of the base class, whose codes are fewer and less precise. path() returns the
/// file, subject() the tensor or key at fault. what() is one line:
///
///     `SUBJECT` at byte OFFSET: MESSAGE (in PATH)
class SAFETENSORS_API WeightsError : public safetensors::Error {
 public:
  /// Makes an error. `subject` is the tensor or key at fault, `offset` its position in the file in
  /// bytes; empty and 0 if there is none. `message` says what was found, without naming path or
  /// subject again.
  WeightsError(Errc code, const std::filesystem::path& path, const std::string& subject,
               std::uint64_t offset, const std::string& message, int os_error = 0);
  /// Gives an error of the core a code of this layer, and keeps its text, path and subject.
  WeightsError(Errc code, const safetensors::Error& error)
      : safetensors::Error(error), code_(code) {}
  WeightsError(const WeightsError&) = default;
  WeightsError& operator=(const WeightsError&) = default;
  ~WeightsError() override;

  // NOLINTNEXTLINE(bugprone-derived-method-shadowing-base-method): a more precise code
  [[nodiscard]] Errc code() const noexcept { return code_; }
  [[nodiscard]] std::uint64_t offset() const noexcept { return offset_; }

 private:
  std::uint64_t offset_ = 0;
  Errc code_;
};

/// The old name of WeightsError. Will be removed in the next version.
using Error [[deprecated("use WeightsError")]] = WeightsError;

}  // namespace safetensors::weights
