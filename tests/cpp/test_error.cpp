#include <doctest/doctest.h>

#include <cerrno>
#include <exception>
#include <set>
#include <stdexcept>
#include <string>

#include "safetensors/error.hpp"

using safetensors::Error;
using safetensors::ErrorCode;
using Operation = safetensors::ErrorContext::Operation;

TEST_CASE("every code has a unique name, and other values have none") {
  std::set<std::string> names;
  for (int value = 0; value < 256; ++value) {
    const std::string_view name = safetensors::name(static_cast<ErrorCode>(value));
    CAPTURE(value);
    CHECK(name.empty() == (value == 0 || value > static_cast<int>(safetensors::kErrorCodeCount)));
    if (!name.empty()) CHECK(names.emplace(name).second);
  }
  CHECK(safetensors::name(ErrorCode::kInvalidHeaderUtf8) == "INVALID_HEADER_UTF8");
  CHECK(safetensors::name(ErrorCode::kMisalignedSlice) == "MISALIGNED_SLICE");
  CHECK(safetensors::name(ErrorCode::kDevice) == "DEVICE");
}

TEST_CASE("an error has its fields, and its text names the file once") {
  const Error error(ErrorCode::kInvalidOffset, "tensor `a` overlaps",
                    {.path = "dir/f", .subject = "a"});
  CHECK(error.code() == ErrorCode::kInvalidOffset);
  CHECK(error.path() == "dir/f");
  CHECK(error.subject() == "a");
  CHECK(error.os_error() == 0);
  CHECK(std::string(error.what()) == "tensor `a` overlaps (in dir/f)");

  const Error bare(ErrorCode::kIo, "no thread can be started", EAGAIN);
  CHECK(bare.path().empty());
  CHECK(bare.subject().empty());
  CHECK(bare.os_error() == EAGAIN);
  CHECK(std::string(bare.what()) == "no thread can be started");
}

TEST_CASE("the text of an error is one line, whatever a name has") {
  using namespace std::string_literals;
  const Error error(ErrorCode::kIo, "tensor `a\n\x1b[31m\0\x7f\u00e9` ends"s, {.path = "f"});
  CHECK(std::string(error.what()) ==
        "tensor `a\\u000a\\u001b[31m\\u0000\\u007f\u00e9` ends (in f)");
}

TEST_CASE("a file that the message names is not named again") {
  const auto text = [](const std::string& message, const char* path) {
    return std::string(Error(ErrorCode::kIncompleteModel, message, {.path = path}).what());
  };
  for (const char* message : {"a tensor is in two files: d/e and d/f", "d/f: a save",
                              "into d/f, as", "none (in d/f); there are", "not d/f2 but d/f"}) {
    CHECK(text(message, "d/f") == message);
  }
  CHECK(text("it begins like d/f2", "d/f") == "it begins like d/f2 (in d/f)");
  CHECK(text("a name of f, by chance", "f") == "a name of f, by chance (in f)");
  CHECK(text("f: a text that begins with it", "f") == "f: a text that begins with it");
}

TEST_CASE("system errors have upstream's texts") {
  const auto text = [](Operation operation, int os_error, const std::string& message = {}) {
    return std::string(
        Error(ErrorCode::kIo, message, {.path = "f", .os_error = os_error, .operation = operation})
            .what());
  };
  const std::string denied = "Permission denied (os error " + std::to_string(EACCES) + ")";
  CHECK(text(Operation::kRead, ENOENT) == "No such file or directory: f");
  CHECK(text(Operation::kRead, EACCES) == denied + ": f");
  CHECK(text(Operation::kWrite, EACCES) == "I/O error: " + denied + " at path \"f\"");
  CHECK(text(Operation::kWrite, EACCES, "it is mapped") ==
        "I/O error: " + denied + " at path \"f\": it is mapped");
}

TEST_CASE("an empty path is shown where an operation failed on it") {
  const auto text = [](Operation operation) {
    return std::string(
        Error(ErrorCode::kIo, {}, {.os_error = ENOENT, .operation = operation}).what());
  };
  CHECK(text(Operation::kRead) == "No such file or directory: ");
  CHECK(text(Operation::kWrite) ==
        "I/O error: No such file or directory (os error 2) at path \"\"");
  CHECK(text(Operation::kNone).empty());
}

TEST_CASE("an error keeps its cause, also with context") {
  CHECK(Error(ErrorCode::kIo, "no answer").cause() == nullptr);
  const auto cause = std::make_exception_ptr(std::runtime_error("reset by peer"));
  const Error error(ErrorCode::kIo, "no answer", {.cause = cause});
  CHECK(error.cause() == cause);
  CHECK(error.path().empty());
  CHECK(std::string(error.what()) == "no answer");
  CHECK(error.with_context("Error while reading: ", "f", "a").cause() == cause);
}

TEST_CASE("context is added to an error only once") {
  const Error plain(ErrorCode::kInvalidOffset, "a hole");
  const Error with_path = plain.with_context("Error while reading: ", "f", "a");
  CHECK(with_path.code() == ErrorCode::kInvalidOffset);
  CHECK(with_path.path() == "f");
  CHECK(with_path.subject() == "a");
  CHECK(std::string(with_path.what()) == "Error while reading: a hole (in f)");

  const Error again = with_path.with_context("Error while loading: ", "other", "b");
  CHECK(again.path() == "f");
  CHECK(again.subject() == "a");
  CHECK(std::string(again.what()) == "Error while loading: Error while reading: a hole (in f)");

  const Error refused(ErrorCode::kIo, {},
                      {.path = "f", .os_error = EIO, .operation = Operation::kRead});
  const Error loading = refused.with_context("Error while loading: ", "other", "b");
  CHECK(loading.os_error() == EIO);
  CHECK(loading.path() == "f");
  CHECK(loading.subject() == "b");
  CHECK(std::string(loading.what()) == std::string("Error while loading: ") + refused.what());
}
