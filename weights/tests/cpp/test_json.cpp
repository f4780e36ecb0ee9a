// The JSON parser, with untrusted documents.
#include <doctest/doctest.h>

#include <cmath>
#include <string>

#include "common/json.hpp"
#include "safetensors/weights/error.hpp"
#include "support.hpp"

using safetensors::weights::Duplicates;
using safetensors::weights::Errc;
using safetensors::weights::Json;
using safetensors::weights::Limits;
using safetensors::weights::parse_json;

namespace {

Json parse(std::string_view text, Duplicates duplicates = Duplicates::last_counts) {
  return parse_json(text, "f.json", duplicates, {});
}

Errc code_of(std::string_view text, Duplicates duplicates = Duplicates::last_counts,
             const Limits& limits = {}) {
  try {
    (void)parse_json(text, "f.json", duplicates, limits);
  } catch (const safetensors::weights::WeightsError& error) {
    return error.code();
  }
  return {};
}

}  // namespace

TEST_CASE("values equal those of the text") {
  const Json json = parse(R"({"a": [1, -2, 2.0, 2.5, "x\u00fc", true, null, {}], "b": 1e300})");
  const Json::Array& a = *json.find("a")->as_array();
  CHECK(a[0].as_integer() == 1);
  CHECK(a[1].as_integer() == -2);
  CHECK(a[2].as_integer() == 2);
  CHECK_FALSE(a[3].as_integer());
  CHECK(a[3].as_number() == 2.5);
  CHECK(*a[4].as_string() == "x\xC3\xBC");
  CHECK(*a[5].as_bool());
  CHECK_FALSE(a[5].as_integer());
  CHECK(a[6].is_null());
  CHECK(a[7].as_object() != nullptr);
  CHECK_FALSE(json.find("b")->as_integer());
  CHECK(json.find("c") == nullptr);
  CHECK(a[0].find("c") == nullptr);
  CHECK(a[4].kind() == "a string");
}

TEST_CASE("numbers that neither 64 bits nor a double represent exactly are not integers") {
  CHECK(parse("9223372036854775807").as_integer() == INT64_MAX);
  CHECK(parse("-9223372036854775808").as_integer() == INT64_MIN);
  CHECK_FALSE(parse("9223372036854775808").as_integer());
  CHECK_FALSE(parse("1e18").as_integer());
  CHECK(parse("1e15").as_integer() == 1000000000000000);
}

TEST_CASE("doubles are the nearest") {
  CHECK(parse("1e-05").as_number() == 1e-05);
  CHECK(parse("0.1").as_number() == 0.1);
  CHECK(parse("9.999999747378752e-06").as_number() == 9.999999747378752e-06);
  CHECK(parse("0e91").as_number() == 0);
  CHECK(parse("-0e-5").as_number() == 0);
  CHECK(code_of("1e999") == Errc::json);
}

TEST_CASE("infinities and NaN") {
  CHECK(std::isinf(*parse(R"({"__float__": "Infinity"})").as_number()));
  CHECK(*parse(R"({"__float__": "-Infinity"})").as_number() < 0);
  CHECK(std::isnan(*parse(R"({"__float__": "NaN"})").as_number()));
  CHECK_FALSE(parse(R"({"__float__": "1"})").as_number());
  CHECK(std::isnan(*parse("NaN").as_number()));
}

TEST_CASE("text that is not JSON is refused") {
  for (const char* text : {"", "{", "[1,]", "{\"a\" 1}", "tru", "1 2", "\"\xFF\"", "{\"a\":1}x",
                           "'a'", "\"\\ud800\"", "\xEF\xBB\xBF{}", "01"}) {
    CAPTURE(text);
    CHECK(code_of(text) == Errc::json);
  }
}

TEST_CASE("a name that occurs twice") {
  CHECK(parse(R"({"a": 1, "a": 2})").find("a")->as_integer() == 2);
  CHECK(code_of(R"({"a": 1, "a": 2})", Duplicates::refused) == Errc::duplicate);
  CHECK(code_of(R"({"a": {"b": 1, "\u0062": 2}})", Duplicates::refused) == Errc::duplicate);
  CHECK(code_of(R"({"a": {"b": 1}, "b": 2})", Duplicates::refused) == Errc{});
}

TEST_CASE("depth and number of values are limited") {
  const auto nested = [](std::size_t depth) {
    return std::string(depth, '[') + std::string(depth, ']');
  };
  CHECK(code_of(nested(128)) == Errc{});
  CHECK(code_of(nested(129)) == Errc::limit);
  CHECK(code_of(std::string(10'000'000, '[')) == Errc::limit);
  CHECK(code_of(nested(3), Duplicates::refused, Limits{.json_depth = 2}) == Errc::limit);
  std::string many = "[0";
  for (int i = 0; i < 4'000'000; ++i) many += ",0";
  CHECK(code_of(many + "]") == Errc::limit);
}

TEST_CASE("a file too large is not read") {
  const test::TempDir folder;
  test::write_text(folder / "f.json", "[1, 2, 3]");
  CHECK(safetensors::weights::read_json(safetensors::weights::Files(), folder / "f.json",
                                        Duplicates::refused, {})
            .as_array()
            ->size() == 3);
  try {
    (void)safetensors::weights::read_json(safetensors::weights::Files(), folder / "f.json",
                                          Duplicates::refused, Limits{.json_nbytes = 8});
    FAIL("it was read");
  } catch (const safetensors::weights::WeightsError& error) {
    CHECK(error.code() == Errc::limit);
    CHECK(error.path() == folder / "f.json");
  }
}
