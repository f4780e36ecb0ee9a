// Errors of the library: one exception type with a code, the file and the tensor at fault.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
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
  kDuplicateName,          ///< a key occurs twice in one JSON object
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
  kIo,                     ///< the operating system reported an error: see Error::os_error()
  kFileChanged,            ///< the file was replaced, truncated or written to after it was opened
  kOutOfMemory,            ///< memory for the data could not be allocated
  kDevice,                 ///< a device or its driver failed, or does not exist
  kWrittenTwice,           ///< a tensor, or more bytes than it has, was written to a FileWriter
  kMissingTensors,         ///< a FileWriter was to be completed before all tensors were written
  kOutOfOrder,             ///< a sink that does not seek needs other tensors first
  kWriterClosed,           ///< a FileWriter that has failed or is closed
  kInvalidPatch,           ///< a patch that is damaged or breaks its format
  kWrongBase,              ///< a tensor that a patch does not belong to
  kPatchApplied,           ///< a tensor that a patch was applied to already
  kDamaged,                ///< bytes differ from the digest that they should have
  kNoModel,                ///< a folder has no model, or none of the name or variant asked for
  kSeveralModels,          ///< more than one set of files in a folder may be the model
  kIncompleteModel,        ///< a file of a numbered set, or of an index, is absent
};

inline constexpr std::size_t kErrorCodeCount = 33;

/// Returns the code's name as the C interface spells it, without its prefix: "INVALID_OFFSET" for
/// kInvalidOffset. A NUL follows it in memory. Empty for a value that is none of the enumerators.
[[nodiscard]] SAFETENSORS_API std::string_view name(ErrorCode code) noexcept;

/// What an error is about, beside its code. A member that does not apply is empty or zero.
struct ErrorContext {
  /// What the program did to the file when the operating system reported the error.
  enum class Operation : std::uint8_t { kNone, kRead, kWrite };

  std::filesystem::path path{};  ///< the file at fault
  std::string subject{};         ///< the tensor or key at fault
  /// The operating system's errno (on Windows: the closest one).
  int os_error = 0;
  Operation operation = Operation::kNone;
  /// The exception of a ByteSource or another callback that the error reports, for programs that
  /// catch it. Its text is not added to what().
  std::exception_ptr cause{};
};

/// The only exception that the library throws itself; std::bad_alloc may also leave it.
///
/// what() is one line that names the file and tensor at fault; path() and subject() return them for
/// programs.
///
/// Thread safety: several threads may read an Error at once. Copying never throws.
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
  /// not empty. For kNone without a path, or with one that the message names, what() is the
  /// message. The message names the subject where it helps.
  Error(ErrorCode code, const std::string& message, const ErrorContext& context);
  // The destructor is out of line, so that only the library contains the type's vtable. Catching
  // then works across shared libraries.
  Error(const Error&) = default;
  Error& operator=(const Error&) = default;
  ~Error() override;

  [[nodiscard]] ErrorCode code() const noexcept { return code_; }
  /// Returns the file at fault; empty if there is none.
  [[nodiscard]] const std::filesystem::path& path() const noexcept;
  /// Returns the name of the tensor, or the key of metadata, at fault; empty if there is none.
  [[nodiscard]] const std::string& subject() const noexcept;
  /// Returns the operating system's errno (on Windows: the closest one); 0 if the error is not from
  /// the operating system. A directory where a file is needed is kNotRegularFile with EISDIR.
  [[nodiscard]] int os_error() const noexcept { return os_error_; }
  /// Returns the exception that the error reports; nullptr if there is none.
  [[nodiscard]] std::exception_ptr cause() const noexcept;

  /// Returns a copy with `prefix` before its text. `path` and `subject` fill in what the error
  /// lacks; such a path is also added to the text.
  [[nodiscard]] Error with_context(const std::string& prefix,
                                   const std::filesystem::path& path = {},
                                   const std::string& subject = {}) const;

 private:
  struct Details {
    std::filesystem::path path;
    std::string subject;
    std::exception_ptr cause;
  };

  // Shared, so that copying cannot throw. Null if all members would be empty.
  std::shared_ptr<const Details> details_;
  int os_error_;
  ErrorCode code_;
};

/// Throws Error.
[[noreturn]] SAFETENSORS_API void fail(ErrorCode code, const std::string& message,
                                       int os_error = 0);
[[noreturn]] SAFETENSORS_API void fail(ErrorCode code, const std::string& message,
                                       const ErrorContext& context);

}  // namespace safetensors
