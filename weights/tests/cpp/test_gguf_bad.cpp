// Damaged and hostile files: those of weights/tests/data/bad, and files too large to store there.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "common/json.hpp"
#include "gguf_support.hpp"

#if defined(__linux__)
#include <sys/resource.h>

#include <fstream>

#include "posix_support.hpp"
#endif

namespace fs = std::filesystem;
using test::gguf_outcome;
using test::le;
using test::MetaType;

namespace {

const fs::path& bad_folder() {
  static const fs::path folder = test::weights_data() / "bad";
  return folder;
}

std::map<std::string, std::string> expected_codes() {
  std::map<std::string, std::string> codes;
  const auto table =
      safetensors::weights::read_json(safetensors::weights::Files(), bad_folder() / "codes.json",
                                      safetensors::weights::Duplicates::refused, {});
  for (const auto& [name, code] : *table.as_object()) {
    if (name.ends_with(".gguf")) codes[name] = *code.as_string();
  }
  return codes;
}

}  // namespace

TEST_CASE("each bad GGUF file is refused with its code") {
  const auto codes = expected_codes();
  const auto manifest =
      safetensors::weights::read_json(safetensors::weights::Files(), bad_folder() / "manifest.json",
                                      safetensors::weights::Duplicates::refused, {});
  std::set<std::string> seen;
  for (const auto& entry : fs::directory_iterator(bad_folder())) {
    if (entry.path().extension() != ".gguf") continue;
    const std::string name = entry.path().filename().string();
    CAPTURE(name);
    REQUIRE(codes.contains(name));
    seen.insert(name);
    const std::string outcome = gguf_outcome(test::read_text(entry.path()));
    CHECK(outcome == codes.at(name));
    const std::string must = *manifest.find(name)->find("must")->as_string();
    if (must == "reject") CHECK(outcome != "ok");
    if (must == "accept") CHECK(outcome == "ok");
  }
  CHECK(seen.size() == codes.size());
  CHECK(seen.size() >= 60);
}

TEST_CASE("arrays a million deep are refused without recursion") {
  constexpr std::size_t kLevels = 1'000'000;
  std::string value;
  value.reserve(kLevels * 12 + 20);
  for (std::size_t i = 0; i < kLevels; ++i) value += le<std::uint32_t>(9) + le<std::uint64_t>(1);
  value += le<std::uint32_t>(0) + le<std::uint64_t>(1) + "x";
  const auto file = test::gguf_with([&](auto& text) { text.item("deep", MetaType::array, value); });
  CHECK(gguf_outcome(file) == "limit");
  safetensors::weights::Limits limits;
  limits.array_depth = UINT32_MAX;  // even then
  CHECK(gguf_outcome(file, limits) == "limit");
}

TEST_CASE("many empty arrays take memory in proportion to the file") {
  std::string value;
  for (int i = 0; i < 100'000; ++i) value += test::gguf_array(9, 0, "");
  CHECK(gguf_outcome(test::gguf_with([&](auto& text) {
          text.item("wide", MetaType::array, test::gguf_array(9, 100'000, value));
        })) == "ok");
}

#if defined(__linux__) && !defined(TEST_SANITIZED)
TEST_CASE("false counts take no memory") {
  // With a limit of 64 MB more address space, memory for a false claim cannot be allocated.
  const auto file_claiming = [](std::uint64_t tensors, std::uint64_t items) {
    test::GgufFileText file;
    file.claimed_tensors = tensors;
    file.claimed_items = items;
    file.data = std::string(1 << 20, '\0');
    return file.header() + file.data;
  };
  const std::vector<std::string> files = {
      file_claiming(65'536, 0),
      file_claiming(40'000, 0),
      file_claiming(0, 65'536),
      file_claiming(UINT64_MAX, UINT64_MAX),
      test::gguf_with([](auto& file) {
        file.item("k", MetaType::string, le<std::uint64_t>(std::uint64_t{1} << 40));
      }),
      test::gguf_with([](auto& file) {
        file.item("k", MetaType::array, test::gguf_array(8, std::uint64_t{1} << 40, ""));
      }),
      test::gguf_with([](auto& file) {
        file.item("k", MetaType::array, test::gguf_array(9, std::uint64_t{1} << 60, ""));
      })};
  const int status = test::in_child([&] {
    std::ifstream statm("/proc/self/statm");
    std::uint64_t pages = 0;
    statm >> pages;
    const rlim_t most = pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)) + (64 << 20);
    const rlimit limit{most, most};
    if (::setrlimit(RLIMIT_AS, &limit) != 0) return 2;
    for (const std::string& file : files) {
      // Parsed as it is, and as the beginning of a file that is large enough for its claims.
      if (gguf_outcome(file) == "ok") return 1;
      (void)test::code_of([&] {
        (void)safetensors::weights::parse_gguf_header({.available = test::bytes_of(file),
                                                       .file_nbytes = std::uint64_t{1} << 62,
                                                       .path = "file.gguf",
                                                       .limits = {},
                                                       .allow_gaps = false,
                                                       .owner = nullptr});
      });
    }
    return 0;
  });
  CHECK(status == 0);  // 254: no memory
}
#endif
