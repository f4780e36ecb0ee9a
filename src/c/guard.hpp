// Conversion of exceptions to error codes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>

#include "safetensors/error.hpp"
#include "safetensors/safetensors.h"

namespace safetensors::c {

/// What a callback of the program ended the call with. The core passes it on, as it does with any
/// exception that is not its own.
struct Stopped : std::exception {
  explicit Stopped(std::int32_t number = 0) noexcept : value(number) {}
  [[nodiscard]] const char* what() const noexcept override { return "a callback ended the call"; }

  std::int32_t value;
};

/// What an error says, beside its code.
struct Report {
  std::string_view text{};
  std::string_view path{};
  std::string_view subject{};
  int os_error = 0;
  std::int32_t detail = 0;
};

/// Fills in `error`, unless it is NULL, and returns the code.
std::int32_t report(safetensors_error* error, std::int32_t code, const Report& what = {}) noexcept;
std::int32_t report(safetensors_error* error, const Error& thrown) noexcept;
std::int32_t report(safetensors_error* error, const Stopped& thrown) noexcept;

/// Returns SAFETENSORS_OK, with no text, path or subject in `error`.
inline std::int32_t succeed(safetensors_error* error) noexcept {
  if (error == nullptr) return SAFETENSORS_OK;
  error->code = SAFETENSORS_OK;
  error->os_error = error->detail = 0;
  error->path = error->subject = 0;
  error->text[0] = '\0';
  return SAFETENSORS_OK;
}

/// Runs `work`. Returns SAFETENSORS_OK, or the code of the exception that it threw.
template <typename Work>
std::int32_t guarded(safetensors_error* error, const Work& work) noexcept {
  try {
    work();
    return succeed(error);
  } catch (const Error& thrown) {
    return report(error, thrown);
  } catch (const Stopped& thrown) {
    return report(error, thrown);
  } catch (const std::bad_alloc&) {
    return report(error, SAFETENSORS_OUT_OF_MEMORY, {.text = "out of memory"});
  } catch (const std::length_error&) {  // a container with more elements than memory can hold
    return report(error, SAFETENSORS_OUT_OF_MEMORY, {.text = "out of memory"});
  } catch (const std::exception& thrown) {
    return report(error, SAFETENSORS_INTERNAL, {.text = thrown.what()});
  } catch (...) {
    return report(error, SAFETENSORS_INTERNAL, {.text = "an exception of unknown type"});
  }
}

/// Throws: Error kInvalidArgument if `pointer` is NULL and `count` is not 0.
template <typename T>
void check_pointer(const T* pointer, std::uint64_t count, const char* what) {
  if (pointer == nullptr && count != 0) {
    fail(ErrorCode::kInvalidArgument, std::string(what) + " is NULL");
  }
}

/// Throws: Error kIndexOutOfBounds unless index < count.
inline void check_index(std::size_t index, std::size_t count) {
  if (index < count) return;
  fail(ErrorCode::kIndexOutOfBounds, "index " + std::to_string(index) +
                                         " is out of range: the count is " + std::to_string(count));
}

/// Returns a text argument. Does not read from `text` if `size` is 0: the pointer of an empty
/// string of another language need not point to memory.
/// Throws: Error kInvalidArgument (NULL, or a size that no string has).
inline std::string_view text_of(const char* text, std::size_t size, const char* what) {
  if (size == 0) return "";
  check_pointer(text, size, what);
  if (size == SAFETENSORS_NUL_TERMINATED) return text;
  if (size > PTRDIFF_MAX) {
    fail(ErrorCode::kInvalidArgument,
         std::string(what) + " has a size of " + std::to_string(size) + " bytes");
  }
  return {text, size};
}

}  // namespace safetensors::c
