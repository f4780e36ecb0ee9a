// Errors of the library: one exception type with a code, the file and the tensor at fault.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

#include "safetensors/export.hpp"

namespace safetensors {

/// What went wrong. Values are stable: new ones are added at the end.
enum class ErrorCode : std::uint8_t {
  kInvalidHeaderUtf8 = 1,  ///< the header is not valid UTF-8
  kInvalidHeaderJson,      ///< a header or an index is not the JSON that the format prescribes
  kHeaderTooLarge,         ///< a header above kMaxHeaderSize, an index above kMaxIndexSize
  kHeaderTooSmall,         ///< fewer than the 8 bytes of the header length
  kInvalidHeaderLength,    ///< header length reaches past the end of the file
  kDuplicateName,          ///< a key stands twice in one JSON object
  kInvalidOffset,          ///< a tensor's bytes leave a hole, overlap, or run backwards
  kInvalidTensorInfo,      ///< byte range, shape and dtype of a tensor disagree
  kIncompleteData,         ///< the data section is shorter or longer than the tensors
  kOverflow,               ///< a size does not fit in 64 bits
  kMisalignedSlice,        ///< a sub-byte dtype does not end on a byte boundary
  kTensorNotFound,         ///< no tensor of that name in the file
  kTooManyIndices,         ///< more indices than dimensions, or two ellipses
  kIndexOutOfBounds,       ///< an integer index outside its dimension
  kInvalidSlice,           ///< a slice step below 1
  kInvalidArgument,        ///< an argument that the call cannot accept
  kUnsupportedDtype,       ///< a dtype that the call cannot handle
  kNotRegularFile,         ///< a directory, pipe, socket or device where a file is needed
  kIo,                     ///< the operating system refused; see Error::os_error()
  kFileChanged,            ///< the file is not, or is shorter than, what was opened
  kOutOfMemory,            ///< memory for the data could not be had
  kDevice,                 ///< a device or its driver refused, or is not there
};

inline constexpr std::size_t kErrorCodeCount = 22;

/// The code's name as the C interface spells it, without its prefix: "INVALID_OFFSET" for
/// kInvalidOffset. A NUL stands after it. Empty for a value that is none of the enumerators.
[[nodiscard]] SAFETENSORS_API std::string_view name(ErrorCode code) noexcept;

/// What an error is about, beside its code. A member is empty, or zero, where it does not apply.
struct ErrorContext {
  /// What was being done to the file when the operating system refused.
  enum class Operation : std::uint8_t { kNone, kRead, kWrite };

  std::filesystem::path path{};  ///< the file at fault
  std::string subject{};         ///< the tensor or key at fault
  /// errno (on Windows: its closest errno) when the operating system refused.
  int os_error = 0;
  Operation operation = Operation::kNone;
};

/// The only exception that the library throws on its own behalf (std::bad_alloc may pass through).
///
/// what() is one line that names the file and tensor at fault; path() and subject() hold both for
/// programs.
/// Thread safety: an Error may be read from several threads. Copying never throws.
class SAFETENSORS_API Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message, int os_error = 0)
      : Error(code, message, ErrorContext{.os_error = os_error}) {}

  /// Makes what() from `message` and the context:
  ///
  ///     kNone    MESSAGE (in PATH)
  ///     kRead    Permission denied (os error 13): PATH
  ///     kWrite   I/O error: Permission denied (os error 13) at path "PATH"
  ///
  /// For kRead and kWrite the text comes from `os_error`, and ": MESSAGE" follows if `message` is
  /// not empty. Without a path, what() is the message. The message names the subject where it
  /// helps.
  Error(ErrorCode code, const std::string& message, const ErrorContext& context);
  // Out of line, so that the type has one home and catching works across shared libraries.
  Error(const Error&) = default;
  Error& operator=(const Error&) = default;
  ~Error() override;

  [[nodiscard]] ErrorCode code() const noexcept { return code_; }
  /// The file at fault; empty if there is none.
  [[nodiscard]] const std::filesystem::path& path() const noexcept;
  /// The name of the tensor, or the key of metadata, at fault; empty if there is none.
  [[nodiscard]] const std::string& subject() const noexcept;
  /// errno (on Windows: its closest errno) when the operating system refused, else 0. A directory
  /// where a file is needed is kNotRegularFile with EISDIR.
  [[nodiscard]] int os_error() const noexcept { return os_error_; }

  /// Returns a copy with `prefix` before its text, and with those of `path` and `subject` that it
  /// lacks. A path that it lacks is added to the text.
  [[nodiscard]] Error with_context(const std::string& prefix,
                                   const std::filesystem::path& path = {},
                                   const std::string& subject = {}) const;

 private:
  struct Names {
    std::filesystem::path path;
    std::string subject;
  };

  // Shared, so that copying cannot throw. Null if both names are empty.
  std::shared_ptr<const Names> names_;
  int os_error_;
  ErrorCode code_;
};

/// Throws Error. The single place where the library raises.
[[noreturn]] SAFETENSORS_API void fail(ErrorCode code, const std::string& message,
                                       int os_error = 0);
[[noreturn]] SAFETENSORS_API void fail(ErrorCode code, const std::string& message,
                                       const ErrorContext& context);

}  // namespace safetensors
