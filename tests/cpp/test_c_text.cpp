// C: strings as arguments, as languages pass them whose strings are a pointer and a size.
#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "c_support.hpp"

namespace {

/// What such a language has for an empty string of its own: an address, and nothing at it.
const char* dangling() {
  static const volatile std::uintptr_t address = 1;
  return reinterpret_cast<const char*>(address);
}

/// Pointers for a size of 0: the address of nothing, NULL, and one within a longer string.
std::vector<const char*> empties() { return {dangling(), nullptr, "secret"}; }

struct Outcome {
  std::string code;
  std::string bytes;
  std::string text;
};

Outcome serialized(const std::vector<safetensors_tensor>& tensors,
                   const std::vector<safetensors_item>& items) {
  std::string bytes(1000, '\0');
  std::uint64_t nbytes = 0;
  safetensors_error error{};
  const safetensors_save_options options = test::with_metadata(items.data(), items.size());
  const std::int32_t code = safetensors_serialize(tensors.data(), tensors.size(), &options,
                                                  bytes.data(), bytes.size(), &nbytes, &error);
  bytes.resize(nbytes);
  return {test::named(code), bytes, error.text};
}

safetensors_tensor byte_named(const char* name, std::size_t size) {
  return {name, size, nullptr, 0, "x", 1, 0, SAFETENSORS_U8, 0};
}

std::string found(const test::File& file, const char* name, std::size_t size) {
  safetensors_tensor tensor{};
  const std::int32_t code = safetensors_find(file.get(), name, size, &tensor, nullptr);
  if (code != SAFETENSORS_OK) return test::named(code);
  return "ok " + std::string(tensor.name, tensor.name_size);
}

}  // namespace

TEST_CASE("C: a size of 0 is the empty string, wherever its pointer points") {
  for (const char* const empty : empties()) {
    CAPTURE((empty == nullptr));
    const Outcome saved =
        serialized({byte_named(empty, 0)}, {{"note", 4, empty, 0}, {empty, 0, "value", 5}});
    REQUIRE(saved.code == "ok");
    CHECK(saved.bytes.find(R"({"__metadata__":{"":"value","note":""},"":{"dtype":"U8")") == 8);
    CHECK(saved.bytes.find("secret") == std::string::npos);

    const test::File file = test::open_memory(saved.bytes);
    CHECK(found(file, empty, 0) == "ok ");
    std::size_t size = 7;
    const char* value = safetensors_metadata_value(file.get(), 0, empty, 0, &size);
    REQUIRE(value != nullptr);
    CHECK(std::string_view(value, size) == "value");
    value = safetensors_metadata_value(file.get(), 0, "note and more", 4, &size);
    REQUIRE(value != nullptr);
    CHECK(size == 0);
    CHECK(*value == '\0');
  }
}

TEST_CASE("C: the functions of a writer take an empty name") {
  const test::TempDir folder;
  const std::string path = (folder / "f").string();
  const std::vector<safetensors_tensor> specs = {byte_named(dangling(), 0), byte_named("b", 1)};
  for (const char* const empty : empties()) {
    for (int way = 0; way < 2; ++way) {
      safetensors_writer* writer = nullptr;
      REQUIRE(safetensors_writer_create(SAFETENSORS_TEXT(path.c_str()), specs.data(), specs.size(),
                                        nullptr, &writer, nullptr) == SAFETENSORS_OK);
      const Outcome other = serialized({byte_named("c", 1)}, {});
      const test::File from = test::open_memory(other.bytes);
      const safetensors_tensor copied = test::find(from, "c");
      const std::int32_t code =
          way == 0 ? safetensors_writer_write(writer, empty, 0, 0, "x", 1, nullptr)
                   : safetensors_writer_copy(writer, empty, 0, from.get(), &copied, nullptr);
      CHECK(test::named(code) == "ok");
      CHECK(test::named(safetensors_writer_write(writer, "b...", 1, 0, "y", 1, nullptr)) == "ok");
      CHECK(test::named(safetensors_writer_commit(writer, nullptr)) == "ok");
      safetensors_writer_free(writer);
      CHECK(found(test::open(path), "", 0) == "ok ");
    }
  }
}

TEST_CASE("C: a file without an empty name or key has none") {
  const Outcome saved = serialized({byte_named("a", 1)}, {{"k", 1, "v", 1}});
  const test::File file = test::open_memory(saved.bytes);
  for (const char* const empty : empties()) {
    CHECK(found(file, empty, 0) == "kTensorNotFound");
    CHECK(safetensors_metadata_value(file.get(), 0, empty, 0, nullptr) == nullptr);
  }
}

TEST_CASE("C: a string is as long as its size, or ends before its first NUL") {
  constexpr std::size_t kNul = SAFETENSORS_NUL_TERMINATED;
  const char text[] = "ab\0cd";
  for (const auto& [size, name] : std::vector<std::pair<std::size_t, std::string_view>>{
           {1, "a"}, {2, "ab"}, {3, {text, 3}}, {5, {text, 5}}, {kNul, "ab"}}) {
    CAPTURE(size);
    const Outcome saved = serialized({byte_named(text, size)}, {{text, size, text, size}});
    REQUIRE(saved.code == "ok");
    const test::File file = test::open_memory(saved.bytes);
    CHECK(found(file, text, size) == "ok " + std::string(name));
    safetensors_item item{};
    REQUIRE(safetensors_metadata_at(file.get(), 0, 0, &item, nullptr) == SAFETENSORS_OK);
    CHECK(std::string_view(item.key, item.key_size) == name);
    CHECK(std::string_view(item.value, item.value_size) == name);
    std::size_t value_size = 0;
    REQUIRE(safetensors_metadata_value(file.get(), 0, text, size, &value_size) != nullptr);
    CHECK(value_size == name.size());
  }
}

TEST_CASE("C: a size that no string has, and NULL with a size, are refused") {
  const Outcome saved = serialized({byte_named("a", 1)}, {{"k", 1, "v", 1}});
  const test::File file = test::open_memory(saved.bytes);
  constexpr std::size_t kSizes[] = {1, 8, std::size_t{PTRDIFF_MAX} + 1, SIZE_MAX - 1,
                                    SAFETENSORS_NUL_TERMINATED};
  for (const std::size_t size : kSizes) {
    CAPTURE(size);
    for (const char* const text : {static_cast<const char*>(nullptr), "a"}) {
      if (text != nullptr && (size <= 8 || size == SAFETENSORS_NUL_TERMINATED)) continue;
      CHECK(found(file, text, size) == "kInvalidArgument");
      CHECK(safetensors_metadata_value(file.get(), 0, text, size, nullptr) == nullptr);
      const std::string wanted = text == nullptr ? " is NULL" : " has a size of ";
      const Outcome name = serialized({byte_named(text, size)}, {});
      CHECK(name.code == "kInvalidArgument");
      CHECK(name.text.starts_with("name" + wanted));
      const Outcome key = serialized({}, {{text, size, "v", 1}});
      CHECK(key.code == "kInvalidArgument");
      CHECK(key.text.starts_with("key" + wanted));
      const Outcome value = serialized({}, {{"k", 1, text, size}});
      CHECK(value.code == "kInvalidArgument");
      CHECK(value.text.starts_with("value" + wanted));
    }
  }
}
