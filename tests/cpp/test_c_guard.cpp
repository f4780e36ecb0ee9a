// C: conversion of exceptions to codes, and the constants.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>

#include "c/guard.hpp"
#include "c/options.hpp"
#include "safetensors/dtype.hpp"
#include "safetensors/safetensors.h"

TEST_CASE("C: no exception leaves a function") {
  safetensors_error error{};
  const auto code = [&](auto work) { return safetensors::c::guarded(&error, work); };
  CHECK(code([] {}) == SAFETENSORS_OK);
  CHECK(code([] { throw std::bad_alloc(); }) == SAFETENSORS_OUT_OF_MEMORY);
  CHECK(code([] { throw std::length_error("vector"); }) == SAFETENSORS_OUT_OF_MEMORY);
  CHECK(code([] { throw std::runtime_error("odd"); }) == SAFETENSORS_INTERNAL);
  CHECK(std::string(error.text) == "odd");
  CHECK(code([] { throw 1; }) == SAFETENSORS_INTERNAL);
  CHECK(error.code == SAFETENSORS_INTERNAL);
  CHECK(code([] { throw safetensors::c::Stopped{77}; }) == SAFETENSORS_STOPPED);
  CHECK(error.detail == 77);
  // As a load reports what a source has thrown.
  const auto cause = std::make_exception_ptr(safetensors::c::Stopped{78});
  CHECK(code([&] {
          safetensors::fail(safetensors::ErrorCode::kIo, "a source failed", {.cause = cause});
        }) == SAFETENSORS_STOPPED);
  CHECK(error.detail == 78);
  CHECK(code([] {}) == SAFETENSORS_OK);
  CHECK(error.detail == 0);
}

TEST_CASE("C: an error has the path and the subject after its text, unless they do not fit") {
  for (std::size_t size = 990; size < 1020; ++size) {
    for (const std::size_t path_size : {std::size_t{0}, std::size_t{5}, std::size_t{4000}}) {
      CAPTURE(size);
      CAPTURE(path_size);
      safetensors_error error;
      std::memset(&error, 0x7F, sizeof error);
      const std::string text(size, 't'), path(path_size, 'p');
      (void)safetensors::c::report(&error, 19, {.text = text, .path = path, .subject = "s"});
      const std::size_t fits = std::min(size, sizeof error.text - 1);
      CHECK(error.text == text.substr(0, fits));
      const std::size_t left = sizeof error.text - fits - 1;
      const bool has_path = path_size != 0 && path_size < left;
      CHECK(error.text + error.path == (has_path ? path : ""));
      const std::size_t after = has_path ? left - path_size - 1 : left;
      CHECK(error.text + error.subject == std::string(after >= 2 ? "s" : ""));
    }
  }
}

TEST_CASE("C: options of another version of the header") {
  struct Newer {
    safetensors_watch known;
    std::uint64_t more;
  };
  Newer newer{};
  const auto outcome = [&](std::size_t size) {
    newer.known.size = size;
    safetensors_error error{};
    (void)safetensors::c::guarded(&error, [&] {
      const safetensors_watch copy = safetensors::c::options_of(&newer.known, "watch");
      CHECK(copy.context == (size < sizeof newer.known ? nullptr : newer.known.context));
    });
    return std::string(error.text);
  };
  newer.known.context = &newer;
  CHECK(outcome(sizeof newer).empty());
  CHECK(outcome(sizeof newer.known).empty());
  CHECK(outcome(sizeof(std::size_t)).empty());  // an older program
  for (const std::size_t size : {std::size_t{0}, std::size_t{7}, std::size_t{4097}, SIZE_MAX}) {
    CHECK(outcome(size) ==
          "watch: `size` is " + std::to_string(size) + ", which is not the size of the struct");
  }
  newer.more = 1;
  CHECK(outcome(sizeof newer).starts_with("watch: this library is older than the program"));
  CHECK(outcome(sizeof newer.known).empty());
  newer.known.size = sizeof newer.known;
  CHECK(safetensors_read(nullptr, nullptr, 0, &newer.known, nullptr) ==
        SAFETENSORS_INVALID_ARGUMENT);
}

TEST_CASE("C: dtypes, codes and versions have their names") {
  for (const safetensors::Dtype dtype : safetensors::all_dtypes()) {
    const auto number = static_cast<std::int32_t>(dtype);
    CHECK(std::string(safetensors_dtype_name(number)) == safetensors::name(dtype));
    CHECK(safetensors_dtype_from_name(SAFETENSORS_TEXT(safetensors_dtype_name(number))) == number);
    CHECK(safetensors_dtype_bits(number) == safetensors::bit_size(dtype));
  }
  for (const std::int32_t number : {-1, 22}) {
    CHECK(safetensors_dtype_name(number) == nullptr);
    CHECK(safetensors_dtype_bits(number) == 0);
  }
  CHECK(safetensors_dtype_from_name("f32", 3) == -1);
  CHECK(safetensors_dtype_from_name("F32, F16", 3) == SAFETENSORS_F32);
  CHECK(safetensors_dtype_from_name(nullptr, 3) == -1);
  CHECK(std::string(safetensors_code_name(SAFETENSORS_STOPPED)) == "STOPPED");
  CHECK(safetensors_code_name(-3) == nullptr);
  CHECK(std::string(safetensors_code_name(SAFETENSORS_OK)) == "OK");
  CHECK(std::string(safetensors_code_name(SAFETENSORS_IO)) == "IO");
  CHECK(std::string(safetensors_code_name(SAFETENSORS_OUT_OF_MEMORY)) == "OUT_OF_MEMORY");
  CHECK(std::string(safetensors_code_name(SAFETENSORS_INTERNAL)) == "INTERNAL");
  CHECK(safetensors_code_name(34) == nullptr);
  CHECK(safetensors_abi_version() == SAFETENSORS_ABI_VERSION);
  CHECK(std::string(safetensors_version()) == SAFETENSORS_VERSION);
#if SAFETENSORS_VERSION_NUMBER >= 200
  constexpr int kNumber = SAFETENSORS_VERSION_NUMBER;
  CHECK(std::to_string(kNumber / 10000) + "." + std::to_string(kNumber / 100 % 100) + "." +
            std::to_string(kNumber % 100) ==
        SAFETENSORS_VERSION);
#else
  FAIL("the version is older than 0.2.0");
#endif
}
