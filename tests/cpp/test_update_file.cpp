// update_file: what changes, what stays, and what is refused.
#include <doctest/doctest.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "safetensors/safe_open.hpp"
#include "safetensors/save.hpp"
#include "safetensors/update_file.hpp"
#include "support.hpp"

using safetensors::ErrorCode;
using safetensors::Metadata;
using safetensors::update_file;
using safetensors::UpdateOptions;
using test::Dtype;
using test::OwnTensor;
using test::fs::path;

namespace {

const Metadata kMetadata = {{"k", "v"}};

const std::vector<OwnTensor>& old_tensors() {
  static const std::vector<OwnTensor> tensors = {test::tensor_of("a", Dtype::kF32, {3, 500}, 1),
                                                 test::tensor_of("b", Dtype::kU8, {7}, 1),
                                                 test::tensor_of("c", Dtype::kBF16, {}, 1)};
  return tensors;
}

path make(const test::TempDir& folder) {
  const path file = folder / "m.safetensors";
  safetensors::save_file(test::views_of(old_tensors()), file, &kMetadata);
  return file;
}

/// Checks that a file has these tensors, and returns its metadata.
Metadata check_tensors(const path& file, const std::vector<OwnTensor>& wanted) {
  const safetensors::SafeOpen opened(file);
  CHECK(opened.keys().size() == wanted.size());
  for (const OwnTensor& each : wanted) {
    const safetensors::TensorView view = opened.get_tensor(each.name);
    CHECK(view.dtype == each.dtype);
    CHECK(std::ranges::equal(view.shape, each.shape));
    CHECK(std::ranges::equal(view.bytes(), each.bytes));
  }
  Metadata metadata;
  for (const auto& [key, value] : opened.metadata()) metadata.emplace(key, value);
  return metadata;
}

safetensors::Error refused(const path& file, const std::vector<OwnTensor>& tensors,
                           const UpdateOptions& options = {}) {
  const std::string before = test::read_text(file);
  const auto error = test::error_of([&] { update_file(file, test::views_of(tensors), options); });
  CHECK(test::read_text(file) == before);
  CHECK(error.path() == file);
  return error;
}

}  // namespace

TEST_CASE("values change, and all else stays") {
  const OwnTensor changed = test::tensor_of("a", Dtype::kF32, {3, 500}, 2);
  const std::vector<OwnTensor> wanted = {changed, old_tensors()[1], old_tensors()[2]};
  for (const bool in_place : {false, true}) {
#if defined(_WIN32)
    if (in_place) continue;
#endif
    const test::TempDir folder;
    const path file = make(folder);
    std::uint64_t done = 0;
    std::uint64_t total = 0;
    update_file(file, test::views_of({&changed, 1}),
                {.in_place = in_place, .shared = in_place, .progress = [&](auto now, auto all) {
                   done = now;
                   total = all;
                 }});
    CHECK(check_tensors(file, wanted) == kMetadata);
    CHECK(done == total);
    CHECK(total == (in_place ? changed.bytes.size() : test::read_text(file).size()));
    CHECK(folder.count() == 1);
  }
}

TEST_CASE("tensors are added and removed") {
  const test::TempDir folder;
  const path file = make(folder);
  const std::vector<OwnTensor> given = {test::tensor_of("new", Dtype::kI64, {5}, 3),
                                        test::tensor_of("b", Dtype::kU8, {7}, 3)};
  const std::vector<std::string_view> removed = {"a"};
  const Metadata metadata = {{"other", "x"}};
  update_file(file, test::views_of(given),
              {.add = true, .remove = removed, .metadata = &metadata, .fsync = true, .sums = true});
  CHECK(check_tensors(file, {given[0], given[1], old_tensors()[2]}) == metadata);
  CHECK(test::fs::exists(folder / "m.sums.json"));
  update_file(file, {}, {.remove_metadata = true});
  CHECK(check_tensors(file, {given[0], given[1], old_tensors()[2]}).empty());
  const safetensors::SafeOpen opened(file);
  CHECK_FALSE(opened.header().has_metadata());
  CHECK_FALSE(test::fs::exists(folder / "m.sums.json"));
}

TEST_CASE("what does not suit the file is refused, and changes nothing") {
  const test::TempDir folder;
  const path file = make(folder);
  const OwnTensor a = old_tensors()[0];
  const std::string unknown =
      refused(file, {test::tensor_of("aa", Dtype::kF32, {3, 500}, 2)}).what();
  CHECK(unknown.find("there is no tensor `aa`; the option `add` adds it") != std::string::npos);
  CHECK(unknown.find("`a`") != std::string::npos);
  for (const bool in_place : {false, true}) {
    const auto refuse = [&](const std::vector<OwnTensor>& tensors) {
      return refused(file, tensors, {.in_place = in_place, .shared = true});
    };
#if defined(_WIN32)
    if (in_place) continue;
#endif
    CHECK(refuse({test::tensor_of("x", Dtype::kF32, {3}, 2)}).code() == ErrorCode::kTensorNotFound);
    CHECK(refuse({a, a}).code() == ErrorCode::kDuplicateName);
    const auto dtype = refuse({test::tensor_of("a", Dtype::kI32, {3, 500}, 2)});
    CHECK(dtype.code() == ErrorCode::kInvalidArgument);
    CHECK(std::string(dtype.what())
              .ends_with("tensor `a` is F32 [3, 500] in the file, but I32 [3, 500] was given"));
    CHECK(refuse({test::tensor_of("a", Dtype::kF32, {1500}, 2)}).subject() == "a");
  }
  const std::vector<std::string_view> twice = {"a", "a"};
  CHECK(refused(file, {}, {.remove = twice}).code() == ErrorCode::kInvalidArgument);
  const auto first = std::span(twice).first(1);
  CHECK(refused(file, {a}, {.remove = first}).code() == ErrorCode::kInvalidArgument);
  const std::vector<std::string_view> none = {"x"};
  CHECK(refused(file, {}, {.remove = none}).code() == ErrorCode::kTensorNotFound);
  CHECK(refused(file, {}, {.metadata = &kMetadata, .remove_metadata = true}).code() ==
        ErrorCode::kInvalidArgument);
  for (const UpdateOptions& options :
       {UpdateOptions{.in_place = true, .add = true}, UpdateOptions{.in_place = true, .sums = true},
        UpdateOptions{.in_place = true, .remove = first},
        UpdateOptions{.in_place = true, .metadata = &kMetadata},
        UpdateOptions{.in_place = true, .remove_metadata = true}}) {
    CHECK(refused(file, {a}, options).code() == ErrorCode::kInvalidArgument);
  }
  CHECK(folder.count() == 1);
}

TEST_CASE("a file that another program changes meanwhile is not replaced") {
  const test::TempDir folder;
  const path file = make(folder);
  const std::vector<OwnTensor> other = {test::tensor_of("other", Dtype::kU8, {9}, 4)};
  bool is_replaced = false;
  const auto replace = [&](std::uint64_t, std::uint64_t) {
    if (is_replaced) return;
    is_replaced = true;
    safetensors::save_file(test::views_of(other), file);
  };
  const auto error = test::error_of([&] {
    update_file(file, test::views_of(std::span(old_tensors()).first(1)), {.progress = replace});
  });
  CHECK(error.code() == ErrorCode::kFileChanged);
  check_tensors(file, other);
  CHECK(folder.count() == 1);
}

TEST_CASE("a file that does not exist") {
  const test::TempDir folder;
  for (const bool in_place : {false, true}) {
    const auto error = test::error_of([&] {
      update_file(folder / "none", test::views_of(old_tensors()), {.in_place = in_place});
    });
#if defined(_WIN32)
    if (in_place) continue;
#endif
    CHECK(error.os_error() == ENOENT);
  }
  CHECK(folder.count() == 0);
}
