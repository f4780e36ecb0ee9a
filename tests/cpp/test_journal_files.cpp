// The files that a journal names: what is written is read again, and nothing else is believed.
#include <doctest/doctest.h>

#include <string>
#include <string_view>

#include "support.hpp"
#include "write/journal_files.hpp"

using safetensors::JournalFiles;
using safetensors::parse_journal_files;
using safetensors::text_of_journal_files;

namespace {

std::string refused(std::string_view text) {
  return test::error_of([&] { (void)parse_journal_files(text, "folder/journal"); }).what();
}

}  // namespace

TEST_CASE("files survive") {
  const JournalFiles files = {{"model-00001-of-00002.safetensors", {812, "xxh3-128:00"}},
                              {"m\xFF\xC3\xA4 \"\\", {18446744073709551615U, ""}}};
  CHECK(parse_journal_files(text_of_journal_files(files), "journal") == files);
  // As json.dumps writes it.
  CHECK(text_of_journal_files(files) ==
        R"({"model-00001-of-00002.safetensors": [812, "xxh3-128:00"], )"
        R"("m\udcff\u00e4 \"\\": [18446744073709551615, ""]})");
}

TEST_CASE("every beginning is refused") {
  const std::string text = text_of_journal_files({{"a", {1, "b"}}, {"c", {2, "d"}}});
  for (std::size_t size = 0; size < text.size(); ++size) {
    const std::vector<char> exact(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(size));
    CHECK(refused({exact.data(), exact.size()}).find("it is not a journal") != std::string::npos);
  }
}

TEST_CASE("other content is refused") {
  for (const std::string_view text :
       {"{}", "[]", "1", R"({"a": 1})", R"({"a": []})", R"({"a": [1]})", R"({"a": ["b", 1]})",
        R"({"a": [1, "b", 2]})", R"({"a": [-1, "b"]})", R"({"a": [1.0, "b"]})",
        R"({"a": {"1": "b"}})", R"({"a": [[1, "b"]]})", R"({"a": [1, "b"], "a": [1, "b"]})",
        R"({"a": [18446744073709551616, "b"]})", R"({"a": [1, null]})", R"({"a": [1, "b"]} x)"}) {
    CHECK(refused(text).find("it is not a journal, so it is not followed") != std::string::npos);
  }
  CHECK(refused(std::string(100'000, '[')).find("it is not a journal") != std::string::npos);
}

TEST_CASE("names that lead out of the folder are refused") {
  for (const std::string_view name :
       {"", ".", "..", "../m", "/etc/passwd", "a/b", "a\\u0000b", "\\udc7f"}) {
    CHECK(
        refused("{\"" + std::string(name) + "\": [1, \"b\"]}").find("which is not in its folder") !=
        std::string::npos);
  }
}
