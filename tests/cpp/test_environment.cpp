// Settings in environment variables.
#include <doctest/doctest.h>

#include <cstdlib>
#include <string>

#include "io/environment.hpp"
#include "support.hpp"

using safetensors::io::env_flag;
using safetensors::io::env_uint;

namespace {

constexpr const char* kVariable = "SAFETENSORS_TEST_VARIABLE";

void set(const char* value) {
#if defined(_WIN32)
  ::_putenv_s(kVariable, value);
#else
  ::setenv(kVariable, value, 1);
#endif
}

}  // namespace

TEST_CASE("numbers in the environment") {
  set("");
  CHECK_FALSE(env_uint(kVariable, 10));
  CHECK_FALSE(env_uint("SAFETENSORS_NO_SUCH_VARIABLE", 10));
  set("7");
  CHECK(env_uint(kVariable, 10) == 7);
  CHECK(env_uint(kVariable, 7) == 7);
  set("0");
  CHECK(env_uint(kVariable, 7) == 0);
  for (const char* const wrong :
       {"11", "-1", "+1", "1 ", " 1", "1x", "x", "99999999999999999999"}) {
    CAPTURE(wrong);
    set(wrong);
    const auto error = test::error_of([] { (void)env_uint(kVariable, 10); });
    CHECK(error.code() == test::ErrorCode::kInvalidArgument);
    CHECK(std::string(error.what()) ==
          "the environment variable SAFETENSORS_TEST_VARIABLE must be a number of at most 10, "
          "not \"" +
              std::string(wrong) + "\"");
  }
  set("");
}

TEST_CASE("flags in the environment") {
  set("");
  CHECK_FALSE(env_flag(kVariable));
  for (const char* const on : {"1", "on"}) {
    set(on);
    CHECK(env_flag(kVariable) == true);
  }
  for (const char* const off : {"0", "off"}) {
    set(off);
    CHECK(env_flag(kVariable) == false);
  }
  for (const char* const wrong : {"2", "ON", "no", "false", "auto"}) {
    set(wrong);
    CHECK(test::outcome_of([] { (void)env_flag(kVariable); }) == "kInvalidArgument");
  }
  set("");
}
