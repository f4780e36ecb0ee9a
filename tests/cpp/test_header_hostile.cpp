// Runs the files of conformance/cases.json.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "hostile_cases.hpp"
#include "roundtrip.hpp"
#include "safetensors/header.hpp"
#include "safetensors/model.hpp"
#include "safetensors/safe_open.hpp"
#include "support.hpp"

#if defined(__linux__)
#include <fstream>

#include "posix_support.hpp"
#endif

using safetensors::parse_bytes;

namespace {

const std::vector<test::HostileCase>& hostile_cases() {
  static const std::vector<test::HostileCase> all =
      test::read_hostile_cases(SAFETENSORS_HOSTILE_TABLE);
  return all;
}

/// Returns the first words of each error in a file's content.
std::string first_words(test::ErrorCode code) {
  using test::ErrorCode;
  switch (code) {
    case ErrorCode::kInvalidHeaderUtf8:
      return "invalid UTF-8 in header: ";
    case ErrorCode::kInvalidHeaderJson:
    case ErrorCode::kDuplicateName:
      return "invalid JSON in header: ";
    case ErrorCode::kHeaderTooLarge:
      return "header too large: ";
    case ErrorCode::kHeaderTooSmall:
      return "header too small: ";
    case ErrorCode::kInvalidHeaderLength:
      return "invalid header length: ";
    case ErrorCode::kInvalidOffset:
      return "invalid offset for tensor `";
    case ErrorCode::kInvalidTensorInfo:
      return "invalid shape, data type, or offset for tensor `";
    case ErrorCode::kIncompleteData:
      return "incomplete metadata, file not fully covered: ";
    case ErrorCode::kOverflow:
      return "overflow computing buffer size from shape and/or element type: tensor `";
    case ErrorCode::kMisalignedSlice:
      return "The slice is slicing for subbytes dtypes, and the slice does not end up at a byte "
             "boundary, this is invalid. Tensor `";
    default:
      return "not an error in a file";
  }
}

/// Returns the outcome of opening a file. Checks that an error begins with upstream's words and
/// names the file.
template <typename Open>
std::string outcome_on_disk(const test::fs::path& path, const Open& open) {
  try {
    open();
    return "ok";
  } catch (const safetensors::Error& error) {
    const std::string text = error.what();
    const std::string wanted =
        std::string("Error while deserializing header: ") + first_words(error.code());
    const bool is_named = text.ends_with(" (in " + path.string() + ")");
    const std::string name(test::name_of(error.code()));
    return text.starts_with(wanted) && is_named ? name : name + ", but its text is: " + text;
  }
}

#if defined(__linux__) && !defined(TEST_SANITIZED)
constexpr std::uint64_t kSpareMemory = std::uint64_t{64} << 20;

/// Returns a line of /proc/self/status, in bytes; 0 if there is no such line.
std::uint64_t status_bytes(std::string_view field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(field)) return std::stoull(line.substr(field.size() + 1)) * 1024;
  }
  return 0;
}

/// Parses a heavy file in a child process. Returns 1 if that took too much memory, 2 if the outcome
/// is not the table's, 3 if memory cannot be measured here.
int heavy_verdict(const test::HostileCase& hostile) {
  const test::ExactBytes file(hostile.file());
  std::ofstream("/proc/self/clear_refs") << "5";  // forgets the peak of making the file
  const std::uint64_t before = status_bytes("VmRSS:");
  const bool is_measured = status_bytes("VmHWM:") <= before + kSpareMemory / 4;
  const std::string outcome = test::outcome_of([&] { (void)parse_bytes(file.span()); });
  if (outcome != hostile.expect) return 2;
  if (!is_measured) return 3;
  const std::uint64_t taken = status_bytes("VmHWM:") - before;
  return taken > 7 * file.span().size() + kSpareMemory ? 1 : 0;
}

/// Returns the processor time to parse `json`.
double parse_seconds(const std::string& json) {
  return test::least_cpu_seconds([&] {
    (void)test::outcome_of([&] { (void)safetensors::Header::parse(test::bytes_of(json), 0); });
  });
}
#endif

}  // namespace

TEST_CASE("names of the table are unique and its codes are known") {
  CHECK(hostile_cases().size() >= 3900);
  std::set<std::string> names;
  for (const test::HostileCase& hostile : hostile_cases()) {
    CAPTURE(hostile.name);
    CHECK(names.insert(hostile.name).second);
    bool known = hostile.expect == "ok";
    for (int code = 1; code <= static_cast<int>(test::ErrorCode::kDevice); ++code) {
      known = known || hostile.expect == test::name_of(static_cast<test::ErrorCode>(code));
    }
    CHECK(known);
  }
}

TEST_CASE("light rows: the table's results, and accepted files survive a round trip") {
  for (const test::HostileCase& hostile : hostile_cases()) {
    if (hostile.heavy) continue;
    const test::ExactBytes file(hostile.file());
    std::string difference;
    const std::string outcome = test::outcome_of(
        [&] { difference = test::roundtrip_difference(parse_bytes(file.span())); });
    CAPTURE(hostile.name);
    CHECK(outcome == hostile.expect);
    CHECK(difference == "");
  }
}

TEST_CASE("opening a file gives the same result as parsing its bytes") {
  const test::TempDir folder;
  for (const test::HostileCase& hostile : hostile_cases()) {
    if (hostile.heavy) continue;
    const test::fs::path path = folder / "file";
    test::write_text(path, hostile.file());
    CAPTURE(hostile.name);
    for (const auto backend : {safetensors::Backend::kMmap, safetensors::Backend::kPread}) {
      const auto open = [&] { const safetensors::SafeOpen file(path, {backend}); };
      CHECK(outcome_on_disk(path, open) == hostile.expect);
    }
  }
}

TEST_CASE("a model of one file gives the same result: of its path, a folder and an index") {
  const test::TempDir folder;
  const test::fs::path path = folder / "model.safetensors";
  const test::fs::path index = folder / "other.safetensors.index.json";
  test::write_text(index, R"({"weight_map": {"no tensor of the table": "model.safetensors"}})");
  for (const test::HostileCase& hostile : hostile_cases()) {
    if (hostile.heavy) continue;
    test::write_text(path, hostile.file());
    CAPTURE(hostile.name);
    for (const test::fs::path& from : {path, folder.path(), index}) {
      if (from == index && hostile.expect == "ok") continue;
      const auto open = [&] {
        const safetensors::Model model = safetensors::open_model(from);
        CHECK(model.size() == model.file(0).header().size());
      };
      CHECK(outcome_on_disk(path, open) == hostile.expect);
    }
  }
}

#if defined(__linux__) && !defined(TEST_SANITIZED)
TEST_CASE("heavy rows: the table's results, within 8 times the header and 64 MB of memory") {
  for (const test::HostileCase& hostile : hostile_cases()) {
    if (!hostile.heavy) continue;
    const int verdict = test::in_child([&] { return heavy_verdict(hostile); });
    CAPTURE(hostile.name);
    if (verdict == 3) {
      MESSAGE("not measured: the peak of memory cannot be reset here");
      continue;
    }
    CHECK(verdict == 0);
  }
}

TEST_CASE("time is linear in the header" * doctest::test_suite("timed")) {
  const std::string entry = R"({"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  const auto repeated = [](std::string_view text, std::size_t count) {
    std::string out;
    for (std::size_t i = 0; i < count; ++i) out += text;
    return out;
  };
  const auto keys = [](std::size_t count, std::string_view value) {
    std::string out;
    for (std::size_t i = 0; i < count; ++i) {
      if (i != 0) out += ',';
      out += '"' + std::to_string(i) + "\":" + std::string(value);
    }
    return out;
  };
  const std::vector<std::pair<std::string, std::function<std::string(std::size_t)>>> shapes = {
      {"tensors", [&](std::size_t n) { return "{" + keys(n / 4, entry) + "}"; }},
      {"metadata", [&](std::size_t n) { return R"({"__metadata__":{)" + keys(n, R"("")") + "}}"; }},
      {"unknown fields", [&](std::size_t n) { return R"({"a":{)" + keys(n, "0") + "}}"; }},
      {"unknown objects",
       [&](std::size_t n) { return R"({"a":{"x":[)" + repeated(R"({"k":0},)", n); }},
      {"a shape", [&](std::size_t n) { return R"({"a":{"shape":[)" + repeated("0,", 4 * n); }},
      {"escapes",
       [&](std::size_t n) { return R"({"__metadata__":{"k":")" + repeated("\\n", 4 * n); }},
      {"spaces", [&](std::size_t n) { return "{" + repeated(" ", 8 * n); }},
      {"one key",
       [&](std::size_t n) { return R"({"a":{"x":{)" + repeated(R"("":0,)", n) + R"("":0}}})"; }},
  };
  for (const auto& [name, make] : shapes) {
    const double small = parse_seconds(make(50'000));
    const double large = parse_seconds(make(400'000));
    CAPTURE(name);
    CAPTURE(small);
    CAPTURE(large);
    // Eight times the work. Sorting and caches cost a little more, quadratic time 64 times.
    CHECK(large < 28 * small + 0.005);
  }
}
#else
// With a sanitizer a megabyte takes seconds.
#if defined(TEST_SANITIZED)
constexpr std::uint64_t kShrink = 20;
#else
constexpr std::uint64_t kShrink = 1;
#endif

TEST_CASE("heavy rows: the table's results") {
  for (const test::HostileCase& hostile : hostile_cases()) {
    if (!hostile.heavy) continue;
    const bool is_wrong_by_size = hostile.expect == "kHeaderTooLarge";
    const test::ExactBytes file(hostile.file(is_wrong_by_size ? 1 : kShrink));
    CAPTURE(hostile.name);
    CHECK(test::outcome_of([&] { (void)parse_bytes(file.span()); }) == hostile.expect);
  }
}
#endif
