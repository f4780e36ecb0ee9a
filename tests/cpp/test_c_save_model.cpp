// C: saving models of several files. Not on Windows, as model_writer.hpp.
#include <doctest/doctest.h>

#include <map>
#include <string>
#include <vector>

#include "c_support.hpp"
#include "model_saves.hpp"

using test::SavedModel;

namespace {

constexpr std::uint64_t kOne = 10'000;
constexpr std::uint64_t kThree = 400;

safetensors_save_model_options with_limit(std::uint64_t max_shard_nbytes) {
  auto options = test::sized<safetensors_save_model_options>();
  options.max_shard_nbytes = max_shard_nbytes;
  return options;
}

std::int32_t save(const std::vector<test::OwnTensor>& tensors, const test::fs::path& folder,
                  const safetensors_save_model_options* options,
                  safetensors_error* error = nullptr) {
  const std::vector<safetensors_tensor> given = test::c_tensors(tensors);
  return safetensors_save_model(SAFETENSORS_TEXT(folder.string().c_str()), given.data(),
                                given.size(), options, error);
}

/// Stops a save whose callback is called as often as `context` says.
std::int32_t count_down(void* context) {
  return --*static_cast<std::int32_t*>(context) == 0 ? 7 : 0;
}

}  // namespace

TEST_CASE("C: the files of a saved model are those of C++") {
  const test::TempDir folder;
  const safetensors_item item = {"format", 6, "pt", 2};
  const safetensors::Metadata metadata = {{"format", "pt"}};
  for (const std::uint64_t limit : {kOne, kThree}) {
    const SavedModel model = test::new_model(limit);
    for (const bool with_sums : {false, true}) {
      const std::string name = with_sums ? "consolidated" : "";
      auto options = with_limit(limit);
      options.metadata = &item;
      options.metadata_count = 1;
      options.name = name.data();
      options.name_size = name.size();
      options.flags = with_sums ? SAFETENSORS_SUMS | SAFETENSORS_FSYNC : 0;
      REQUIRE(save(model.tensors, folder / "c", &options) == SAFETENSORS_OK);
      safetensors::save_model(
          folder / "cpp", test::views_of(model.tensors), &metadata,
          {.max_shard_nbytes = limit, .name = with_sums ? name : "model", .sums = with_sums});
      CHECK(test::contents(folder / "c") == test::contents(folder / "cpp"));
    }
  }
  // Of each name the last model, of three files with an index; of one the sums, too.
  CHECK(test::contents(folder / "c").size() == 4 + 5);
}

TEST_CASE("C: a saved model replaces an older one as a whole, by default in one file") {
  const test::TempDir folder;
  const SavedModel old = test::old_model(kThree);
  const SavedModel next = test::new_model(kOne);
  const auto options = with_limit(kThree);
  REQUIRE(save(old.tensors, folder.path(), &options) == SAFETENSORS_OK);
  CHECK(test::contents(folder.path()) == test::files_of(old));
  REQUIRE(save(next.tensors, folder.path(), nullptr) == SAFETENSORS_OK);
  CHECK(test::contents(folder.path()) == test::files_of(next));
}

TEST_CASE("C: a callback ends the save of a model, which then is the old one or the new one") {
  const SavedModel old = test::old_model(kThree);
  const SavedModel next = test::new_model(kThree);
  const auto old_files = test::files_of(old);
  const auto new_files = test::files_of(next);
  std::size_t undone = 0;
  for (std::int32_t limit = 1;; ++limit) {
    const test::TempDir folder;
    test::save(old, folder.path());
    std::int32_t left = limit;
    auto watch = test::sized<safetensors_watch>();
    watch.context = &left;
    watch.interrupt = count_down;
    watch.progress = [](void* context, std::uint64_t, std::uint64_t) {
      return count_down(context);
    };
    auto options = with_limit(kThree);
    options.watch = &watch;
    safetensors_error error{};
    const std::int32_t code = save(next.tensors, folder.path(), &options, &error);
    const auto found = test::contents(folder.path());
    CAPTURE(limit);
    if (code == SAFETENSORS_OK) {
      CHECK(found == new_files);
      break;
    }
    REQUIRE(code == SAFETENSORS_STOPPED);
    CHECK(error.detail == 7);
    if (found != new_files) {
      CHECK(found == old_files);
      ++undone;
    }
  }
  CHECK(undone > 5);
}

TEST_CASE("C: what is no model, and arguments that are not allowed, leave the old model") {
  const test::TempDir folder;
  const SavedModel old = test::old_model(kThree);
  test::save(old, folder.path());
  const auto before = test::contents(folder.path());
  safetensors_error error{};
  const auto outcome = [&](const auto& change, const std::vector<test::OwnTensor>& tensors) {
    auto options = with_limit(kThree);
    change(options);
    return test::named(save(tensors, folder.path(), &options, &error));
  };
  for (const std::string name : {"a/b", ".hidden", "a\\b"}) {
    CHECK(outcome(
              [&](auto& options) {
                options.name = name.data();
                options.name_size = name.size();
              },
              old.tensors) == "kInvalidArgument");
  }
  CHECK(outcome([](auto& options) { options.flags = SAFETENSORS_BLOCKS; }, old.tensors) ==
        "kInvalidArgument");
  CHECK(outcome([](auto& options) { options.reserved = 1; }, old.tensors) == "kInvalidArgument");
  CHECK(outcome([](auto& options) { options.size = 1; }, old.tensors) == "kInvalidArgument");
  CHECK(outcome([](auto& options) { options.metadata_count = 1; }, old.tensors) ==
        "kInvalidArgument");
  const auto none = [](auto&) {};
  // Names in two files of the model are compared, too.
  CHECK(outcome(none, {old.tensors[0], old.tensors[1], old.tensors[2], old.tensors[3],
                       old.tensors[0]}) == "kDuplicateName");
  CHECK(error.text + error.subject == old.tensors[0].name);
  CHECK(outcome(none, {test::tensor_of("\xFF", test::Dtype::kU8, {1})}) == "kInvalidHeaderUtf8");
  std::vector<test::OwnTensor> wrong = {test::tensor_of("w", test::Dtype::kF32, {3})};
  wrong[0].bytes.pop_back();
  CHECK(outcome(none, wrong) == "kInvalidTensorInfo");
  CHECK(test::contents(folder.path()) == before);

  CHECK(test::named(save(old.tensors, folder / "none" / "m", nullptr, &error)) == "kIo");
  CHECK(test::named(save(old.tensors, folder / "m.safetensors", nullptr)) == "kInvalidArgument");
  CHECK(test::named(save(old.tensors, "", nullptr)) == "kInvalidArgument");
  CHECK(test::named(safetensors_save_model(SAFETENSORS_TEXT("m"), nullptr, 1, nullptr, nullptr)) ==
        "kInvalidArgument");
  CHECK(test::contents(folder.path()) == before);
}
