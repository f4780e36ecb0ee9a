#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "roundtrip.hpp"
#include "safetensors/header.hpp"
#include "support.hpp"

using safetensors::Header;
using safetensors::parse_bytes;
using safetensors::ParsedBytes;
using safetensors::TensorInfo;

namespace {

const std::string kJson =
    R"({"__metadata__":{"z":"1","a\n":"\u00e9"},)"
    R"("w":{"dtype":"F32","shape":[2,1],"data_offsets":[4,12]},)"
    R"("h\u0061":{"x":[{"y":-1.5}],"dtype":"F4","shape":[3,2],"data_offsets":[1,4]},)"
    R"("s":{"dtype":"BOOL","shape":[],"data_offsets":[0,1]},)"
    R"("e":{"dtype":"I64","shape":[0,9],"data_offsets":[12,12]}}  )";
constexpr std::size_t kDataSize = 12;

std::string good_file() { return test::file_of(kJson) + "0123456789AB"; }

std::string read_outcome(std::string_view file) {
  const test::ExactBytes exact(file);
  return test::outcome_of([&] { (void)parse_bytes(exact.span()); });
}

}  // namespace

TEST_CASE("a file that is marked as being changed in place is refused, and the error says so") {
  // The length of the header, 2, with its highest bit set.
  const std::string marked{2, 0, 0, 0, 0, 0, 0, '\x80', '{', '}'};
  const auto text_of = [](std::string_view file) {
    return std::string(test::error_of([&] {
                         (void)safetensors::header_length(test::bytes_of(file), file.size());
                       }).what());
  };
  CHECK(text_of(marked).find("`safetensors recover` completes it") != std::string::npos);
  // Any other length that is too large is just that, also one that is marked.
  CHECK(text_of(marked.substr(0, 9)).find("recover") == std::string::npos);
  std::string larger = marked;
  larger[6] = 1;
  CHECK(text_of(larger).find("recover") == std::string::npos);
}

TEST_CASE("a valid header is parsed") {
  const Header header = Header::parse(test::bytes_of(kJson), kDataSize);
  REQUIRE(header.size() == 4);
  const auto tensors = header.tensors();
  CHECK(tensors[0].name == "s");
  CHECK(tensors[0].shape.empty());
  CHECK(tensors[0].dtype == safetensors::Dtype::kBool);
  CHECK(tensors[1].name == "ha");
  CHECK(tensors[1].dtype == safetensors::Dtype::kF4);
  CHECK(tensors[1].begin == 1);
  CHECK(tensors[1].end == 4);
  CHECK(tensors[1].nbytes() == 3);
  CHECK(tensors[2].name == "w");
  CHECK(std::ranges::equal(tensors[2].shape, std::vector<std::uint64_t>{2, 1}));
  CHECK(tensors[3].name == "e");
  CHECK(std::ranges::equal(tensors[3].shape, std::vector<std::uint64_t>{0, 9}));

  CHECK(header.has_metadata());
  REQUIRE(header.metadata().size() == 2);
  CHECK(header.metadata()[0] == Header::MetadataItem{"z", "1"});
  CHECK(header.metadata()[1] == Header::MetadataItem{"a\n", "\xC3\xA9"});

  CHECK(header.find("w") == &tensors[2]);
  CHECK(header.find("ha") == &tensors[1]);
  CHECK(header.find("h") == nullptr);
  CHECK(header.find("") == nullptr);
  CHECK(header.find("__metadata__") == nullptr);
  std::string names;
  for (const TensorInfo* info : header.sorted_by_name()) names += std::string(info->name) + ",";
  CHECK(names == "e,ha,s,w,");
}

TEST_CASE("metadata may be absent, null or empty") {
  const auto parse = [](std::string_view json) { return Header::parse(test::bytes_of(json), 0); };
  CHECK_FALSE(parse("{}").has_metadata());
  CHECK_FALSE(parse(R"({"__metadata__":null})").has_metadata());
  CHECK(parse(R"({"__metadata__":{}})").has_metadata());
  CHECK(parse(R"({"__metadata__":{}})").metadata().empty());
}

TEST_CASE("an empty header has no tensors") {
  const Header header = Header::parse(test::bytes_of("{}"), 0);
  CHECK(header.size() == 0);
  CHECK(header.tensors().empty());
  CHECK(header.sorted_by_name().empty());
  CHECK(header.find("") == nullptr);
}

TEST_CASE("moving keeps views and pointers valid, and empties the moved-from header") {
  Header first = Header::parse(test::bytes_of(kJson), kDataSize);
  const TensorInfo* const info = first.find("w");
  REQUIRE(info != nullptr);
  const char* const text = info->name.data();
  Header second = std::move(first);
  CHECK(second.find("w") == info);
  CHECK(info->name.data() == text);
  CHECK(info->shape[0] == 2);
  Header third = Header::parse(test::bytes_of("{}"), 0);
  third = std::move(second);
  CHECK(third.find("w") == info);
  CHECK(first.find("w") == nullptr);  // NOLINT: that this is safe is the point
}

TEST_CASE("the header does not refer to the text that it was parsed from") {
  std::string json = kJson;
  const Header header = Header::parse(test::bytes_of(json), kDataSize);
  std::fill(json.begin(), json.end(), 'x');
  CHECK(header.find("w") != nullptr);
  CHECK(header.metadata()[0].second == "1");
}

TEST_CASE("the data of a file in memory is a view of it") {
  const test::ExactBytes file(good_file());
  const ParsedBytes parsed = parse_bytes(file.span());
  CHECK(parsed.data.data() == file.span().data() + 8 + kJson.size());
  CHECK(parsed.data.size() == kDataSize);
  CHECK(test::roundtrip_difference(parsed) == "");
}

TEST_CASE("the length of a header that the caller reads") {
  const std::string file = test::file_of("{}      ", 0);
  const auto length = [&](std::size_t given, std::uint64_t nbytes) {
    return safetensors::header_length(test::bytes_of(file).first(given), nbytes);
  };
  CHECK(length(8, file.size()) == 8);
  CHECK(length(16, 1000) == 8);
  CHECK(test::outcome_of([&] { (void)length(7, file.size()); }) == "kHeaderTooSmall");
  CHECK(test::outcome_of([&] { (void)length(7, 7); }) == "kHeaderTooSmall");
  CHECK(test::outcome_of([&] { (void)length(0, 0); }) == "kHeaderTooSmall");
  CHECK(test::outcome_of([&] { (void)length(8, 15); }) == "kInvalidHeaderLength");
}

TEST_CASE("every text ends with a NUL, for C") {
  const std::string json =
      R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"__metadata__":{"key":"","k":"v"}})";
  const Header header = Header::parse(test::bytes_of(json), 0);
  for (const TensorInfo& info : header.tensors()) {
    CHECK(std::string(info.name.data()) == info.name);
  }
  for (const auto& [key, value] : header.metadata()) {
    CHECK(std::string(key.data()) == key);
    CHECK(std::string(value.data()) == value);
  }
  CHECK(header.find_metadata("key") == "");
  CHECK(header.find_metadata("k") == "v");
  CHECK_FALSE(header.find_metadata("K").has_value());
}

TEST_CASE("every prefix of a valid file fails, and the whole file passes") {
  const std::string file = good_file();
  for (std::size_t size = 0; size < file.size(); ++size) {
    CAPTURE(size);
    CHECK(read_outcome(std::string_view(file).substr(0, size)) != "ok");
  }
  CHECK(read_outcome(file) == "ok");
}

TEST_CASE("every prefix of valid JSON fails, except those that lack only padding") {
  for (std::size_t size = 0; size <= kJson.size(); ++size) {
    const test::ExactBytes json(std::string_view(kJson).substr(0, size));
    const std::string outcome =
        test::outcome_of([&] { (void)Header::parse(json.span(), kDataSize); });
    CAPTURE(size);
    CHECK(outcome == (size + 2 >= kJson.size() ? "ok" : "kInvalidHeaderJson"));
  }
}

TEST_CASE("a file with any byte changed is refused or survives a round trip") {
  const std::string good = good_file();
  std::size_t accepted = 0;
  for (std::size_t at = 0; at < good.size(); ++at) {
    test::ExactBytes file(good);
    auto* const byte = const_cast<std::byte*>(file.span().data()) + at;
    for (unsigned value = 0; value < 256; ++value) {
      *byte = static_cast<std::byte>(value);
      std::string difference;
      try {
        difference = test::roundtrip_difference(parse_bytes(file.span()));
        ++accepted;
      } catch (const safetensors::Error&) {
      }
      if (!difference.empty()) FAIL("byte ", at, " set to ", value, ": ", difference);
    }
  }
  CHECK(accepted > kDataSize * 256);  // all data is good data, and so are other letters in names
}

TEST_CASE("headers with any byte removed, doubled or swapped") {
  const std::string good = kJson;
  for (std::size_t at = 0; at < good.size(); ++at) {
    std::string less = good;
    less.erase(at, 1);
    std::string more = good;
    more.insert(at, 1, good[at]);
    std::string swapped = good;
    if (at + 1 < good.size()) std::swap(swapped[at], swapped[at + 1]);
    for (const std::string& json : {less, more, swapped}) {
      const std::string text = test::file_of(json) + "0123456789AB";
      const test::ExactBytes file(text);
      std::string difference;
      try {
        difference = test::roundtrip_difference(parse_bytes(file.span()));
      } catch (const safetensors::Error&) {
      }
      if (!difference.empty()) FAIL("at ", at, ": ", difference);
    }
  }
}

TEST_CASE("the header must cover the data exactly, also near 2^61 bytes") {
  const std::string json = R"({"a":{"dtype":"U8","shape":[2305843009213693951],)"
                           R"("data_offsets":[0,2305843009213693951]}})";
  const auto outcome = [&](std::uint64_t data_nbytes) {
    return test::outcome_of([&] { (void)Header::parse(test::bytes_of(json), data_nbytes); });
  };
  CHECK(outcome(2305843009213693951U) == "ok");
  CHECK(outcome(2305843009213693950U) == "kIncompleteData");
  CHECK(outcome(2305843009213693952U) == "kIncompleteData");
  CHECK(outcome(UINT64_MAX) == "kIncompleteData");
}

TEST_CASE("JSON above the limit is refused unread") {
  const std::vector<std::byte> json(safetensors::kMaxHeaderSize + 1);
  CHECK(test::outcome_of([&] { (void)Header::parse(json, 0); }) == "kHeaderTooLarge");
}

TEST_CASE("each of many names is found, and no other name") {
  std::string json = "{";
  constexpr int kCount = 20'000;
  for (int i = 0; i < kCount; ++i) {
    if (i != 0) json += ',';
    json += '"' + std::to_string(i * 7919 % kCount) +
            R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  }
  json += '}';
  const Header header = Header::parse(test::bytes_of(json), 0);
  for (int i = 0; i < kCount; ++i) {
    const TensorInfo* const info = header.find(std::to_string(i));
    if (info == nullptr || info->name != std::to_string(i)) FAIL("lost ", i);
    if (header.find("x" + std::to_string(i)) != nullptr) FAIL("found what is not there: ", i);
  }
  const auto sorted = header.sorted_by_name();
  CHECK(sorted.size() == kCount);
  CHECK(std::is_sorted(sorted.begin(), sorted.end(),
                       [](const auto* a, const auto* b) { return a->name < b->name; }));
  CHECK(header.tensors()[1].name == "7919");  // empty tensors keep the header's order
}

TEST_CASE("names are sorted by bytes, for many runs of sorted names") {
  for (const int runs : {1, 2, 5, 21, 22, 23, 60}) {
    std::vector<std::string> names;
    std::string json = "{";
    for (int run = 0; run < runs; ++run) {
      for (int i = 0; i < 3; ++i) {
        names.push_back(std::string(1, static_cast<char>('A' + i)) + std::to_string(100 - run));
        if (json.size() > 1) json += ',';
        json += '"' + names.back() + R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
      }
    }
    names.emplace_back("\xC3\xA9");
    json += ",\"\xC3\xA9\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}";
    const Header header = Header::parse(test::bytes_of(json), 0);
    std::sort(names.begin(), names.end());
    std::vector<std::string> found;
    for (const TensorInfo* info : header.sorted_by_name()) found.emplace_back(info->name);
    CAPTURE(runs);
    CHECK(found == names);
  }
}

TEST_CASE("error texts begin as upstream's and say what was found") {
  const auto text = [](std::string_view json, std::uint64_t data_nbytes) {
    return std::string(
        test::error_of([&] { (void)Header::parse(test::bytes_of(json), data_nbytes); }).what());
  };
  CHECK(text("{", 0).starts_with("invalid JSON in header: "));
  CHECK(text("\xFF", 0) ==
        "invalid UTF-8 in header: invalid utf-8 sequence of 1 bytes from index 0");
  CHECK(text(kJson, 11).starts_with("incomplete metadata, file not fully covered"));
  CHECK(text(kJson, 11).ends_with(": truncated?"));
  CHECK(text(R"({"n":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", 2)
            .starts_with("invalid offset for tensor `n`"));
  const std::string odd =
      R"({"a\u0000\n\u001b\u007f":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})";
  CHECK(text(odd, 2).starts_with("invalid offset for tensor `a\\u0000\\u000a\\u001b\\u007f`: "));
  const std::string of_file =
      test::error_of([] { (void)parse_bytes(test::bytes_of("GGUF\x03")); }).what();
  CHECK(of_file.starts_with("Error while deserializing: header too small"));
  CHECK(of_file.find("This is a GGUF file: ") != std::string::npos);
}
