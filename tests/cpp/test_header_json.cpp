// The positions of a file's header and data, and the header's text.
#include <doctest/doctest.h>

#include <string>

#include "safetensors/safe_open.hpp"
#include "support.hpp"

using safetensors::Backend;
using safetensors::Dtype;
using safetensors::SafeOpen;

namespace {

constexpr Backend kBackends[] = {Backend::kMmap, Backend::kPread, Backend::kDirect};

}  // namespace

TEST_CASE("the header's text equals the file's bytes") {
  const test::TempDir folder;
  // More white space and another order than our writer has, and longer than the first read.
  for (const std::size_t padding : {std::size_t{0}, std::size_t{3}, std::size_t{100'000}}) {
    const std::string json =
        R"({ "a":{"shape":[2],"dtype":"U8","data_offsets":[0,2]}})" + std::string(padding, ' ');
    test::write_text(folder / "f", test::file_of(json, 2));
    for (const Backend backend : kBackends) {
      const SafeOpen file(folder / "f", {backend});
      CHECK(file.header_nbytes() == json.size());
      CHECK(file.data_offset() == 8 + json.size());
      CHECK(file.data_offset() == file.position(file.at("a")));
      CHECK(file.header_json() == json);
    }
  }
}

TEST_CASE("rereading a header that changed its length or was removed is an error") {
  const test::TempDir folder;
  const std::string whole = test::file_of("{}      ");
  for (const Backend backend : {Backend::kPread, Backend::kMmap}) {
    test::write_text(folder / "f", whole);
    const SafeOpen file(folder / "f", {backend});
    CHECK(file.header_json() == "{}      ");
    {  // in place, so that the open file is the one that changes
      std::fstream out(folder / "f", std::ios::in | std::ios::out | std::ios::binary);
      out.put('\x07');
    }
    const auto error = test::error_of([&] { (void)file.header_json(); });
    CHECK(test::name_of(error.code()) == "kFileChanged");
    CHECK(error.path() == folder / "f");
  }
  test::write_text(folder / "f", whole);
  const SafeOpen file(folder / "f", {Backend::kPread});
  test::fs::resize_file(folder / "f", 9);
  CHECK(test::outcome_of([&] { (void)file.header_json(); }) == "kFileChanged");
}

TEST_CASE("a moved-from handle can be assigned and destroyed") {
  const test::TempDir folder;
  test::write_text(folder / "f", test::file_of(R"({"a":{"dtype":"U8","shape":[1],)"
                                               R"("data_offsets":[0,1]}})",
                                               1));
  SafeOpen first(folder / "f");
  SafeOpen second = std::move(first);
  CHECK(second.find("a") != nullptr);
  first = second;
  CHECK(first.find("a") == second.find("a"));
  safetensors::TensorView view = first.get_tensor("a");
  const safetensors::TensorView taken = std::move(view);
  view = taken;
  CHECK(view.bytes().data() == taken.bytes().data());
  const SafeOpen last = std::move(first);
  CHECK(last.find("a") != nullptr);
}
