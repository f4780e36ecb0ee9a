// Models in folders where a save is under way, and folders below that have models.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "open/model_folder.hpp"
#include "safetensors/detail/model_folder.hpp"
#include "support.hpp"

using safetensors::check_saves;
using safetensors::ErrorCode;
using safetensors::find_model_files;
using safetensors::names_in;
using test::TempDir;

namespace {

constexpr const char* kModelFile = "model.safetensors";
constexpr const char* kSaveFolder = ".model.0123456789abcdef.save";

/// Makes the private folder of a save whose files are taking their places.
void make_save(const TempDir& dir, const std::string& name, const std::string& content = "{}") {
  test::fs::create_directory(dir / name);
  test::fs::permissions(dir / name, test::fs::perms::owner_all);
  test::write_text(test::fs::path(dir / name) / "switch", content);
}

std::string outcome(const TempDir& dir, const safetensors::ModelChoice& choice = {}) {
  return test::outcome_of([&] { (void)find_model_files(dir.path(), choice); });
}

}  // namespace

TEST_CASE("a folder whose files are taking their places is refused") {
  const TempDir dir;
  test::write_text(dir / kModelFile, "");
  make_save(dir, kSaveFolder);
  const auto error = test::error_of([&] { (void)find_model_files(dir.path()); });
  CHECK(error.code() == ErrorCode::kIncompleteModel);
  CHECK(error.path() == dir.path());
  CHECK(error.what() ==
        dir.path().string() +
            ": a save of `model` was interrupted while its files took their places, or is about to "
            "end. `safetensors recover` completes it (found .model.0123456789abcdef.save)");
  CHECK(outcome(dir, {.name = "model"}) == "kIncompleteModel");
  test::fs::remove(dir / kModelFile);  // no model, because of the save
  CHECK(outcome(dir) == "kIncompleteModel");
  CHECK(outcome(dir, {.name = "x"}) == "kNoModel");
  CHECK(test::outcome_of([&] { safetensors::detail::refuse_interrupted(dir.path()); }) ==
        "kIncompleteModel");
}

TEST_CASE("an index shows that a save has ended") {
  const TempDir dir;
  make_save(dir, kSaveFolder);
  const std::string index = R"({"weight_map": {"a": "model-00001-of-00001.safetensors"}})";
  test::write_text(dir / "model.safetensors.index.json", index);
  CHECK(outcome(dir) == "ok");
  test::write_text(dir / kModelFile, "");
  test::write_text(dir / "model-00001-of-00001.safetensors", "");
  CHECK(outcome(dir) == "kIncompleteModel");  // the old file may go in a moment
}

TEST_CASE("a save that has ended hides no other one") {
  const TempDir dir;
  const std::string other = ".other.0123456789abcdef.save";
  make_save(dir, kSaveFolder);
  make_save(dir, other);
  const safetensors::ModelFiles found;
  const std::vector<std::string> names = {kSaveFolder, "model.safetensors.index.json", other};
  CHECK(test::outcome_of([&] { (void)check_saves(dir.path(), names, {}, &found); }) ==
        "kIncompleteModel");
}

TEST_CASE("other private folders are no save that switches") {
  const TempDir dir;
  test::write_text(dir / kModelFile, "");
  make_save(dir, ".notes.save");
  make_save(dir, "model.0123456789abcdef.save");
  make_save(dir, ".model.0123456789abcdef.save", "");  // it has not begun to switch
  test::write_text(dir / ".x.0123456789abcdef.save", "{}");
  test::fs::create_directory(dir / ".z.0123456789abcdef.save");
#if !defined(_WIN32)
  test::fs::permissions(dir / ".z.0123456789abcdef.save", test::fs::perms::owner_all);
  make_save(dir, ".y.0123456789abcdef.save");  // not private
  test::fs::permissions(dir / ".y.0123456789abcdef.save",
                        test::fs::perms::owner_all | test::fs::perms::others_read);
#endif
  CHECK(outcome(dir) == "ok");
  CHECK(test::outcome_of([&] { safetensors::detail::refuse_interrupted(dir.path()); }) == "ok");
}

TEST_CASE("a save that ends while a reader looks makes it look again") {
  const TempDir dir;
  test::write_text(dir / kModelFile, "");
  make_save(dir, kSaveFolder);
  const auto names = names_in(dir.path()).all;
  test::fs::remove(test::fs::path(dir / kSaveFolder) / "switch");
  CHECK(check_saves(dir.path(), names, {}, nullptr));  // it was killed before it began to switch
  test::write_text(dir / "another", "");
  CHECK(!check_saves(dir.path(), names, {}, nullptr));
  test::fs::remove(dir / "another");
  test::fs::remove(dir / kSaveFolder);
  CHECK(!check_saves(dir.path(), names, {}, nullptr));
  CHECK(check_saves(dir.path(), names_in(dir.path()).all, {}, nullptr));
}

TEST_CASE("the folders below that have models are named") {
  const TempDir dir;
  const auto text = [&] {
    return std::string(test::error_of([&] { (void)find_model_files(dir.path()); }).what());
  };
  const std::string none = "No .safetensors files in the directory";
  const std::string in = " (in " + dir.path().string() + ")";
  CHECK(text() == none + in);
  for (const char* name : {"vae", "unet", ".hidden", "adapter", "empty"}) {
    test::fs::create_directory(dir / name);
    if (std::string(name) == "empty") continue;
    const bool is_adapter = std::string(name) == "adapter";
    test::write_text(dir / name / (is_adapter ? "adapter_model.safetensors" : kModelFile), "");
  }
  CHECK(text() == none + "; these folders have some: " + (dir / "unet").string() + ", " +
                      (dir / "vae").string() + in);
  CHECK(!safetensors::detail::has_model_files(dir.path()));
  CHECK(safetensors::detail::has_model_files(dir / "vae"));
  CHECK(!safetensors::detail::has_model_files(dir / "adapter"));
  for (char name = 'a'; name < 'z'; ++name) {
    test::fs::create_directory(dir / std::string(1, name));
    test::write_text(dir / std::string(1, name) / kModelFile, "");
  }
  const std::string below = safetensors::detail::models_below(dir.path());
  CHECK(below.ends_with((dir / "h").string() + ", ..."));
  CHECK(outcome(dir, {.name = "x"}) == "kNoModel");
}

TEST_CASE("a model is chosen among the names of a folder that lacks some") {
  const TempDir dir;
  test::write_text(dir / "model.fp16.safetensors", "");
  const std::vector<std::string> names = {kModelFile, "model.fp16.safetensors"};
  CHECK(find_model_files(dir.path()).variant == "fp16");
  CHECK(find_model_files(dir.path(), {}, names).files == std::vector<std::string>{kModelFile});
  CHECK(test::outcome_of([&] { (void)find_model_files(dir.path(), {}, {{}}); }) == "kNoModel");
}

TEST_CASE("a folder that cannot be read") {
  const auto error = test::error_of([] { (void)names_in("/nowhere/at/all"); });
  CHECK(error.code() == ErrorCode::kIo);
  CHECK(error.path() == "/nowhere/at/all");
}
