// The fast reader of headers agrees with the complete one wherever it accepts.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "two_readers.hpp"

using test::by_the_reader;
using test::plain;

namespace {

const std::string kMetadata = R"("__metadata__":{"format":"pt","empty":""})";
const std::string kFirst = R"("a.b":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]})";
const std::string kSecond = R"("b":{"dtype":"I64","shape":[],"data_offsets":[8,16]})";
const std::string kWhole = "{" + kMetadata + "," + kFirst + "," + kSecond + "}";

}  // namespace

TEST_CASE("headers of common writers are plain") {
  const std::vector<std::string> cases = {
      kWhole,
      "{" + kFirst + "," + kSecond + "," + kMetadata + "}",
      R"({"a.b": {"dtype": "F32", "shape": [2, 1], "data_offsets": [0, 8]}, )" + kSecond + "}",
      R"({"a.b":{"data_offsets":[0,8],"dtype":"F32","shape":[2,1]},)" + kSecond + "}",
      R"({"__metadata__":{},)" + kFirst + "," + kSecond + "}",
      "{\"w\xC3\xA9ight\x7F\":{\"dtype\":\"U8\",\"shape\":[16],\"data_offsets\":[0,16]}}",
      // Names of every length to 40, across the eight bytes that are looked at together.
      R"({")" + std::string(37, 'n') + R"(":{"dtype":"U8","shape":[16],"data_offsets":[0,16]}})",
  };
  for (const std::string& json : cases) {
    CAPTURE(json);
    CHECK(plain(json, 16) != "not plain");
    CHECK(plain(json, 16) == by_the_reader(json, 16));
  }
  CHECK(plain("{}", 0).empty());
  for (std::size_t length = 0; length < 40; ++length) {
    const std::string json = R"({")" + std::string(length, 'n') +
                             R"(":{"dtype":"U8","shape":[16],"data_offsets":[0,16]}})";
    CHECK(plain(json, 16) == std::string(length, 'n') + " U8 [16 ] 0 16\n");
  }
}

TEST_CASE("headers that are not plain are left to the JSON reader") {
  const auto entry = [](const std::string& fields) { return R"({"a":{)" + fields + "}}"; };
  const std::vector<std::string> cases = {
      "",
      "{",
      "{ }",
      "[]",
      "{}{}",
      "{},",
      "{} ",
      kWhole + "}",
      R"({"\u0061":{"dtype":"U8","shape":[],"data_offsets":[0,1]}})",
      R"({"__metadata__":null})",
      "{" + kMetadata + "," + kMetadata + "}",
      entry(R"("dtype":"U8","shape":[],"data_offsets":[0,1],"x":1)"),
      entry(R"("dtype":"U8","shape":[],"shape":[],"data_offsets":[0,1])"),
      entry(R"("dtype":"U8","shape":[])"),
      entry(R"("dtype":"U9","shape":[],"data_offsets":[0,1])"),
      entry(R"("dtype":"U8","shape":[01],"data_offsets":[0,1])"),
      entry(R"("dtype":"U8","shape":[-1],"data_offsets":[0,1])"),
      entry(R"("dtype":"U8","shape":[1.0],"data_offsets":[0,1])"),
      entry(R"("dtype":"U8","shape":[1,],"data_offsets":[0,1])"),
      entry(R"("dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,1])"),
      entry(R"("dtype":"U8","shape":[],"data_offsets":[0,1,2])"),
      entry(R"("dtype":"U8","shape":[],"data_offsets":[0])"),
      entry("\"dtype\":\"U8\",\t\"shape\":[],\"data_offsets\":[0,1]"),
      entry(R"("dtype":"U8",  "shape":[],"data_offsets":[0,1])"),
  };
  for (const std::string& json : cases) {
    CAPTURE(json);
    CHECK(plain(json, 1) == "not plain");
  }
}

TEST_CASE("the plain and the JSON reader agree on damaged headers") {
  std::size_t taken = 0;
  const auto check = [&](const std::string& json) {
    const std::string found = plain(json, 16);
    if (found == "not plain") return;
    ++taken;
    CAPTURE(json);
    REQUIRE(found == by_the_reader(json, 16));
  };
  for (std::size_t i = 0; i < kWhole.size(); ++i) {
    check(kWhole.substr(0, i));
    check(kWhole.substr(0, i) + kWhole.substr(i + 1));
    std::string json = kWhole;
    for (int byte = 0; byte < 256; ++byte) {
      json[i] = static_cast<char>(byte);
      check(json);
    }
  }
  CHECK(taken > 1000);
}
