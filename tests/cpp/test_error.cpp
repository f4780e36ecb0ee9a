#include <doctest/doctest.h>

#include <set>
#include <string>

#include "safetensors/error.hpp"

using safetensors::ErrorCode;

TEST_CASE("every code has a name of its own, and nothing else has one") {
  std::set<std::string> names;
  for (int value = 0; value < 256; ++value) {
    const std::string_view name = safetensors::name(static_cast<ErrorCode>(value));
    CAPTURE(value);
    CHECK(name.empty() == (value == 0 || value > static_cast<int>(ErrorCode::kDevice)));
    if (!name.empty()) CHECK(names.emplace(name).second);
  }
  CHECK(safetensors::name(ErrorCode::kInvalidHeaderUtf8) == "INVALID_HEADER_UTF8");
  CHECK(safetensors::name(ErrorCode::kMisalignedSlice) == "MISALIGNED_SLICE");
  CHECK(safetensors::name(ErrorCode::kDevice) == "DEVICE");
}
