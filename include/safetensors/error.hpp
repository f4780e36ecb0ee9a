// Errors of the library: one exception type with a code.
#pragma once

#include <cstdint>
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

/// The code's name as the C interface spells it, without its prefix: "INVALID_OFFSET" for
/// kInvalidOffset. A NUL stands after it. Empty for a value that is none of the enumerators.
[[nodiscard]] SAFETENSORS_API std::string_view name(ErrorCode code) noexcept;

/// The only exception the library throws on its own behalf (std::bad_alloc may pass through).
/// Copyable and thread safe to read. what() is one line that names the file or tensor at fault.
class SAFETENSORS_API Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message, int os_error = 0)
      : std::runtime_error(message), code_(code), os_error_(os_error) {}
  // Out of line, so that the type has one home and catching works across shared libraries.
  Error(const Error&) = default;
  Error& operator=(const Error&) = default;
  ~Error() override;

  [[nodiscard]] ErrorCode code() const noexcept { return code_; }
  /// errno (on Windows: its closest errno) when the operating system refused, else 0. A directory
  /// where a file is needed is kNotRegularFile with EISDIR.
  [[nodiscard]] int os_error() const noexcept { return os_error_; }

 private:
  ErrorCode code_;
  int os_error_;
};

/// Throws Error. The single place where the library raises.
[[noreturn]] SAFETENSORS_API void fail(ErrorCode code, const std::string& message,
                                       int os_error = 0);

}  // namespace safetensors
