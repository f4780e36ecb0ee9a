#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "open/shard_index.hpp"
#include "safetensors/shard_index.hpp"
#include "support.hpp"

#if defined(__linux__)
#include <sys/stat.h>

#include "posix_support.hpp"
#endif

using safetensors::ShardIndex;

namespace {

std::string text_of_error(const std::string& json) {
  return test::error_of([&] { (void)ShardIndex::parse(json); }).what();
}

std::string code_of(const std::string& json) {
  return test::outcome_of([&] { (void)ShardIndex::parse(json); });
}

std::string repeated(std::string_view text, std::size_t count) {
  std::string out;
  out.reserve(text.size() * count);
  for (std::size_t i = 0; i < count; ++i) out += text;
  return out;
}

/// Returns what an index says, or the text and the subject of its error.
std::string said_by(const std::function<ShardIndex()>& read) {
  std::string text;
  try {
    const ShardIndex index = read();
    for (std::size_t i = 0; i < index.size(); ++i) {
      text.append(index.name(i)) += ':' + index.files()[index.file(i)] + '\n';
    }
    return text + std::to_string(index.total_size().value_or(0));
  } catch (const safetensors::Error& error) {
    return std::string(error.what()) + '|' + error.subject();
  }
}

/// Returns an index of `count` tensors with different names. `file` makes the text of each value.
std::string map_of(std::size_t count, const std::function<std::string(std::size_t)>& file) {
  std::string out = R"({"weight_map":{)";
  for (std::size_t i = 0; i < count; ++i) {
    if (i != 0) out += ',';
    out += '"' + std::to_string(i) + "\":\"" + file(i) + '"';
  }
  return out + "}}";
}

}  // namespace

TEST_CASE("names, files and total size of an index") {
  const ShardIndex index = ShardIndex::parse(R"({
    "metadata": {"total_size": 123, "more": {"total_size": 4}},
    "weight_map": {"c": "sub/2.safetensors", "a": "1.safetensors", "b\n": "sub/2.safetensors"},
    "others": [{"weight_map": {"d": "x"}}, NaN, 1e99, -0]
  })");
  CHECK(index.files() == std::vector<std::string>{"1.safetensors", "sub/2.safetensors"});
  REQUIRE(index.size() == 3);
  const auto place = [&](std::size_t i) { return std::pair(index.name(i), index.file(i)); };
  CHECK(place(0) == std::pair(std::string_view("a"), std::size_t{0}));
  CHECK(place(1) == std::pair(std::string_view("b\n"), std::size_t{1}));
  CHECK(place(2) == std::pair(std::string_view("c"), std::size_t{1}));
  CHECK(index.total_size() == 123U);
}

TEST_CASE("\"./\" before a path is no part of the file's name") {
  const ShardIndex index =
      ShardIndex::parse(R"({"weight_map": {"a": "./1", "b": "1", "c": "././d/2"}})");
  CHECK(index.files() == std::vector<std::string>{"1", "d/2"});
  CHECK(code_of(R"({"weight_map": {"a": "./"}})") == "kInvalidHeaderJson");
  CHECK(code_of(R"({"weight_map": {"a": "./../x"}})") == "kInvalidHeaderJson");
  CHECK(code_of(R"({"weight_map": {"a": ".//x"}})") == "kInvalidHeaderJson");
}

TEST_CASE("a total size that is not an unsigned integer is ignored") {
  for (const char* const value : {"1.5", "-1", "\"1\"", "[1]", "18446744073709551616", "null"}) {
    CAPTURE(value);
    const std::string json =
        std::string(R"({"weight_map": {}, "metadata": {"total_size": )") + value + "}}";
    CHECK(!ShardIndex::parse(json).total_size());
  }
  CHECK(!ShardIndex::parse(R"({"total_size": 1, "weight_map": {}})").total_size());
}

TEST_CASE("a byte order mark is skipped") {
  CHECK(ShardIndex::parse("\xEF\xBB\xBF{\"weight_map\":{}}").size() == 0);
}

TEST_CASE("an invalid index is refused with a reason") {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "is not JSON: The document is empty"},
      {"\xFF", "is not JSON: not UTF-8 (at byte 0)"},
      {R"({"weight_map": {}} {})", "is not JSON"},
      {std::string("{\"weight_map\": {}}\0", 19), "is not JSON: something follows the object"},
      {repeated("[", 200'000), "is not JSON: nested deeper than 127 levels"},
      {"[]", "has no object `weight_map`"},
      {R"([{"weight_map": {"a": "b"}}])", "has no object `weight_map`"},
      {R"({"x": {"weight_map": {"a": "b"}}})", "has no object `weight_map`"},
      {R"({"weight_map": ["a"]})", "has no object `weight_map`"},
      {R"({"weight_map": {}, "weight_map": {}})", "has two objects `weight_map`"},
      {R"({"weight_map": {"a": 12}})", "names no file for tensor 'a', but 12"},
      {R"({"weight_map": {"a": {"b": "c"}}})", "names no file for tensor 'a', but an object"},
      {R"({"weight_map": {"a": "\ud800"}})", "is not JSON"},
      {R"({"weight_map": {"a": "\udc00"}})", "is not JSON"},
      {R"({"weight_map": {"\udc00": "a"}})", "is not JSON"},
      {R"({"weight_map": {"a": "b\u0000"}})", "puts tensor 'a' into 'b\\u0000': no file can have"},
  };
  for (const auto& [json, wanted] : cases) {
    CAPTURE(json.substr(0, 99));
    CHECK(text_of_error(json).starts_with("the index " + wanted));
    CHECK(code_of(json) == "kInvalidHeaderJson");
  }
}

TEST_CASE("a tensor that occurs twice is refused, in the same file or another") {
  for (const char* const file : {"x", "y"}) {
    const std::string json =
        std::string(R"({"weight_map": {"a": "x", "b": "z", "a": ")") + file + "\"}}";
    CHECK(code_of(json) == "kDuplicateName");
    CHECK(text_of_error(json) ==
          std::string("the index puts tensor 'a' into two files: 'x' and '") + file + "'");
  }
}

TEST_CASE("files must lie below the index") {
  const auto outcome = [](const std::string& path) {
    return code_of(R"({"weight_map": {"a": ")" + path + "\"}}");
  };
  for (const char* const path : {"a", "a/b", "./a", "a//b", "...", "a..b", "..a/b", ".hidden"}) {
    CAPTURE(path);
    CHECK(outcome(path) == "ok");
  }
  for (const char* const path :
       {"", ".", "./.", "..", "../a", "a/../b", "a/..", "/a", "//a/b", "C:a", "C:/a", R"(\\a)",
        R"(\\\\host\\share)", R"(..\\a)", R"(a\\..\\..\\b)"}) {
    CAPTURE(path);
    CHECK(outcome(path) == "kInvalidHeaderJson");
  }
}

TEST_CASE("a file's name has at most 4,096 bytes, a tensor's any number") {
  const auto index = [](std::size_t tensor, std::size_t file) {
    return R"({"weight_map": {")" + std::string(tensor, 't') + R"(": ")" + std::string(file, 'f') +
           "\"}}";
  };
  CHECK(code_of(index(1, 4096)) == "ok");
  CHECK(code_of(index(100'000, 1)) == "ok");
  const std::string error = text_of_error(index(1, 4097));
  CHECK(error.find("a name of 4,097 bytes, the limit is 4,096") != std::string::npos);
}

TEST_CASE("more files than a model can have are refused") {
  const auto own_file = [](std::size_t i) { return std::to_string(i); };
  CHECK(ShardIndex::parse(map_of(safetensors::kMaxIndexFiles, own_file)).files().size() ==
        safetensors::kMaxIndexFiles);
  CHECK(text_of_error(map_of(safetensors::kMaxIndexFiles + 1, own_file))
            .starts_with("the index names more than 100,000 files"));
}

TEST_CASE("errors of reading name the file; an index that is too large is not read to its end") {
  const test::TempDir folder;
  const test::fs::path path = folder / "model.safetensors.index.json";
  test::write_text(path, R"({"weight_map": {"a": "b"}})");
  CHECK(ShardIndex::read(path).name(0) == "a");
  test::write_text(path, "[]");
  const auto error = test::error_of([&] { (void)ShardIndex::read(path); });
  CHECK(std::string(error.what()) ==
        "the index has no object `weight_map` (in " + path.string() + ")");
  CHECK(error.path() == path);
  test::fs::resize_file(path, std::uint64_t{1} << 36);
  CHECK(test::outcome_of([&] { (void)ShardIndex::read(path); }) == "kHeaderTooLarge");

  const auto parsed = test::error_of([] { (void)ShardIndex::parse("[]", "other.json"); });
  CHECK(parsed.path() == "other.json");
}

TEST_CASE("the limit on the size of an index holds for texts, too") {
  std::string text = R"({"weight_map": {}})";
  text.resize(safetensors::kMaxIndexSize, ' ');
  CHECK(ShardIndex::parse(text).size() == 0);
  text += ' ';
  CHECK(text_of_error(text) == "the index is larger than 100000000 bytes");
}

TEST_CASE("a large index is read in blocks as if it were in memory") {
  const test::TempDir folder;
  const test::fs::path path = folder / "model.safetensors.index.json";
  const auto one_of_ten = [](std::size_t i) { return "f" + std::to_string(i / 5000); };
  const std::string plain = map_of(100'000, one_of_ten);
  const auto inserted = [&](std::size_t entry, const std::string& name, const std::string& file) {
    std::string text = plain;
    const std::string before = '"' + std::to_string(entry) + "\":";
    return text.insert(text.find(before), '"' + name + "\":\"" + file + "\",");
  };
  std::vector<std::string> texts = {
      plain,
      plain + repeated(" \n", 150'000),
      plain + repeated(" \n", 150'000) + "}",
      plain + repeated("\xC3\xA9", 150'000),
      plain.substr(0, plain.size() - 1),
      plain.substr(0, plain.size() / 2),
      "\xEF\xBB\xBF" + plain,
      inserted(90'000, R"(a\u0062)", "f"),
      inserted(90'000, "\xC3", "f"),
      inserted(90'000, "a", "../f"),
      inserted(90'000, "7", "f"),
      inserted(90'000, std::string(safetensors::kLongestPlainEntry, 'n'), "f"),
      inserted(90'000, std::string(300'000, 'n'), "f"),
      inserted(90'000, std::string(300'000, 'n'), std::string(5000, 'f')),
      inserted(90'000, repeated("\xC3\xA9", 150'000), "f"),
      R"({"metadata": {"total_size": 7, "x": ")" + repeated("y", 150'000) + R"("}, )" +
          plain.substr(1),
  };
  // A character of several bytes at each place of a block's end.
  for (std::size_t shift = 0; shift < 5; ++shift) {
    texts.push_back(R"({"metadata": {"a": ")" + std::string(shift, 'a') + R"("}, )" +
                    map_of(60'000, [](auto) { return "\xF0\x9F\x99\x82\xE2\x82\xAC"; }).substr(1));
  }
  for (const std::string& text : texts) {
    CAPTURE(text.substr(0, 40));
    REQUIRE(text.size() > (1U << 20) / 2);
    test::write_text(path, text);
    CHECK((said_by([&] { return ShardIndex::read(path); }) ==
           said_by([&] { return ShardIndex::parse(text, path); })));
  }
}

TEST_CASE("the files of a large index are seen once each, also if the rest is damaged") {
  const test::TempDir folder;
  const test::fs::path path = folder / "model.safetensors.index.json";
  std::vector<std::string> seen;
  const auto read = [&](const std::string& text) {
    seen.clear();
    test::write_text(path, text);
    return test::outcome_of([&] {
      (void)safetensors::read_index(path, [&](const std::string& file) { seen.push_back(file); });
    });
  };
  const auto files = [](std::size_t i) {
    const std::string names[] = {"z", "./b", "../c", "b", "x/../../d", "/e", ""};
    return names[i % 7];
  };
  const std::vector<std::string> expected = {"z", "b"};
  CHECK(read(map_of(100'000, files)) == "kInvalidHeaderJson");
  CHECK(seen == expected);
  CHECK(read(map_of(100'000, files) + "}") == "kInvalidHeaderJson");
  CHECK(seen == expected);
  CHECK(read(map_of(100'000, [](auto i) { return i % 2 == 0 ? "z" : "./b"; })) == "ok");
  CHECK(seen == expected);
  CHECK(read(map_of(100, files)) == "kInvalidHeaderJson");
  CHECK(seen.empty());  // small
  // Wherever a block ends in a character, the blocks after it are read.
  const std::string symbols = "\xF0\x9F\x99\x82\xE2\x82\xAC";
  for (std::size_t shift = 0; shift < 5; ++shift) {
    const auto last_is_other = [&](std::size_t i) { return i < 59'999 ? symbols : "last"; };
    CHECK(read(R"({"metadata": {"a": ")" + std::string(shift, 'a') + R"("}, )" +
               map_of(60'000, last_is_other).substr(1)) == "ok");
    CHECK(seen == std::vector<std::string>{symbols, "last"});
  }
}

#if defined(__linux__)
TEST_CASE("an index that is not a regular file is refused at once") {
  const test::TempDir folder;
  REQUIRE(::mkfifo((folder / "pipe.index.json").c_str(), 0600) == 0);
  CHECK(test::outcome_of([&] { (void)ShardIndex::read(folder / "pipe.index.json"); }) ==
        "kNotRegularFile");
  CHECK(test::outcome_of([] { (void)ShardIndex::read("/dev/zero"); }) == "kNotRegularFile");
}

#if !defined(TEST_SANITIZED)
TEST_CASE("time is linear in the index" * doctest::test_suite("timed")) {
  const std::vector<std::pair<std::string, std::function<std::string(std::size_t)>>> shapes = {
      {"tensors of a file", [](std::size_t n) { return map_of(n, [](auto) { return "f"; }); }},
      {"files",
       [](std::size_t n) { return map_of(n / 4, [](auto i) { return std::to_string(i); }); }},
      {"objects outside", [](std::size_t n) { return "{\"a\":[" + repeated("{},", 4 * n); }},
      {"one name", [](std::size_t n) { return "{\"weight_map\":{" + repeated("\"\":\"f\",", n); }},
      {"long name", [](std::size_t n) { return "{\"" + repeated("\\n", 8 * n); }},
  };
  for (const auto& [name, make] : shapes) {
    const auto seconds = [&](std::size_t n) {
      const std::string json = make(n);
      return test::least_cpu_seconds([&] { (void)code_of(json); });
    };
    const double small = seconds(50'000);
    const double large = seconds(400'000);
    CAPTURE(name);
    CAPTURE(small);
    CAPTURE(large);
    // Eight times the work. Sorting and caches cost a little more, quadratic time 64 times.
    CHECK(large < 28 * small + 0.005);
  }
}
#endif
#endif
