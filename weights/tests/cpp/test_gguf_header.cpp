// The parser of GGUF headers.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <variant>
#include <vector>

#include "base/utf8.hpp"
#include "dequant/ggml_types.hpp"
#include "gguf_support.hpp"

using safetensors::weights::GgufHeader;
using safetensors::weights::GgufInput;
using safetensors::weights::Limits;
using safetensors::weights::NeedsMore;
using safetensors::weights::parse_gguf_header;
using test::gguf_array;
using test::gguf_outcome;
using test::gguf_string;
using test::gguf_with;
using test::le;
using test::MetaType;

namespace {

/// Returns the outcome of a file of one tensor.
std::string tensor_outcome(const std::vector<std::uint64_t>& dims, std::uint32_t type,
                           std::size_t data_nbytes, std::uint64_t offset = 0) {
  test::GgufFileText file;
  file.tensor("t", dims, type, offset);
  file.data = std::string(data_nbytes, '\0');
  return gguf_outcome(file.text());
}

struct Placed {
  std::string name;
  std::uint64_t nbytes;
  std::uint64_t offset;
};

/// Returns the outcome of a file of I8 vectors.
std::string layout_outcome(const std::vector<Placed>& tensors, std::size_t data_nbytes,
                           bool allow_gaps = false) {
  test::GgufFileText file;
  for (const Placed& each : tensors) file.tensor(each.name, {each.nbytes}, 24, each.offset);
  file.data = std::string(data_nbytes, '\0');
  return gguf_outcome(file.text(), {}, allow_gaps);
}

/// Checks the properties of every accepted header, and reads all its values.
void check_header(const GgufHeader& header, std::uint64_t file_nbytes) {
  CHECK(header.data_begin <= file_nbytes);
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;
  for (const auto& tensor : header.tensors) {
    CHECK(tensor.offset >= header.data_begin);
    CHECK(tensor.offset <= file_nbytes);
    CHECK(tensor.nbytes <= file_nbytes - tensor.offset);
    if (tensor.nbytes != 0) ranges.emplace_back(tensor.offset, tensor.offset + tensor.nbytes);
  }
  std::ranges::sort(ranges);
  for (std::size_t i = 1; i < ranges.size(); ++i) CHECK(ranges[i - 1].second <= ranges[i].first);
  for (const auto& [key, value] : header.metadata) {
    CHECK(header.metadata.find(key) == &value);
    if (const auto array = value.as_array()) {
      CHECK(static_cast<std::uint64_t>(std::ranges::distance(*array)) == array->size());
    }
  }
}

/// Parses a file of which more bytes become available at each step.
std::string stepped_outcome(std::string_view file, std::size_t step, const GgufHeader* expected) {
  GgufInput input{.available = {},
                  .file_nbytes = file.size(),
                  .path = "file.gguf",
                  .limits = {},
                  .allow_gaps = false,
                  .owner = nullptr};
  std::uint64_t needed = 0;
  for (std::size_t nbytes = 0;; nbytes = std::min(nbytes + step, file.size())) {
    const test::ExactBytes exact(file.substr(0, nbytes));
    input.available = exact.span();
    try {
      const auto parsed = parse_gguf_header(input);
      if (const auto* const needs = std::get_if<NeedsMore>(&parsed)) {
        // It asks for more than it has, at most for the whole file, and never for less than before.
        CHECK(needs->nbytes > nbytes);
        CHECK(needs->nbytes <= file.size());
        CHECK(needs->nbytes >= needed);
        needed = needs->nbytes;
        continue;
      }
      CHECK(nbytes >= needed);
      REQUIRE(expected != nullptr);
      CHECK(test::gguf_difference(std::get<GgufHeader>(parsed), *expected) == "");
      return "ok";
    } catch (const safetensors::weights::WeightsError& error) {
      return error.what();
    }
  }
}

/// A file with metadata of all kinds and tensors of several types, of about 700 bytes.
std::string small_file() {
  test::GgufFileText file;
  file.item("general.architecture", MetaType::string, gguf_string("llama"));
  file.item("general.alignment", MetaType::u32, le<std::uint32_t>(32));
  file.item("a.bool", MetaType::boolean, "\x01");
  file.item("a.words", MetaType::array,
            gguf_array(8, 3, gguf_string("a") + gguf_string("") + gguf_string("bc")));
  file.item("a.nested", MetaType::array,
            gguf_array(9, 2, gguf_array(7, 2, std::string("\x01\x00", 2)) + gguf_array(8, 0, "")));
  file.item("a.f64", MetaType::f64, le(0.1));
  file.tensor("scalar", {}, 0, 0);
  file.tensor("quantised", {32, 2}, 2, 32);
  file.tensor("empty", {4, 0}, 0, 96);
  file.tensor("last", {3}, 1, 96);
  file.data = test::text_of(test::pattern(96 + 6));
  return file.text();
}

}  // namespace

TEST_CASE("a header has the values of the file") {
  const std::string file = small_file();
  const test::ExactBytes exact(file);
  const GgufHeader header = test::parse_gguf(exact.span());
  CHECK(header.version == 3);
  CHECK(header.alignment == 32);
  CHECK(header.data_begin == file.size() - 102);
  CHECK(header.metadata.size() == 6);
  REQUIRE(header.tensors.size() == 4);
  CHECK(header.tensors[0].name == "scalar");
  CHECK(header.tensors[0].shape().empty());
  CHECK(header.tensors[0].nbytes == 4);
  CHECK(std::ranges::equal(header.tensors[1].shape(), std::vector<std::int64_t>{2, 32}));
  CHECK(header.tensors[1].type == safetensors::weights::ggml::kQ4_0);
  CHECK(header.tensors[1].offset == header.data_begin + 32);
  CHECK(header.tensors[1].nbytes == 36);
  CHECK(header.tensors[2].nbytes == 0);
  CHECK(header.tensors[3].offset + header.tensors[3].nbytes == file.size());
  check_header(header, file.size());
}

TEST_CASE("every prefix of a file is refused") {
  const std::string file = small_file();
  for (std::size_t size = 0; size < file.size(); ++size) {
    CAPTURE(size);
    CHECK(gguf_outcome(std::string_view(file).substr(0, size)) == "truncated");
  }
  CHECK(gguf_outcome(file) == "ok");
}

TEST_CASE("the result does not depend on the steps in which bytes arrive") {
  const std::string file = small_file();
  const test::ExactBytes exact(file);
  const GgufHeader header = test::parse_gguf(exact.span());
  for (std::size_t step = 1; step <= file.size(); ++step) {
    CAPTURE(step);
    CHECK(stepped_outcome(file, step, &header) == "ok");
  }
}

TEST_CASE("any byte of a header may have any value") {
  const std::string file = small_file();
  const std::size_t header_nbytes = file.size() - 102;
  std::size_t accepted = 0;
  for (std::size_t at = 0; at < header_nbytes; ++at) {
    for (const unsigned byte : {0x00U, 0x7FU, 0x80U, 0xFFU}) {
      std::string changed = file;
      changed[at] = static_cast<char>(byte);
      CAPTURE(at);
      CAPTURE(byte);
      const test::ExactBytes exact(changed);
      const std::string outcome = test::code_of([&] {
        const GgufHeader header = test::parse_gguf(exact.span());
        check_header(header, changed.size());
        ++accepted;
      });
      if (at % 8 == 0 && outcome != "ok") {
        const test::ExactBytes whole(changed);
        std::string text;
        try {
          (void)test::parse_gguf(whole.span());
        } catch (const safetensors::weights::WeightsError& error) {
          text = error.what();
        }
        CHECK(stepped_outcome(changed, 7, nullptr) == text);
      }
    }
  }
  CHECK(accepted > 100);  // values, and letters of names
}

TEST_CASE("errors name other file formats") {
  const auto text_of = [](std::string start) {
    start.resize(std::max<std::size_t>(start.size(), 100), ' ');
    const auto error = test::gguf_error(start);
    CHECK(error.code() == safetensors::weights::Errc::bad_magic);
    return std::string(error.what());
  };
  const auto says = [&](const std::string& start, std::string_view word) {
    return text_of(start).find(word) != std::string::npos;
  };
  CHECK(says("lmgg\x01", "GGML"));
  CHECK(says("tjgg\x03", "ggjt"));
  CHECK(says("PK\x03\x04", "zip archive"));
  CHECK(says("\x80\x02}q", "pickle"));
  CHECK(says("version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"));
  CHECK(says("<!DOCTYPE html>", "HTML"));
  CHECK(says("FUGG", "swapped"));
  CHECK(says(le<std::uint64_t>(40) + "{\"a\":", "safetensors"));
  CHECK_FALSE(says(le<std::uint64_t>(1000) + "{\"a\":", "safetensors"));
  // Error messages are UTF-8.
  for (const char* start : {"\xFF\xFE\xFD\xFC", "GG\xC3\xA9", "\n\x01\x02\x03"}) {
    const std::string text = text_of(start);
    CHECK_FALSE(safetensors::find_invalid_utf8(text));
    CHECK(std::ranges::none_of(text, [](char c) { return c >= 0 && c < ' '; }));
  }
}

TEST_CASE("unsupported versions and byte orders are named") {
  const auto error = [](std::uint32_t version) {
    test::GgufFileText file;
    file.version = version;
    return test::gguf_error(file.text());
  };
  using safetensors::weights::Errc;
  CHECK(error(1).code() == Errc::version);
  CHECK(std::string(error(1).what()).find("32-bit counts") != std::string::npos);
  CHECK(std::string(error(0x03000000).what()).find("big-endian") != std::string::npos);
  CHECK(error(0x03000000).offset() == 4);
  CHECK(error(0).code() == Errc::version);
  CHECK(error(4).code() == Errc::version);
  test::GgufFileText second;
  second.version = 2;
  CHECK(gguf_outcome(second.text()) == "ok");
}

TEST_CASE("an error names file, subject and offset") {
  const auto error = test::gguf_error(
      gguf_with([](auto& file) { file.item("some.key", MetaType::boolean, "\x02"); }));
  CHECK(error.path() == "file.gguf");
  CHECK(error.subject() == "some.key");
  CHECK(error.offset() == 24 + 8 + 8 + 4);
  CHECK(std::string(error.what()) ==
        "`some.key` at byte 44: a bool has the value 2 (in file.gguf)");
}

TEST_CASE("counts are limited, and by what the file can hold") {
  const auto claiming = [](std::uint64_t tensors, std::uint64_t items, std::size_t more) {
    test::GgufFileText file;
    file.claimed_tensors = tensors;
    file.claimed_items = items;
    file.data = std::string(more, '\0');
    return file.header() + file.data;
  };
  CHECK(gguf_outcome(claiming(65'537, 0, 0)) == "limit");
  CHECK(gguf_outcome(claiming(65'536, 0, 0)) == "truncated");
  CHECK(gguf_outcome(claiming(UINT64_MAX, 0, 0)) == "limit");
  CHECK(gguf_outcome(claiming(10, 0, 240)) == "bad_name");  // would fit, but zeros follow
  CHECK(gguf_outcome(claiming(10, 0, 239)) == "truncated");
  CHECK(gguf_outcome(claiming(0, 65'537, 0)) == "limit");
  CHECK(gguf_outcome(claiming(0, 65'536, 0)) == "truncated");
  CHECK(gguf_outcome(claiming(0, 10, 130)) == "bad_name");
  CHECK(gguf_outcome(claiming(0, 10, 129)) == "truncated");
  Limits limits;
  limits.gguf_tensors = 2;
  CHECK(gguf_outcome(claiming(3, 0, 1000), limits) == "limit");
  limits.metadata_items = 2;
  CHECK(gguf_outcome(claiming(0, 3, 1000), limits) == "limit");
}

TEST_CASE("keys and names are short, UTF-8 and different") {
  const auto key = [](const std::string& text, const Limits& limits = {}) {
    return gguf_outcome(gguf_with([&](auto& file) { file.item(text, MetaType::u8, "\x01"); }),
                        limits);
  };
  CHECK(key(std::string(65'535, 'k')) == "ok");
  CHECK(key(std::string(65'536, 'k')) == "bad_name");
  CHECK(key("") == "bad_name");
  CHECK(key(std::string("a\0b", 3)) == "bad_name");
  CHECK(key("\xC3\xA9") == "ok");
  CHECK(key("\xC3") == "bad_name");
  CHECK(key("\xED\xA0\x80") == "bad_name");
  Limits limits;
  limits.key_nbytes = 3;
  CHECK(key("abcd", limits) == "bad_name");
  CHECK(gguf_outcome(gguf_with([](auto& file) {
          file.item("k", MetaType::u8, "\x01");
          file.item("k", MetaType::u8, "\x02");
        })) == "duplicate");

  const auto name = [](const std::string& text) { return layout_outcome({{text, 32, 0}}, 32); };
  CHECK(name(std::string(255, 'n')) == "ok");
  CHECK(name(std::string(256, 'n')) == "bad_name");
  CHECK(name("") == "bad_name");
  CHECK(name(std::string("a\0b", 3)) == "bad_name");
  CHECK(name("a\xFF") == "bad_name");
  CHECK(layout_outcome({{"a", 32, 0}, {"b", 32, 32}, {"a", 32, 64}}, 96) == "duplicate");
}

TEST_CASE("arrays in arrays, four deep") {
  const auto deep = [](unsigned depth, const Limits& limits = {}) {
    std::string array = gguf_array(8, 1, gguf_string("x"));
    for (unsigned i = 1; i < depth; ++i) array = gguf_array(9, 1, array);
    return gguf_outcome(gguf_with([&](auto& file) { file.item("k", MetaType::array, array); }),
                        limits);
  };
  CHECK(deep(4) == "ok");
  CHECK(deep(5) == "limit");
  Limits limits;
  limits.array_depth = 8;
  CHECK(deep(8, limits) == "ok");
  limits.array_depth = UINT32_MAX;
  CHECK(deep(9, limits) == "limit");
  limits.array_depth = 0;
  CHECK(deep(1, limits) == "limit");
}

TEST_CASE("bools must be 0 or 1, alone and in arrays") {
  for (std::size_t at = 0; at < 40; ++at) {
    std::string bools(40, '\x01');
    const auto outcome = [&] {
      return gguf_outcome(gguf_with(
          [&](auto& file) { file.item("k", MetaType::array, gguf_array(7, 40, bools)); }));
    };
    CHECK(outcome() == "ok");
    bools[at] = '\x80';
    CHECK(outcome() == "bad_type");
  }
}

TEST_CASE("the alignment is a power of two") {
  const auto aligned = [](MetaType type, const std::string& value, std::size_t alignment) {
    test::GgufFileText file;
    file.alignment = alignment;
    file.item("general.alignment", type, value);
    file.tensor("t", {8}, 0, 0);
    file.data = std::string(32, '\0');
    return gguf_outcome(file.text());
  };
  for (std::uint32_t alignment = 1; alignment <= 1U << 20; alignment *= 2) {
    CHECK(aligned(MetaType::u32, le(alignment), alignment) == "ok");
  }
  CHECK(aligned(MetaType::u32, le<std::uint32_t>(1U << 21), 1U << 21) == "alignment");
  CHECK(aligned(MetaType::u32, le<std::uint32_t>(0), 32) == "alignment");
  CHECK(aligned(MetaType::u32, le<std::uint32_t>(48), 48) == "alignment");
  CHECK(aligned(MetaType::i32, le<std::int32_t>(32), 32) == "bad_type");
  CHECK(aligned(MetaType::u64, le<std::uint64_t>(32), 32) == "bad_type");
}

TEST_CASE("sizes of shapes do not overflow") {
  constexpr std::uint64_t kHalf = std::uint64_t{1} << 32;
  CHECK(tensor_outcome({}, 0, 4) == "ok");
  CHECK(tensor_outcome({1, 1, 1, 1}, 0, 4) == "ok");
  CHECK(tensor_outcome({1, 1, 1, 1, 1}, 0, 4) == "ok");
  CHECK(tensor_outcome({1, 1, 1, 1, 1, 1}, 0, 4) == "bad_shape");
  CHECK(tensor_outcome({kHalf, kHalf}, 0, 32) == "overflow");
  CHECK(tensor_outcome({kHalf, kHalf, 0}, 0, 32) ==
        "overflow");  // an axis of length 0 does not hide the overflow
  CHECK(tensor_outcome({0, kHalf, kHalf}, 0, 32) == "overflow");
  CHECK(tensor_outcome({kHalf, kHalf / 4, 0}, 0, 32) == "overflow");  // 2^62 elements of 4 bytes
  CHECK(tensor_outcome({kHalf, 0}, 0, 0) == "ok");
  CHECK(tensor_outcome({std::uint64_t{1} << 63}, 24, 32) == "bad_shape");
  CHECK(tensor_outcome({INT64_MAX}, 24, 32) == "truncated");
  CHECK(tensor_outcome({INT64_MAX}, 1, 32) == "overflow");
  CHECK(tensor_outcome({0}, 2, 0) == "ok");
  CHECK(tensor_outcome({}, 2, 32) == "bad_shape");  // one value is not a whole block
  CHECK(tensor_outcome({16, 2}, 2, 32) == "bad_shape");
  CHECK(tensor_outcome({33, 0}, 2, 0) == "bad_shape");
  CHECK(tensor_outcome({256}, 12, 144) == "ok");
  CHECK(tensor_outcome({256}, 12, 143) == "truncated");
}

TEST_CASE("types that are not in the table are refused") {
  for (std::uint32_t id = 0; id < 300; ++id) {
    CAPTURE(id);
    const auto* const type = safetensors::weights::find_ggml_type(id);
    const std::string outcome =
        tensor_outcome({type != nullptr ? type->block_elements : 1}, id, 300);
    CHECK(outcome == (type != nullptr ? "ok" : "bad_type"));
  }
}

TEST_CASE("tensors lie one after another") {
  CHECK(layout_outcome({{"a", 33, 0}, {"b", 5, 64}}, 69) == "ok");
  CHECK(layout_outcome({{"b", 5, 64}, {"a", 33, 0}}, 69) == "ok");  // in any order
  CHECK(layout_outcome({{"a", 33, 0}, {"b", 5, 64}}, 68) == "truncated");
  CHECK(layout_outcome({{"a", 33, 0}, {"b", 5, 64}}, 500) == "ok");  // unused bytes follow
  CHECK(layout_outcome({{"a", 33, 0}, {"b", 5, 65}}, 100) == "alignment");
  CHECK(layout_outcome({{"a", 33, 0}, {"b", 5, 32}}, 100) == "bad_offset");
  CHECK(layout_outcome({{"a", 33, 0}, {"b", 5, 0}}, 100) == "bad_offset");
  CHECK(layout_outcome({{"a", 33, 0}, {"b", 5, 96}}, 200) == "bad_offset");
  CHECK(layout_outcome({{"a", 33, 32}}, 200) == "bad_offset");
  CHECK(layout_outcome({{"a", 0, 0}, {"b", 0, 0}, {"c", 32, 0}, {"d", 0, 32}}, 32) == "ok");
  CHECK(layout_outcome({{"c", 32, 0}, {"a", 0, 0}}, 32) == "ok");
  CHECK(layout_outcome({{"c", 64, 0}, {"a", 0, 32}}, 64) == "bad_offset");
  // The padding before an empty tensor may be absent.
  CHECK(layout_outcome({{"a", 5, 0}, {"b", 0, 32}}, 5) == "ok");
}

TEST_CASE("allow_gaps allows gaps and nothing else") {
  CHECK(layout_outcome({{"a", 33, 64}, {"b", 5, 256}}, 261, true) == "ok");
  CHECK(layout_outcome({{"a", 33, 64}, {"b", 5, 256}}, 260, true) == "truncated");
  CHECK(layout_outcome({{"a", 33, 0}, {"b", 5, 32}}, 100, true) == "bad_offset");
  CHECK(layout_outcome({{"a", 33, 0}, {"b", 0, 32}}, 100, true) == "bad_offset");
  CHECK(layout_outcome({{"a", 33, 0}, {"b", 5, 63}}, 100, true) == "alignment");
  CHECK(layout_outcome({{"a", 5, UINT64_MAX - 31}}, 100, true) == "truncated");
  CHECK(layout_outcome({{"a", 0, UINT64_MAX - 31}}, 100, true) == "truncated");
}

TEST_CASE("an empty tensor lies in the file") {
  test::GgufFileText file;
  file.tensor("a", {5}, 24, 0);
  file.tensor("b", {0}, 24, 32);
  file.data = "12345";
  const std::string text = file.text();
  const GgufHeader header = test::parse_gguf(test::bytes_of(text));
  check_header(header, text.size());
  // A file that ends with its header.
  test::GgufFileText bare;
  bare.tensor("none", {0}, 24, 0);
  const std::string header_only = bare.header();
  check_header(test::parse_gguf(test::bytes_of(header_only)), header_only.size());
}

TEST_CASE("the header's length is limited") {
  Limits limits;
  limits.header_nbytes = 1000;
  const auto long_value = [&](std::size_t size) {
    return gguf_outcome(gguf_with([&](auto& file) {
                          file.item("k", MetaType::string, gguf_string(std::string(size, 'x')));
                        }),
                        limits);
  };
  CHECK(long_value(800) == "ok");
  CHECK(long_value(1000) == "limit");
}
