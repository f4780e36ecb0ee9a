// C: changing files, and recovery.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "c_support.hpp"
#include "safetensors/save.hpp"

using test::OwnTensor;

namespace {

std::string updated(const std::string& path, const std::vector<safetensors_tensor>& tensors,
                    const safetensors_update_options& options, safetensors_error* error = nullptr) {
  return test::named(safetensors_update_file(SAFETENSORS_TEXT(path.c_str()), tensors.data(),
                                             tensors.size(), &options, error));
}

}  // namespace

TEST_CASE("C: tensors of a file change, are added and removed") {
  const test::TempDir folder;
  const std::string path = (folder / "m.safetensors").string();
  const OwnTensor a = test::tensor_of("a", test::Dtype::kF32, {40}, 1);
  const OwnTensor b = test::tensor_of("b", test::Dtype::kU8, {7}, 1);
  const std::vector<OwnTensor> old = {a, b};
  safetensors::save_file(test::views_of(old), path);

  const std::vector<OwnTensor> changed = {test::tensor_of("a", test::Dtype::kF32, {40}, 2)};
  const std::vector<safetensors_tensor> given = test::c_tensors(changed);
  auto options = test::sized<safetensors_update_options>();
  const auto expect = [&](const std::vector<OwnTensor>& wanted) {
    const test::File file = test::open(path);
    REQUIRE(safetensors_count(file.get()) == wanted.size());
    for (const OwnTensor& each : wanted) {
      safetensors_tensor tensor{};
      REQUIRE(safetensors_find(file.get(), each.name.data(), each.name.size(), &tensor, nullptr) ==
              SAFETENSORS_OK);
      std::vector<std::byte> bytes(each.bytes.size());
      REQUIRE(test::read(file.get(), tensor, bytes.data(), bytes.size()) == SAFETENSORS_OK);
      CHECK(bytes == each.bytes);
    }
  };
#if !defined(_WIN32)
  options.flags = SAFETENSORS_UPDATE_IN_PLACE | SAFETENSORS_UPDATE_SHARED;
  CHECK(updated(path, given, options) == "ok");
  expect({changed[0], b});
#endif
  const std::vector<OwnTensor> added = {test::tensor_of("new", test::Dtype::kI16, {2, 2}, 3)};
  const std::vector<safetensors_tensor> new_tensors = test::c_tensors(added);
  options.flags = 0;
  CHECK(updated(path, new_tensors, options) == "kTensorNotFound");
  options.flags = SAFETENSORS_UPDATE_ADD | SAFETENSORS_FSYNC;
  const std::vector<OwnTensor> gone = {b};
  const std::vector<safetensors_tensor> removed = test::c_tensors(gone);
  options.remove = removed.data();
  options.remove_count = removed.size();
  const safetensors_item item = {"k", 1, "v", 1};
  options.metadata = &item;
  options.metadata_count = 1;
  CHECK(updated(path, new_tensors, options) == "ok");
  CHECK(test::info_of(test::open(path)).metadata_count == 1);
  CHECK(safetensors_update_file(SAFETENSORS_TEXT(path.c_str()), given.data(), given.size(), nullptr,
                                nullptr) == SAFETENSORS_OK);
  expect({changed[0], added[0]});

  safetensors_error error{};
  CHECK(updated(path, new_tensors, options, &error) == "kTensorNotFound");  // b is gone
  CHECK(error.text + error.subject == std::string("b"));
  options = test::sized<safetensors_update_options>();
  options.flags = SAFETENSORS_UPDATE_IN_PLACE | SAFETENSORS_SUMS;
  CHECK(updated(path, given, options) == "kInvalidArgument");
  options.flags = 1U << 20;
  CHECK(updated(path, given, options) == "kInvalidArgument");
  options.flags = 0;
  options.remove_count = 1;
  CHECK(updated(path, given, options) == "kInvalidArgument");
  options.remove_count = 0;
  options.reserved = 1;
  CHECK(updated(path, given, options) == "kInvalidArgument");
}

#if !defined(_WIN32)
TEST_CASE("C: recovery") {
  const test::TempDir folder;
  const std::string path = (folder / "m.safetensors").string();
  const std::vector<OwnTensor> tensors = test::some_tensors();
  safetensors::save_file(test::views_of(tensors), path);
  std::int32_t outcome = 9;
  CHECK(safetensors_recover(SAFETENSORS_TEXT(path.c_str()), &outcome, nullptr) == SAFETENSORS_OK);
  CHECK(outcome == SAFETENSORS_RECOVERY_CLEAN);
  test::write_text(folder / ".m.safetensors.0123456789abcdef.tmp", "left");
  CHECK(safetensors_recover(SAFETENSORS_TEXT(path.c_str()), &outcome, nullptr) == SAFETENSORS_OK);
  CHECK((outcome == SAFETENSORS_RECOVERY_ROLLED_BACK) == (folder.count() == 1));
  test::fs::remove(folder / "m.safetensors");
  CHECK(test::named(safetensors_recover(SAFETENSORS_TEXT(path.c_str()), &outcome, nullptr)) ==
        "kIo");
  CHECK(test::named(safetensors_recover(SAFETENSORS_TEXT(path.c_str()), nullptr, nullptr)) ==
        "kInvalidArgument");
}
#endif
