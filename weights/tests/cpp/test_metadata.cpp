// Metadata: a file with every type, tables of strings, and the types themselves.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "common/json.hpp"
#include "gguf/metadata_access.hpp"
#include "gguf_support.hpp"
#include "safetensors/weights/metadata.hpp"

using safetensors::weights::Json;
using safetensors::weights::MetaAccess;
using safetensors::weights::MetaArray;
using safetensors::weights::MetaValue;
using safetensors::weights::ModelMetadata;
using test::gguf_array;
using test::gguf_string;
using test::le;
using test::MetaType;

static_assert(std::forward_iterator<MetaArray::iterator>);

namespace {

/// Compares a value with what another reader recorded in JSON, which has 64-bit numbers as text.
bool same(const MetaValue& value, const Json& expected) {
  if (const bool* const truth = expected.as_bool()) return value.as_bool() == *truth;
  if (const std::string* const text = expected.as_string()) {
    return value.is_utf8() && value.as_string() == *text;
  }
  if (const auto integer = expected.as_integer(); integer && !value.as_float()) {
    return value.as_int64() == *integer;
  }
  if (const auto number = expected.as_number()) {
    if (const auto found = value.as_float()) return *found == *number;
    return value.as_uint64() && static_cast<double>(*value.as_uint64()) == *number;
  }
  const Json* const items = expected.find("items");
  const auto array = value.as_array();
  if (items == nullptr || !array) return false;
  const std::string type = *expected.find("type")->as_string();
  return name(array->element_type()) == (type == "str" ? "string" : type) &&
         std::ranges::equal(*array, *items->as_array(),
                            [](const MetaValue& a, const Json& b) { return same(a, b); });
}

/// Returns the value of a file with one metadata item.
struct OneValue {
  OneValue(MetaType type, std::string_view bytes)
      : text(test::gguf_with([&](auto& file) { file.item("k", type, bytes); })),
        header(test::parse_gguf(test::bytes_of(text))),
        value(*header.metadata.find("k")) {}
  std::string text;
  safetensors::weights::GgufHeader header;
  MetaValue value;
};

template <typename T>
MetaValue number(MetaType type, std::string& text, T value) {
  text = le(value);
  return MetaAccess::value(type, test::bytes_of(text));
}

}  // namespace

TEST_CASE("a file with every type of metadata") {
  const auto folder = test::weights_data() / "gguf";
  const std::string text = test::read_text(folder / "types.gguf");
  const auto header = test::parse_gguf(test::bytes_of(text));
  const Json table =
      safetensors::weights::read_json(safetensors::weights::Files(), folder / "types_expected.json",
                                      safetensors::weights::Duplicates::refused, {});
  CHECK(header.alignment == table.find("alignment")->as_integer());
  const Json& expected = *table.find("metadata");
  CHECK(header.metadata.size() == expected.as_object()->size());
  for (const auto& [key, value] : *expected.as_object()) {
    CAPTURE(key);
    const MetaValue* const found = header.metadata.find(key);
    REQUIRE(found != nullptr);
    CHECK(same(*found, value));
  }
  // JSON represents these as doubles.
  CHECK(header.metadata.find("x.u64")->as_uint64() == 9223372036854775809U);
  CHECK_FALSE(header.metadata.find("x.u64")->as_int64());
  CHECK(header.metadata.find("x.f32")->type() == MetaType::f32);

  const Json& tensors = *table.find("tensors");
  CHECK(header.tensors.size() == tensors.as_object()->size());
  for (const auto& tensor : header.tensors) {
    const Json* const row = tensors.find(tensor.name);
    REQUIRE(row != nullptr);
    const auto& shape = *row->find("shape")->as_array();
    CHECK(std::ranges::equal(tensor.shape(), shape, [](std::int64_t dim, const Json& wanted) {
      return dim == wanted.as_integer();
    }));
  }
}

TEST_CASE("keys are found, and only these") {
  const std::string text = test::gguf_with([](auto& file) {
    for (int i = 0; i < 3000; ++i) file.item("key." + std::to_string(i), MetaType::i32, le(i));
  });
  const auto header = test::parse_gguf(test::bytes_of(text));
  REQUIRE(header.metadata.size() == 3000);
  int next = 0;
  for (const auto& [key, value] : header.metadata) {
    CHECK(key == "key." + std::to_string(next));
    CHECK(header.metadata.find(key) ==
          &header.metadata.items()[static_cast<std::size_t>(next)].value);
    CHECK(value.as_int64() == next++);
  }
  CHECK(header.metadata.find("key.3000") == nullptr);
  CHECK(header.metadata.find("") == nullptr);
  CHECK(ModelMetadata().find("key.1") == nullptr);
  CHECK(ModelMetadata().empty());
}

TEST_CASE("each getter returns values of its type only") {
  std::string text;
  const auto check_only = [&](const MetaValue& value, std::string_view which) {
    CAPTURE(name(value.type()));
    CHECK((value.as_int64() || value.as_uint64()) == (which == "integer"));
    CHECK(value.as_float().has_value() == (which == "float"));
    CHECK(value.as_bool().has_value() == (which == "bool"));
    CHECK(value.as_string().has_value() == (which == "string"));
    CHECK(value.as_array().has_value() == (which == "array"));
    CHECK(value.is_utf8() == (which == "string"));
  };
  check_only(number<std::uint8_t>(MetaType::u8, text, 1), "integer");
  check_only(number<std::int8_t>(MetaType::i8, text, -1), "integer");
  check_only(number<std::uint16_t>(MetaType::u16, text, 1), "integer");
  check_only(number<std::int16_t>(MetaType::i16, text, -1), "integer");
  check_only(number<std::uint32_t>(MetaType::u32, text, 1), "integer");
  check_only(number<std::int32_t>(MetaType::i32, text, -1), "integer");
  check_only(number<std::uint64_t>(MetaType::u64, text, 1), "integer");
  check_only(number<std::int64_t>(MetaType::i64, text, -1), "integer");
  check_only(number<float>(MetaType::f32, text, 1), "float");
  check_only(number<double>(MetaType::f64, text, 1), "float");
  check_only(number<std::uint8_t>(MetaType::boolean, text, 1), "bool");
  check_only(MetaAccess::value(MetaType::string, test::bytes_of("12345678")), "string");
  check_only(MetaAccess::array(MetaType::u8, 8, test::bytes_of("12345678")), "array");
}

TEST_CASE("integers keep their sign and must fit") {
  std::string text;
  const auto both = [](const MetaValue& value) {
    return std::pair(value.as_int64(), value.as_uint64());
  };
  using Both = std::pair<std::optional<std::int64_t>, std::optional<std::uint64_t>>;
  CHECK(both(number<std::int8_t>(MetaType::i8, text, -128)) == Both(-128, std::nullopt));
  CHECK(both(number<std::uint8_t>(MetaType::u8, text, 255)) == Both(255, 255));
  CHECK(both(number<std::int16_t>(MetaType::i16, text, -32768)) == Both(-32768, std::nullopt));
  CHECK(both(number<std::uint16_t>(MetaType::u16, text, 65535)) == Both(65535, 65535));
  CHECK(both(number<std::int32_t>(MetaType::i32, text, INT32_MIN)) ==
        Both(INT32_MIN, std::nullopt));
  CHECK(both(number<std::uint32_t>(MetaType::u32, text, UINT32_MAX)) ==
        Both(UINT32_MAX, UINT32_MAX));
  CHECK(both(number<std::int64_t>(MetaType::i64, text, INT64_MIN)) ==
        Both(INT64_MIN, std::nullopt));
  CHECK(both(number<std::int64_t>(MetaType::i64, text, INT64_MAX)) == Both(INT64_MAX, INT64_MAX));
  CHECK(both(number<std::uint64_t>(MetaType::u64, text, UINT64_MAX)) ==
        Both(std::nullopt, UINT64_MAX));
}

TEST_CASE("floats keep their bits") {
  std::string text;
  CHECK(number<float>(MetaType::f32, text, 1e-6F).as_float() == double{1e-6F});
  CHECK(number<double>(MetaType::f64, text, 0.1).as_float() == 0.1);
  CHECK(std::isnan(*number<float>(MetaType::f32, text, NAN).as_float()));
  CHECK(number<double>(MetaType::f64, text, -INFINITY).as_float() == -INFINITY);
}

TEST_CASE("a string may be any bytes") {
  const OneValue bytes(MetaType::string, gguf_string(std::string("\xFF\0a", 3)));
  CHECK(bytes.value.as_string() == std::string_view("\xFF\0a", 3));
  CHECK_FALSE(bytes.value.is_utf8());
  const OneValue empty(MetaType::string, gguf_string(""));
  CHECK(empty.value.as_string() == "");
  CHECK(empty.value.is_utf8());
}

TEST_CASE("arrays of numbers are iterated, and available as bytes") {
  const OneValue one(
      MetaType::array,
      gguf_array(5, 3, le<std::int32_t>(1) + le<std::int32_t>(-2) + le<std::int32_t>(3)));
  const MetaArray array = *one.value.as_array();
  CHECK(array.element_type() == MetaType::i32);
  CHECK(array.size() == 3);
  CHECK(array.raw()->size() == 12);
  std::vector<std::int64_t> found;
  for (const MetaValue element : array) found.push_back(*element.as_int64());
  CHECK(found == std::vector<std::int64_t>{1, -2, 3});
  auto twice = array.begin();
  const auto again = twice++;
  CHECK((*again).as_int64() == 1);
  CHECK((*twice).as_int64() == -2);

  const OneValue none(MetaType::array, gguf_array(5, 0, ""));
  CHECK(none.value.as_array()->empty());
  CHECK(none.value.as_array()->begin() == none.value.as_array()->end());
}

TEST_CASE("arrays in arrays are iterated") {
  const std::string words = gguf_array(8, 2, gguf_string("a") + gguf_string(""));
  const std::string numbers = gguf_array(2, 2, le<std::uint16_t>(7) + le<std::uint16_t>(8));
  const std::string inner = gguf_array(9, 3, words + gguf_array(0, 0, "") + numbers);
  const OneValue one(MetaType::array, gguf_array(9, 2, inner + words));
  const MetaArray outer = *one.value.as_array();
  CHECK_FALSE(outer.raw());
  std::string seen;
  const auto show = [&](const auto& self, const MetaArray& array) -> void {
    seen += "[";
    for (const MetaValue element : array) {
      if (const auto deeper = element.as_array()) self(self, *deeper);
      if (const auto text = element.as_string()) seen += "'" + std::string(*text) + "'";
      if (const auto number = element.as_int64()) seen += std::to_string(*number);
    }
    seen += "]";
  };
  show(show, outer);
  CHECK(seen == "[[['a'''][][78]]['a''']]");
}

TEST_CASE("values are equal by type and bytes") {
  std::string one;
  std::string two;
  CHECK(number<std::int32_t>(MetaType::i32, one, 5) == number<std::int32_t>(MetaType::i32, two, 5));
  CHECK(number<std::int32_t>(MetaType::i32, one, 5) !=
        number<std::uint32_t>(MetaType::u32, two, 5));
  CHECK(number<std::int32_t>(MetaType::i32, one, 5) != number<std::int32_t>(MetaType::i32, two, 6));
  const auto bytes = test::bytes_of("1234");
  CHECK(MetaAccess::array(MetaType::u16, 2, bytes) != MetaAccess::array(MetaType::i16, 2, bytes));
  CHECK(MetaAccess::array(MetaType::u16, 2, bytes) != MetaAccess::array(MetaType::u32, 1, bytes));
}

TEST_CASE("a table of strings keeps its text") {
  ModelMetadata copy;
  {
    std::string key = "format";
    std::string value = std::string("m\0lx", 4);
    const std::array<std::pair<std::string_view, std::string_view>, 3> items = {
        {{key, value}, {"empty", ""}, {"", "no key"}}};
    const ModelMetadata made = ModelMetadata::of_strings(items);
    key = value = "??????";
    copy = made;
  }
  REQUIRE(copy.size() == 3);
  CHECK(copy.begin()->key == "format");
  CHECK(copy.find("format")->as_string() == std::string_view("m\0lx", 4));
  CHECK(copy.find("format")->type() == MetaType::string);
  CHECK(copy.find("empty")->as_string() == "");
  CHECK(copy.find("")->as_string() == "no key");
  CHECK(copy.find("Format") == nullptr);
  CHECK(ModelMetadata::of_strings({}).empty());
}

TEST_CASE("types have names and sizes") {
  std::size_t sized = 0;
  for (unsigned id = 0; id <= 12; ++id) {
    const auto type = static_cast<MetaType>(id);
    CHECK(name(type) != "unknown");
    sized += byte_size(type).value_or(0);
  }
  CHECK(sized == 3 * 1 + 2 * 2 + 3 * 4 + 3 * 8);
  CHECK(name(MetaType::boolean) == "bool");
}
