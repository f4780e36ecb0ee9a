// The content of a switch: what is written is read again, and nothing else is believed.
#include <doctest/doctest.h>

#include <string>
#include <string_view>
#include <vector>

#include "safetensors/detail/folder.hpp"
#include "support.hpp"
#include "write/switch_record.hpp"

using safetensors::parse_switch;
using safetensors::SwitchRecord;
using safetensors::text_of_switch;

namespace {

SwitchRecord record_of(const std::string& name) {
  return {.name = name,
          .shards = 2,
          .old = {{name + ".safetensors.index.json", {812, -5, 271}}, {name + ".safetensors", {}}},
          .inodes = {301, 302, 18446744073709551615U},
          .companions = {"config.json", "LICENSE\xFF\xC3\xA4"}};
}

std::string refused(std::string_view text, std::string_view stem = "model") {
  return test::error_of([&] { (void)parse_switch(text, stem, "folder/switch"); }).what();
}

}  // namespace

TEST_CASE("a record survives") {
  const std::string long_name = std::string(200, 'n') + "\xFF";
  for (const std::string& name : {std::string("model"), std::string("m\xFF\xC3\xA4"), long_name}) {
    const SwitchRecord record = record_of(name);
    const std::string stem = safetensors::detail::OwnName::stem_of(name);
    const auto found = parse_switch(text_of_switch(record), stem, "switch");
    REQUIRE(found);
    CHECK(found->name == name);
    CHECK(found->shards == record.shards);
    CHECK(found->old == record.old);
    CHECK(found->inodes == record.inodes);
    CHECK(found->companions == record.companions);
  }
  CHECK(text_of_switch({.name = "model",
                        .shards = 1,
                        .old = {{"model.safetensors", {1, 2, 3}}},
                        .inodes = {4},
                        .companions = {}}) ==
        R"({"shards": 1, "old": {"model.safetensors": [1, 2, 3]}, "inodes": [4], )"
        R"("companions": []})");
}

TEST_CASE("every beginning of a record is incomplete") {
  const std::string name(200, 'n');
  const std::string text = text_of_switch(record_of(name));
  const std::string stem = safetensors::detail::OwnName::stem_of(name);
  for (std::size_t size = 0; size < text.size(); ++size) {
    const std::vector<char> exact(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(size));
    CHECK_FALSE(parse_switch({exact.data(), exact.size()}, stem, "switch").has_value());
  }
}

TEST_CASE("other content is refused") {
  CHECK(refused("5") == "it is not a switch file, so it is not followed (in folder/switch)");
  for (const char* text : {"[]", "{}", R"({"x": 1})", R"({"shards": 1, "old": {}})"}) {
    CHECK(refused(text).starts_with("it is not a switch file"));
  }
  for (const char* shards : {"0", "-1", "100000", "1.0", "\"1\"", "null", "[", "{", "Infinity"}) {
    CHECK(refused(std::string("{\"shards\": ") + shards).starts_with("it has a bad number of"));
  }
  const std::string rest = R"(, "inodes": [1], "companions": []})";
  const auto with_old = [&](const std::string& old) {
    return refused(R"({"shards": 1, "old": )" + old + rest);
  };
  CHECK(with_old("[]").starts_with("its list of old files is not an object"));
  for (const char* found :
       {"null", "1", "[]", "[1, 2]", "[1, 2, 3, 4]", "[1, 2.0, 3]", "[[", "{}"}) {
    CHECK(with_old(std::string(R"({"model.safetensors": )") + found + "}")
              .starts_with("it has a bad size, time or inode of model.safetensors"));
  }
  CHECK(with_old(R"({"../x": [1, 2, 3]})")
            .starts_with("it names '../x', which is no file of `model`"));
  CHECK(with_old(R"({"\udc00": [1, 2, 3]})").find("which is no file") != std::string::npos);
  CHECK(with_old(R"({"model.safetensors": [1, 2, 3], "model.safetensors": [1, 2, 3]})")
            .starts_with("the JSON has the key 'model.safetensors' twice in one object"));
  const std::string start = R"({"shards": 1, "old": {}, "inodes": )";
  for (const char* inodes : {"[]", "1", "[1, 2]", "[\"1\"]", "[-1]"}) {
    CHECK(refused(start + inodes + R"(, "companions": []})")
              .starts_with("its list of inodes is not one of 1 numbers"));
  }
  CHECK(refused(start + "[[").starts_with("its list of inodes is not one of numbers"));
  CHECK(refused(start + R"([1], "companions": {})").starts_with("its list of companions is not"));
  for (const char* file : {"1", "null", "[", R"("../config.json")", R"("model.safetensors")"}) {
    CHECK(refused(start + R"([1], "companions": [)" + file).find("no companion") !=
          std::string::npos);
  }
  CHECK(refused(start + R"([1], "companions": [], "name": "other"})")
            .starts_with("it is about 'other', and its folder about 'model'"));
  CHECK(refused(start + R"([1], "companions": [], "name": 5})").starts_with("it is about '5'"));
}

TEST_CASE("a switch that no recovery would read is not written") {
  // Each byte of these names takes six in JSON.
  safetensors::SwitchRecord record{.name = "model", .shards = 1, .inodes = {1}};
  const std::string rest(240, '\x01');
  for (std::size_t i = 0; i < 40'000; ++i)
    record.old.emplace_back(std::to_string(i) + rest, safetensors::FileIdentity());
  REQUIRE(text_of_switch(record).size() < safetensors::kMaxSwitchSize);
  for (std::size_t i = 0; i < 10'000; ++i)
    record.old.emplace_back(rest + std::to_string(i), safetensors::FileIdentity());
  CHECK(test::outcome_of([&] { (void)text_of_switch(record); }) == "kInvalidArgument");
}
