// Files that lie: tests/data/weights/bad, and what is too large to be kept there.
#include <doctest/doctest.h>

#include <map>
#include <set>
#include <string>

#include "gguf_support.hpp"
#include "weights/json.hpp"

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
  const auto table = safetensors::weights::read_json(bad_folder() / "codes.json",
                                                     safetensors::weights::Duplicates::refused);
  for (const auto& [name, code] : *table.as_object()) codes[name] = *code.as_string();
  return codes;
}

}  // namespace

TEST_CASE("each bad GGUF file gives its code") {
  const auto codes = expected_codes();
  const auto manifest = safetensors::weights::read_json(bad_folder() / "manifest.json",
                                                        safetensors::weights::Duplicates::refused);
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
