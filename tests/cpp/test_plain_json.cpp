// The quick reader of documents: what it accepts, the reader of all JSON reads in the same way.
#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_document.hpp"
#include "base/json_special.hpp"
#include "base/plain_json.hpp"
#include "support.hpp"

using safetensors::JsonKind;

namespace {

/// Notes the events.
struct Recorder {
  std::string events{};

  bool value(JsonKind kind, std::string_view text) {
    return note(kind == JsonKind::kString ? 's' : 'n', text);
  }
  bool open(JsonKind) { return note('{', ""); }
  bool close(JsonKind) { return note('}', ""); }
  bool key(std::string_view text) { return note('k', text); }

  bool note(char what, std::string_view text) {
    (events += what).append(text) += '\n';
    return true;
  }
};

/// Returns whether the quick reader accepts a text; then the other one must agree.
bool is_plain(std::string_view text) {
  CAPTURE(text);
  if (safetensors::find_invalid_utf8(text)) return false;
  Recorder quick;
  if (!safetensors::read_plain_document(text, quick)) return false;
  Recorder all;
  CHECK_FALSE(safetensors::read_json_document(text, {}, all));
  CHECK(quick.events == all.events);
  return true;
}

}  // namespace

TEST_CASE("documents as programs write them are read quickly") {
  for (const char* text : {
           "{}",
           " {\n} \r\n",
           R"({"metadata": {"total_size": 12}, "weight_map": {"a": "f", "b": "g"}})",
           "{\n  \"weight_map\": {\n    \"a.\xC3\xA9\": \"f\"\n  }\n}\n",
           R"({"a":{"b":{"c":0}}})",
       }) {
    CHECK(is_plain(text));
  }
}

TEST_CASE("other documents are left to the reader of all JSON") {
  for (const char* text : {
           "",
           "[]",
           "{",
           "{}x",
           "{\"a\"}",
           "{\"a\":1,}",
           "{\"a\":01}",
           "{\"a\":1.5}",
           "{\"a\":-1}",
           "{\"a\":1e3}",
           "{\"a\":null}",
           "{\"a\":[1]}",
           R"({"a\n":1})",
           R"({"a":"\u0062"})",
           "{\"a\":\"\t\"}",
           "{\"a\":\"",
           "{\"a\":12345678901234567890}",
           "{\"a\":{\"a\":{\"a\":{\"a\":{}}}}}",
           "{'a':1}",
           "{\"a\" \"b\"}",
       }) {
    CHECK_FALSE(is_plain(text));
  }
}

TEST_CASE("a text that comes in pieces is read as if it were whole") {
  const std::string whole =
      R"({"metadata": {"total_size": 120}, "weight_map": {"a.b": "f-1", "c": "f-2"}, "x": {}})"
      "\n   \n";
  Recorder expected;
  REQUIRE(safetensors::read_plain_document(whole, expected));
  bool was_read = false;
  for (std::size_t piece = 0; piece <= whole.size(); ++piece) {
    for (const std::string& text : {whole, whole + '}'}) {
      std::size_t given = 0;
      const auto refill = [&](safetensors::PlainJson& json) {
        const std::size_t left = json.rest().size();
        const std::size_t more = std::min(piece, text.size() - given);
        json = safetensors::PlainJson(std::string_view(text).substr(given - left, left + more));
        given += more;
        return true;
      };
      Recorder found;
      const bool is_read = safetensors::read_plain_document({}, found, refill);
      if (!is_read) continue;
      CAPTURE(piece);
      CHECK(text == whole);
      CHECK(found.events == expected.events);
      was_read = true;
    }
  }
  CHECK(was_read);
  Recorder unused;
  CHECK_FALSE(safetensors::read_plain_document(whole, unused,
                                               [](safetensors::PlainJson&) { return false; }));
}

TEST_CASE("the first byte is found that a string ends at or escapes") {
  for (std::size_t size = 0; size < 70; ++size) {
    const std::string none(size, 'a');
    for (int value = 0; value < 256; ++value) {
      const bool is_special = value < 0x20 || value == '"' || value == '\\';
      for (std::size_t at = 0; at < size; ++at) {
        std::string text = none;
        text[at] = static_cast<char>(value);
        for (const std::size_t later : {size - 1, at + 1}) {
          if (later > at && later < size) text[later] = '"';
        }
        const test::ExactBytes exact(text);
        const auto* const begin = reinterpret_cast<const char*>(exact.span().data());
        const char* const found = safetensors::find_json_special(begin, begin + size);
        const std::size_t expected = is_special ? at : text.find('"');
        if (static_cast<std::size_t>(found - begin) != std::min(expected, size)) {
          FAIL("byte ", value, " at ", at, " of ", size);
        }
      }
    }
  }
}

TEST_CASE("both readers agree about documents with changed bytes") {
  const std::string whole =
      R"({"metadata": {"total_size": 120}, "weight_map": {"a.b": "f-1", "c": "f-2"}, "x": {}})";
  std::mt19937 random(7);
  const std::string_view bytes = "{}\":,0 9\\\n.x[-\xC3";
  int plain = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string text = whole;
    for (auto changes = 1 + random() % 3; changes != 0; --changes) {
      const std::size_t at = random() % text.size();
      const char byte = bytes[random() % bytes.size()];
      switch (random() % 3) {
        case 0:
          text[at] = byte;
          break;
        case 1:
          text.insert(at, 1, byte);
          break;
        default:
          text.erase(at, 1);
      }
    }
    plain += static_cast<int>(is_plain(text));
  }
  CHECK(plain > 1'000);
}
