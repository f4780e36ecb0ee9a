// C: conversion of exceptions to codes, and the constants.
#include <doctest/doctest.h>

#include <new>
#include <stdexcept>
#include <string>

#include "c/guard.hpp"
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
}

TEST_CASE("C: dtypes, codes and versions have their names") {
  for (const safetensors::Dtype dtype : safetensors::all_dtypes()) {
    const auto number = static_cast<std::int32_t>(dtype);
    CHECK(std::string(safetensors_dtype_name(number)) == safetensors::name(dtype));
    CHECK(safetensors_dtype_from_name(safetensors_dtype_name(number)) == number);
    CHECK(safetensors_dtype_bits(number) == safetensors::bit_size(dtype));
  }
  for (const std::int32_t number : {-1, 22}) {
    CHECK(safetensors_dtype_name(number) == nullptr);
    CHECK(safetensors_dtype_bits(number) == 0);
  }
  CHECK(safetensors_dtype_from_name("f32") == -1);
  CHECK(safetensors_dtype_from_name(nullptr) == -1);
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
