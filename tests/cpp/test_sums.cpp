#include <doctest/doctest.h>

#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "safetensors/save.hpp"
#include "safetensors/sums.hpp"
#include "support.hpp"

using safetensors::Digest;
using safetensors::DigestAlgorithm;
using safetensors::FileSums;
using safetensors::Sums;
using safetensors::TensorSums;

namespace {

std::string hex(char digit, std::size_t count) { return std::string(count, digit); }

Digest xxh3(char digit) { return Digest::parse("xxh3-128:" + hex(digit, 32)); }
Digest sha256(char digit) { return Digest::parse("sha256:" + hex(digit, 64)); }

/// Returns sums with two files and three tensors.
Sums example() {
  static const std::vector<std::uint64_t> blocks = {1, 0x0102030405060708U};
  Sums sums;
  sums.add_file({"sub/m.safetensors", 1234, sha256('7'), sha256('8')});
  sums.add_file({"a.safetensors", 5, xxh3('6')});
  sums.add_tensor({.name = "a", .file = 0, .xxh3_128 = xxh3('a'), .blocks = blocks});
  sums.add_tensor({.name = "b\"\n\x7f\xC3\xA9\xE4\xB8\xAD\xF0\x9F\x98\x80",
                   .file = 1,
                   .xxh3_128 = xxh3('b'),
                   .sha256 = sha256('c'),
                   .blocks = std::span<const std::uint64_t>()});
  sums.add_tensor({.name = "c", .file = 0, .xxh3_128 = xxh3('d')});
  return sums;
}

std::string refused(const std::string& json) {
  const std::string text = test::error_of([&] { (void)Sums::parse(json); }).what();
  CHECK(text.starts_with("Invalid sums: "));
  return text;
}

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  const std::size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

std::string repeated(std::string_view text, std::size_t count) {
  std::string result;
  result.reserve(text.size() * count);
  while (count-- != 0) result += text;
  return result;
}

}  // namespace

TEST_CASE("sums are read as they were written") {
  const std::string json = example().json();
  CHECK(json.starts_with(
      R"({"block_size":4194304,"files":{"a.safetensors":{"header":"xxh3-128:6666)"));
  CHECK(json.find(R"("sha256":")" + hex('8', 64) + R"(","size":1234})") != std::string::npos);
  CHECK(json.find(R"("b\"\n\u007f\u00e9\u4e2d\ud83d\ude00":{"blocks":"","digest":["sha256:ccc)") !=
        std::string::npos);
  CHECK(json.find(R"({"blocks":"AQAAAAAAAAAIBwYFBAMCAQ==",)") != std::string::npos);
  CHECK(json.ends_with("\"]}\n"));
  const Sums read = Sums::parse(json);
  CHECK(read.json() == json);
  CHECK(read.size() == 3);
  const TensorSums a = read.find("a").value();
  CHECK(a.xxh3_128 == xxh3('a'));
  CHECK_FALSE(a.sha256);
  CHECK(a.blocks.value()[1] == 0x0102030405060708U);
  CHECK(read.files()[a.file].path == "sub/m.safetensors");
  CHECK(read.files()[a.file].sha256 == sha256('8'));
  CHECK(read.find("c")->file == a.file);
  CHECK_FALSE(read.find("c")->blocks);
  CHECK_FALSE(read.find("d"));
  CHECK_FALSE(read.find(""));
  CHECK(read.has_whole(DigestAlgorithm::kXxh3_128));
  CHECK_FALSE(read.has_whole(DigestAlgorithm::kSha256));
  CHECK(read.whole_text(DigestAlgorithm::kXxh3_128).starts_with("\"a\" " + hex('a', 32) + "\n"));
}

TEST_CASE("sums of nothing, and with SHA-256 of the model") {
  const std::string empty = Sums().json(sha256('0'));
  CHECK(Sums::parse(empty).whole_sha256() == sha256('0'));
  CHECK(Sums::parse(empty).json(sha256('0')) == empty);
}

TEST_CASE("tensors are added in order, with a digest and a file") {
  Sums sums = example();
  for (const TensorSums& bad :
       {TensorSums{.name = "c", .file = 0, .xxh3_128 = xxh3('1')},
        TensorSums{.name = "b", .file = 0, .xxh3_128 = xxh3('1')}, TensorSums{"d", 0},
        TensorSums{.name = "d", .file = 2, .xxh3_128 = xxh3('1')},
        TensorSums{.name = "\xFF", .file = 0, .xxh3_128 = xxh3('1')}}) {
    CHECK(test::outcome_of([&] { sums.add_tensor(bad); }) == "kInvalidArgument");
  }
}

TEST_CASE("what is no file of sums is refused") {
  const std::string good = example().json();
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "not JSON"},
      {"[]", "the content is not an object"},
      {"{}", "`format` is not `safetensors-sums`"},
      {good + "x", "not JSON"},
      {good.substr(0, good.size() - 3), "not JSON"},
      {"\xFF", "not UTF-8"},
      {"\xEF\xBB\xBF" + good, "not JSON"},
      {replaced(good, "\"version\":1", "\"version\":2"), "version 2 is unknown"},
      {replaced(good, "\"version\":1", "\"version\":1.0"), "version 1.0 is unknown"},
      {replaced(good, "4194304", "4194305"), "`block_size` is 4194305 instead of 4194304"},
      {replaced(good, "sub/m.safetensors", "../m.safetensors"), "is not a file below the folder"},
      {replaced(good, "sub/m.safetensors", std::string(4097, 'x')), "has more than 4,096 bytes"},
      {replaced(good, "sub/m.safetensors", "sub/n.safetensors"), "its file is not in `files`"},
      {replaced(good, "\"size\":5", "\"size\":-5"), "has no size"},
      {replaced(good, "\"size\":5", "\"size\":9223372036854775808"), "has no size"},
      {replaced(good, "\"header\":\"xxh3-128:6", "\"header\":\"xxh3-128:G"), "is not a digest"},
      {replaced(good, "AQAAAAAAAAAIBwYFBAMCAQ==", "AQAAAAAAAAAIBwYFBAMCAR=="), "are not base64"},
      {replaced(good, "AQAAAAAAAAAIBwYFBAMCAQ==", "AQAAAAAAAAAIBwYFBAMCAQ="), "are not base64"},
      {replaced(good, "AQAAAAAAAAAIBwYFBAMCAQ==", "AQAAAAAAAAAIBwYFBAMC"), "8 bytes each"},
      {replaced(good, "xxh3-128:aa", "xxh3-128:ab"), "`whole` is not the digest"},
      {replaced(good, "\"whole\":[", "\"whole\":[\"sha256:" + hex('1', 64) + "\","),
       "`whole` is not the digest"},
      {replaced(good, "{\"block_size\"", "{\"x\":1,\"x\":2,\"block_size\""), "\"x\" occurs twice"},
      {replaced(good, "\"c\":{", "\"a\":{"), "\"a\" occurs twice"},
      {replaced(good, "\"c\":{", "\"\\ud800\":{"), "surrogate pair"},
  };
  for (const auto& [json, said] : cases) {
    CAPTURE(json);
    CHECK(refused(json).find(said) != std::string::npos);
  }
}

TEST_CASE("other keys are ignored, whatever they hold") {
  const std::string good = example().json();
  const std::string more = R"("x":{"tensors":[{"file":[1e9,-0.5,true]}],"y":null,"whole":"z"},)";
  for (const char* const before : {"\"block_size\"", "\"header\"", "\"digest\"", "\"version\""}) {
    CAPTURE(before);
    CHECK(Sums::parse(replaced(good, before, more + before)).json() == good);
  }
  CHECK(refused(replaced(good, "\"version\"", R"("x":{"y":1,"y":2},"version")"))
            .find("\"y\" occurs twice") != std::string::npos);
}

TEST_CASE("long hostile sums are refused") {
  constexpr std::size_t kCount = 1'000'000;
  (void)refused(repeated("{", kCount));
  (void)refused(repeated("[", kCount));
  (void)refused(repeated("{\"a\":", kCount));
  (void)refused(repeated("[[]],", kCount));
  (void)refused("{\"" + hex('k', kCount) + "\":1}");
  (void)refused("{\"files\":{" + repeated("\"a\":{},", kCount) + "\"b\":{}}}");
  (void)refused("{\"tensors\":{" + repeated("\"a\":{\"file\":\"f\",\"digest\":[]},", kCount));
  (void)refused("{\"whole\":[" + repeated("\"\",", kCount));
  (void)refused("{" + repeated("\"a\":1,", kCount) + "\"b\":1}");
}

TEST_CASE("the path of sums") {
  using safetensors::sums_path;
  CHECK(sums_path("d/m.safetensors") == "d/m.sums.json");
  CHECK(sums_path("d/m.safetensors.index.json") == "d/m.sums.json");
  CHECK(sums_path("d/m.safetensors.index.fp16.json") == "d/m.fp16.sums.json");
  CHECK(sums_path("m.index.json") == "m.index.sums.json");
  CHECK(sums_path("m.bin") == "m.bin.sums.json");
}

TEST_CASE("where the sums of a file may be") {
  using Paths = std::vector<std::filesystem::path>;
  using safetensors::sums_paths;
  CHECK(sums_paths("d/m.safetensors") == Paths{"d/m.sums.json", "d/model.sums.json"});
  CHECK(sums_paths("d/model.safetensors") == Paths{"d/model.sums.json"});
  CHECK(sums_paths("d/m-00001-of-00002.safetensors") ==
        Paths{"d/m-00001-of-00002.sums.json", "d/m.sums.json", "d/model.sums.json"});
  CHECK(sums_paths("model-00001-of-00002.fp16.safetensors") ==
        Paths{"model-00001-of-00002.fp16.sums.json", "model.fp16.sums.json", "model.sums.json"});
  CHECK(sums_paths("shard-0-m-00001-of-00002.safetensors") ==
        Paths{"shard-0-m-00001-of-00002.sums.json", "m.sums.json", "model.sums.json"});
  CHECK(sums_paths("weights.00.safetensors") ==
        Paths{"weights.00.sums.json", "weights.sums.json", "model.sums.json"});
}

TEST_CASE("a file that changes loses the sums that it may have") {
  const test::TempDir dir;
  const auto path = [&](const char* name) { return dir.path() / name; };
  for (const char* const file :
       {"m-00001-of-00002.safetensors", "m-00002-of-00002.fp16.safetensors",
        "shard-0-m-00001-of-00002.safetensors", "weights.0.safetensors"}) {
    CAPTURE(file);
    const std::vector<std::filesystem::path> sums = safetensors::sums_paths(path(file));
    REQUIRE(sums.size() == 3);
    for (const std::filesystem::path& each : sums) test::write_text(each, "{}");
    test::write_text(path("other.sums.json"), "{}");
    safetensors::remove_sums(path(file));
    CHECK_FALSE(std::filesystem::exists(sums[0]));
    CHECK_FALSE(std::filesystem::exists(sums[1]));
    CHECK(std::filesystem::exists(sums[2]));  // says nothing about the file
    CHECK(std::filesystem::exists(path("other.sums.json")));
  }
}

TEST_CASE("a shard of `model` loses the sums of the model, whatever they say") {
  const test::TempDir dir;
  for (const char* const name :
       {"model.sums.json", "model-00001-of-00002.sums.json", "other.sums.json"}) {
    test::write_text(dir / name, "no sums");
  }
  safetensors::remove_sums(dir / "model-00001-of-00002.safetensors");
  CHECK(dir.count() == 1);
  CHECK(std::filesystem::exists(dir / "other.sums.json"));
}

TEST_CASE("the sums that a path leads to") {
  using safetensors::find_sums;
  const test::TempDir dir;
  const auto path = [&](const char* name) { return dir.path() / name; };
  CHECK(find_sums(path("x.sums.json")) == path("x.sums.json"));
  CHECK(find_sums(path("x.safetensors")) == path("x.sums.json"));
  for (const char* const file :
       {"m-00001-of-00002.fp16.safetensors", "m-00002-of-00002.fp16.safetensors"}) {
    safetensors::save_file({}, path(file));
  }
  CHECK(find_sums(dir.path()) == path("m.fp16.sums.json"));
  test::write_text(path("model.sums.json"), "{}");
  CHECK(find_sums(dir.path()) == path("model.sums.json"));
  test::write_text(path("m.fp16.sums.json"), "{}");
  CHECK(find_sums(dir.path()) == path("m.fp16.sums.json"));
}
