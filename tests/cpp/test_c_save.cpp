// C: writing.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "c_support.hpp"
#include "safetensors/save.hpp"

using test::OwnTensor;

TEST_CASE("C: a saved file and its metadata equal those of C++") {
  const test::TempDir folder;
  const std::vector<OwnTensor> tensors = test::some_tensors();
  const std::vector<safetensors_tensor> given = test::c_tensors(tensors);
  const safetensors_item items[] = {
      {"format", SAFETENSORS_NUL_TERMINATED, "pt", SAFETENSORS_NUL_TERMINATED}, {"a\0b", 3, "", 0}};
  const safetensors::Metadata metadata = {{"format", "pt"}, {std::string("a\0b", 3), ""}};
  const std::string path = (folder / "f").string();
  for (const std::size_t count : {std::size_t{0}, std::size_t{2}}) {
    for (const bool fsync : {false, true}) {
      const safetensors_item* const given_items = count == 0 ? nullptr : items;
      const auto options =
          test::with_metadata(given_items, count, fsync ? std::uint32_t{SAFETENSORS_FSYNC} : 0U);
      REQUIRE(safetensors_save(SAFETENSORS_TEXT(path.c_str()), given.data(), given.size(), &options,
                               nullptr) == SAFETENSORS_OK);
      const auto metadata_only = test::with_metadata(given_items, count);
      const auto wanted =
          safetensors::serialize(test::views_of(tensors), count == 0 ? nullptr : &metadata);
      CHECK(test::read_text(path) == test::text_of(wanted.bytes()));
      std::uint64_t nbytes = 0;
      const auto serialize = [&](void* to, std::size_t room) {
        return test::named(safetensors_serialize(given.data(), given.size(), &metadata_only, to,
                                                 room, &nbytes, nullptr));
      };
      CHECK(serialize(nullptr, 0) == "ok");
      REQUIRE(nbytes == wanted.size());
      std::vector<std::byte> bytes(nbytes);
      CHECK(serialize(bytes.data(), nbytes) == "ok");
      CHECK(std::ranges::equal(bytes, wanted.bytes()));
      CHECK(serialize(bytes.data(), nbytes - 1) == "kInvalidArgument");
    }
    const test::File file = test::open(path);
    CHECK(test::info_of(file).metadata_count == count);
  }
  const test::File file = test::open(path);
  std::size_t size = 7;
  CHECK(safetensors_metadata_value(file.get(), 0, "nope", 4, &size) == nullptr);
  CHECK(size == 7);
  CHECK(std::string(safetensors_metadata_value(file.get(), 0, "format", 6, nullptr)) == "pt");
  CHECK(safetensors_metadata_value(file.get(), 0, "a\0b", 3, &size) != nullptr);
  CHECK(size == 0);
  CHECK(safetensors_metadata_value(nullptr, 0, "format", 6, &size) == nullptr);
  safetensors_item item{};
  REQUIRE(safetensors_metadata_at(file.get(), 0, 0, &item, nullptr) == SAFETENSORS_OK);
  CHECK(std::string_view(item.key, item.key_size) == std::string_view("a\0b", 3));
  CHECK(item.value_size == 0);
  CHECK(test::named(safetensors_metadata_at(file.get(), 0, 2, &item, nullptr)) ==
        "kIndexOutOfBounds");

  // From one file to another, as they are.
  std::vector<safetensors_tensor> read(safetensors_count(file.get()));
  for (std::size_t i = 0; i < read.size(); ++i) {
    REQUIRE(safetensors_at(file.get(), i, &read[i], nullptr) == SAFETENSORS_OK);
  }
  const auto options = test::with_metadata(items, 2);
  REQUIRE(safetensors_save(SAFETENSORS_TEXT((folder / "g").string().c_str()), read.data(),
                           read.size(), &options, nullptr) == SAFETENSORS_OK);
  CHECK(test::read_text(folder / "g") == test::read_text(path));
}

TEST_CASE("C: a metadata value that contains a NUL is returned whole") {
  const safetensors_item item = {"k", 1, "a\0b", 3};
  std::uint64_t nbytes = 0;
  std::string bytes(1000, '\0');
  const auto options = test::with_metadata(&item, 1);
  REQUIRE(safetensors_serialize(nullptr, 0, &options, bytes.data(), bytes.size(), &nbytes,
                                nullptr) == SAFETENSORS_OK);
  bytes.resize(nbytes);
  const test::File file = test::open_memory(bytes);
  std::size_t size = 0;
  const char* const value =
      safetensors_metadata_value(file.get(), 0, "k", SAFETENSORS_NUL_TERMINATED, &size);
  CHECK(std::string_view(value, size) == std::string_view("a\0b", 3));
  CHECK(value[size] == '\0');
}

TEST_CASE("C: invalid tensors are refused, and the old file is unchanged") {
  const test::TempDir folder;
  const std::string path = (folder / "f").string();
  test::write_text(path, "old");
  const std::vector<OwnTensor> tensors = {test::tensor_of("t", safetensors::Dtype::kF32, {4})};
  const auto outcome = [&](auto change, std::vector<safetensors_item> items = {},
                           std::uint32_t flags = 0) {
    std::vector<safetensors_tensor> given = test::c_tensors(tensors);
    change(given);
    const auto options =
        test::with_metadata(items.empty() ? nullptr : items.data(), items.size(), flags);
    return test::named(safetensors_save(SAFETENSORS_TEXT(path.c_str()), given.data(), given.size(),
                                        &options, nullptr));
  };
  const auto none = [](auto&) {};
  CHECK(outcome([](auto& given) { given[0].data = nullptr; }) == "kInvalidArgument");
  CHECK(outcome([](auto& given) { given[0].name = nullptr; }) == "kInvalidArgument");
  CHECK(outcome([](auto& given) { given[0].shape = nullptr; }) == "kInvalidArgument");
  CHECK(outcome([](auto& given) { given[0].dtype = -1; }) == "kUnsupportedDtype");
  CHECK(outcome([](auto& given) { given[0].nbytes = 15; }) == "kInvalidTensorInfo");
  CHECK(outcome([](auto& given) { given.push_back(given[0]); }) == "kDuplicateName");
  CHECK(outcome(none, {{"k", SAFETENSORS_NUL_TERMINATED, "v", SAFETENSORS_NUL_TERMINATED},
                       {"k", 1, "w", 1}}) == "kDuplicateName");
  CHECK(outcome(none, {{"k", 1, nullptr, 1}}) == "kInvalidArgument");
  CHECK(outcome(none, {}, SAFETENSORS_BLOCKS) == "kInvalidArgument");
  CHECK(test::named(safetensors_save(nullptr, 1, nullptr, 0, nullptr, nullptr)) ==
        "kInvalidArgument");
  CHECK(test::named(safetensors_save(SAFETENSORS_TEXT(path.c_str()), nullptr, 1, nullptr,
                                     nullptr)) == "kInvalidArgument");
  CHECK(test::read_text(path) == "old");
  CHECK(outcome(none) == "ok");
}
