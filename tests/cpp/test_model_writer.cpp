// Saving models of several files: their bytes, what they replace, and what an interrupt leaves.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model_saves.hpp"
#include "posix_support.hpp"
#include "safetensors/model_writer.hpp"
#include "safetensors/sums.hpp"
#include "safetensors/writer.hpp"

using safetensors::ErrorCode;
using safetensors::ModelWriter;
using safetensors::recover;
using safetensors::Recovery;
using test::SavedModel;
using test::fs::path;

namespace {

constexpr std::uint64_t kOne = 10'000;
constexpr std::uint64_t kThree = 400;
constexpr std::uint64_t kSeven = 120;

const std::string kIndex = "model.safetensors.index.json";

struct Interrupted : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Saves and stops at step `at`, from 0 on. Returns whether it came so far.
bool stops_at(std::size_t at, const SavedModel& model, const path& folder, bool fsync) {
  std::size_t steps = 0;
  safetensors::SaveModelOptions options{.fsync = fsync};
  options.interrupt = [&] {
    if (steps++ == at) throw Interrupted("stop");
  };
  try {
    test::save(model, folder, options);
  } catch (const Interrupted&) {
    return true;
  }
  return false;
}

}  // namespace

TEST_CASE("the files are those of save_files") {
  const test::TempDir folder;
  const std::vector<test::OwnTensor> tensors = {
      test::tensor_of("b", test::Dtype::kU8, {6}, 1),
      test::tensor_of("a", test::Dtype::kU8, {6}, 2),
      test::tensor_of("\xC3\xA4", test::Dtype::kF32, {3}, 3)};
  const safetensors::Metadata metadata = {{"format", "pt"}};
  const std::vector<path> paths = safetensors::save_model(
      folder / "m", test::views_of(tensors), &metadata, {.max_shard_nbytes = 12, .sums = true});
  const std::string first = "model-00001-of-00002.safetensors";
  const std::string second = "model-00002-of-00002.safetensors";
  CHECK(paths == std::vector<path>{folder / "m" / first, folder / "m" / second});
  CHECK(test::names_in(folder / "m") ==
        std::set<std::string>{first, second, kIndex, "model.sums.json"});
  const auto bytes = [&](std::size_t from, std::size_t to) {
    const std::vector<safetensors::TensorData> views = test::views_of(tensors);
    return test::text_of(
        safetensors::serialize(std::span(views).subspan(from, to - from), &metadata).bytes());
  };
  CHECK(test::read_text(paths[0]) == bytes(0, 2));
  CHECK(test::read_text(paths[1]) == bytes(2, 3));
  // As the Python package writes it.
  CHECK(test::read_text(folder / "m" / kIndex) ==
        "{\n  \"metadata\": {\n    \"total_size\": 24\n  },\n  \"weight_map\": {\n"
        "    \"b\": \"model-00001-of-00002.safetensors\",\n"
        "    \"a\": \"model-00001-of-00002.safetensors\",\n"
        "    \"\\u00e4\": \"model-00002-of-00002.safetensors\"\n  }\n}");
  const safetensors::Sums sums = safetensors::Sums::read(folder / "m" / "model.sums.json");
  REQUIRE(sums.size() == 3);
  CHECK(sums.files().size() == 2);
  CHECK(sums.files()[sums.find("a")->file].path == first);
  for (std::size_t i = 0; i < paths.size(); ++i) {
    const auto source = safetensors::open_source(paths[i]);
    const safetensors::Sums own = safetensors::make_sums(*source, sums.files()[i].path);
    for (std::size_t k = 0; k < own.size(); ++k) {
      const auto expected = own.tensor(k);
      CHECK(sums.find(expected.name)->xxh3_128 == expected.xxh3_128);
    }
  }
}

TEST_CASE("each model replaces each other one as a whole") {
  for (const std::uint64_t old_limit : {kOne, kThree}) {
    for (const std::uint64_t new_limit : {kOne, kThree}) {
      for (const bool fsync : {false, true}) {
        const test::TempDir folder;
        const SavedModel old = test::old_model(old_limit);
        const SavedModel next = test::new_model(new_limit);
        test::save(old, folder.path(), {.sums = true});
        ::chmod((folder / "model.safetensors").c_str(), 0640);
        test::save(next, folder.path(), {.fsync = fsync});
        CHECK(test::contents(folder.path()) == test::files_of(next));
        CHECK(test::loads(folder.path(), next));
        if (old_limit == kOne && new_limit == kThree) {
          CHECK(test::mode_of(folder / "model-00001-of-00003.safetensors") == 0640);
        }
        CHECK(recover(folder.path()) == Recovery::kClean);
      }
    }
  }
}

TEST_CASE("what an interrupt throws leaves the old model or the new one") {
  for (const auto& [old_limit, new_limit] : {std::pair(kThree, kSeven),
                                             {kSeven, kThree},
                                             {kOne, kThree},
                                             {kThree, kOne},
                                             {kOne, kOne}}) {
    const SavedModel old = test::old_model(old_limit);
    const SavedModel next = test::new_model(new_limit);
    const auto old_files = test::files_of(old);
    const auto new_files = test::files_of(next);
    bool is_new = false;
    bool was_old = false;
    std::size_t at = 0;
    for (bool stopped = true; stopped; ++at) {
      const test::TempDir folder;
      test::save(old, folder.path());
      stopped = stops_at(at, next, folder.path(), true);
      const auto found = test::contents(folder.path());
      CAPTURE(at);
      const bool is_whole = found == old_files || found == new_files;
      REQUIRE(is_whole);
      CHECK((!is_new || found == new_files));  // once new, never old again
      is_new = found == new_files;
      was_old = was_old || found == old_files;
      CHECK(recover(folder.path()) == Recovery::kClean);
    }
    CHECK(is_new);
    CHECK(was_old);
    CHECK(at >= (new_limit == kOne && old_limit == kOne ? 4U : 10U));
  }
}

TEST_CASE("a folder that was made is removed with the save") {
  const test::TempDir folder;
  CHECK(stops_at(3, test::new_model(kThree), folder / "m", false));
  CHECK_FALSE(test::fs::exists(folder / "m"));
  {
    const ModelWriter model(folder / "m");
  }
  CHECK_FALSE(test::fs::exists(folder / "m"));
  ModelWriter model(folder / "m");
  model.abort();
  CHECK_FALSE(test::fs::exists(folder / "m"));
  CHECK(test::error_of([&] { (void)model.make_shard(1); }).code() == ErrorCode::kWriterClosed);
  CHECK(test::error_of([&] { (void)model.commit({}, 0); }).code() == ErrorCode::kWriterClosed);
  model.abort();
}

TEST_CASE("a folder that is renamed during a save keeps it, and sums at its old path stay") {
  const test::TempDir folder;
  const SavedModel old = test::old_model(kThree);
  const SavedModel next = test::new_model(kThree);
  test::save(old, folder / "m", {.sums = true});
  const test::fs::path sums = folder / "m" / "model.sums.json";
  REQUIRE(test::fs::exists(sums));
  bool is_moved = false;
  const auto move = [&] {
    if (!std::exchange(is_moved, true)) test::replace_folder(folder / "m", sums);
  };
  test::save(next, folder / "m", {.interrupt = move});
  CHECK(is_moved);
  CHECK(test::read_text(sums) == "of another model");
  CHECK(test::contents(folder / "moved") == test::files_of(next));
}

TEST_CASE("an abort that failed can be repeated") {
  const test::TempDir folder;
  const SavedModel old = test::old_model(kThree);
  test::save(old, folder.path());
  const auto before = test::contents(folder.path());
  ModelWriter model(folder.path());
  (void)model.make_shard(1)->write_at(0, test::bytes_of("part"));
  test::fs::path parts;
  for (const std::string& name : test::names_in(folder.path())) {
    if (name.starts_with('.')) parts = folder / name;
  }
  test::fs::create_directory(parts / "00002");  // where a file should be
  for (int i = 0; i < 2; ++i) {
    CHECK(test::error_of([&] { model.abort(); }).os_error() == EISDIR);
    CHECK(test::error_of([&] { (void)model.make_shard(3); }).code() == ErrorCode::kWriterClosed);
  }
  test::fs::remove(parts / "00002");
  model.abort();
  CHECK(test::contents(folder.path()) == before);
  model.abort();
  CHECK(recover(folder.path()) == Recovery::kClean);
}

TEST_CASE("a forked child removes nothing") {
  const test::TempDir folder;
  const ModelWriter model(folder / "m");
  CHECK(test::in_child([&] {
          ModelWriter its(std::move(const_cast<ModelWriter&>(model)));
          its.abort();
          return 0;
        }) == 0);
  CHECK(test::names_in(folder / "m").size() == 1);
}

TEST_CASE("shards are written piece by piece, and companions take their places with them") {
  const test::TempDir folder;
  test::save(test::old_model(kThree), folder.path());
  test::write_text(folder / "config.json", "old");
  const std::vector<test::OwnTensor> tensors = {test::tensor_of("a", test::Dtype::kU8, {8}, 1),
                                                test::tensor_of("b", test::Dtype::kU8, {8}, 2)};
  ModelWriter model(folder.path(), {.fsync = true});
  for (std::size_t i = 0; i < 2; ++i) {
    const std::vector<safetensors::TensorSpec> specs = {{tensors[i].name, tensors[i].shape}};
    safetensors::FileWriter writer(model.make_shard(i + 1), safetensors::plan_file(specs));
    writer.write_at(0, 4, std::span(tensors[i].bytes).subspan(4));
    writer.write_at(0, 0, std::span(tensors[i].bytes).first(4));
    writer.commit();
  }
  const std::string config = "new";
  model.add_companion("config.json", test::bytes_of(config));
  CHECK(test::error_of([&] { model.add_companion("run.sh", {}); }).code() ==
        ErrorCode::kInvalidArgument);
  CHECK(test::read_text(folder / "config.json") == "old");
  const std::vector<std::vector<std::string_view>> twice = {{"a"}, {"a"}};
  CHECK(test::error_of([&] { (void)model.commit(twice, 16); }).code() == ErrorCode::kDuplicateName);
  const std::vector<std::vector<std::string_view>> names = {{"a"}, {"b"}};
  (void)model.commit(names, 16);
  CHECK(model.is_committed());
  CHECK(test::read_text(folder / "config.json") == "new");
  CHECK(test::loads(folder.path(), {tensors, 8}));
}

TEST_CASE("errors leave the old model") {
  const test::TempDir folder;
  const SavedModel old = test::old_model(kThree);
  test::save(old, folder.path());
  const auto before = test::contents(folder.path());
  const auto refused = [&](const std::function<void()>& work) {
    const safetensors::Error error = test::error_of(work);
    CHECK(test::contents(folder.path()) == before);
    return error.code();
  };
  std::vector<test::OwnTensor> tensors = {test::tensor_of("a", test::Dtype::kU8, {8}, 1),
                                          test::tensor_of("b", test::Dtype::kU8, {8}, 2)};
  const auto save = [&](const safetensors::SaveModelOptions& options) {
    return refused([&] {
      (void)safetensors::save_model(folder.path(), test::views_of(tensors), nullptr, options);
    });
  };
  CHECK(save({.name = "a/b"}) == ErrorCode::kInvalidArgument);
  CHECK(save({.max_shard_nbytes = 0}) == ErrorCode::kInvalidArgument);
  tensors[1].name = "a";
  CHECK(save({.max_shard_nbytes = 8}) == ErrorCode::kDuplicateName);
  tensors[1].name = "b";
  tensors[1].shape = {9};  // in the second file
  CHECK(save({.max_shard_nbytes = 8}) == ErrorCode::kInvalidTensorInfo);
  CHECK(test::error_of([&] { ModelWriter(folder / "new.safetensors"); }).code() ==
        ErrorCode::kInvalidArgument);
  CHECK(test::error_of([&] { ModelWriter(folder / "none" / "m"); }).os_error() == ENOENT);
  ModelWriter model(folder.path());
  for (const std::size_t number : {std::size_t{0}, safetensors::kMaxShards + 1}) {
    CHECK(test::error_of([&] { (void)model.make_shard(number); }).code() ==
          ErrorCode::kInvalidArgument);
  }
  for (const std::size_t count : {0U, 1U, 2U}) {  // of no shard that was made
    const std::vector<std::vector<std::string_view>> shards(count);
    CHECK(test::error_of([&] { (void)model.commit(shards, 1); }).code() ==
          ErrorCode::kInvalidArgument);
    CHECK_FALSE(model.is_committed());
  }
  const auto sink = model.make_shard(1);  // not committed
  const std::vector<std::vector<std::string_view>> one = {{"a"}};
  CHECK(test::error_of([&] { (void)model.commit(one, 1); }).code() == ErrorCode::kInvalidArgument);
  const std::vector<std::vector<std::string_view>> no_text = {{"\xFF"}};
  CHECK(test::error_of([&] { (void)model.commit(no_text, 1); }).code() ==
        ErrorCode::kInvalidHeaderUtf8);
  CHECK_FALSE(model.is_committed());
  CHECK(test::error_of([&] { ModelWriter(folder.path()); }).code() == ErrorCode::kIo);
  CHECK(test::error_of([&] { (void)recover(folder.path()); }).code() == ErrorCode::kIo);
  model.abort();
  CHECK(test::contents(folder.path()) == before);
}

TEST_CASE("progress ends with all bytes") {
  const test::TempDir folder;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> calls;
  safetensors::SaveModelOptions options;
  options.progress = [&](std::uint64_t done, std::uint64_t total) {
    calls.emplace_back(done, total);
  };
  const SavedModel model = test::new_model(kThree);
  test::save(model, folder.path(), options);
  REQUIRE(!calls.empty());
  CHECK(std::ranges::is_sorted(calls));
  CHECK(calls.back() == std::pair<std::uint64_t, std::uint64_t>(845, 845));
  options.progress = [](std::uint64_t, std::uint64_t) { throw Interrupted("no"); };
  CHECK_THROWS_AS(test::save(test::old_model(kOne), folder.path(), options), Interrupted);
  CHECK(test::contents(folder.path()) == test::files_of(model));
}

TEST_CASE("recovery of what a killed save has left") {
  const test::TempDir folder;
  const SavedModel old = test::old_model(kThree);
  const SavedModel next = test::new_model(kSeven);
  for (std::size_t at = 0;; ++at) {
    test::fs::remove_all(folder / "m");
    test::save(old, folder / "m");
    const int status = test::in_child([&] {
      std::size_t steps = 0;
      safetensors::SaveModelOptions options;
      options.interrupt = [&] {
        if (steps++ == at) ::kill(::getpid(), SIGKILL);
      };
      test::save(next, folder / "m", options);
      return 0;
    });
    const Recovery outcome = recover(folder / "m" / "model.safetensors");
    const auto found = test::contents(folder / "m");
    CAPTURE(at);
    if (status == 0) {
      CHECK(outcome == Recovery::kClean);
      CHECK(found == test::files_of(next));
      CHECK(at > 10);
      break;
    }
    CHECK(status == 256 + SIGKILL);
    CHECK(outcome != Recovery::kClean);
    CHECK(found == test::files_of(outcome == Recovery::kRolledForward ? next : old));
  }
}

TEST_CASE("a path with a link and `..` leads a save and a recovery where it leads the system") {
  const test::TempDir folder;
  test::fs::create_directories(folder / "real" / "below");
  test::fs::create_directory_symlink(folder / "real" / "below", folder / "link");
  const auto path = folder / "link" / ".." / "m" / ".";  // real/m, and m if `..` came first
  const SavedModel old = test::old_model(kThree);
  test::save(old, path);
  CHECK(test::contents(folder / "real" / "m") == test::files_of(old));
  const int status = test::in_child([&] {
    safetensors::SaveModelOptions options;
    options.interrupt = [] { ::kill(::getpid(), SIGKILL); };
    test::save(test::new_model(kSeven), path, options);
    return 0;
  });
  CHECK(status == 256 + SIGKILL);
  CHECK(recover(path) == Recovery::kRolledBack);
  CHECK(test::contents(folder / "real" / "m") == test::files_of(old));
  CHECK_FALSE(test::fs::exists(folder / "m"));
}

TEST_CASE("recovery names what is not there or does not open") {
  const test::TempDir folder;
  CHECK(recover(folder.path()) == Recovery::kClean);
  CHECK(test::error_of([&] { (void)recover(folder / "m.safetensors"); }).os_error() == ENOENT);
  CHECK(test::error_of([&] { (void)recover(""); }).os_error() == ENOENT);
  CHECK(test::error_of([&] { const ModelWriter model(""); }).os_error() == ENOENT);
  CHECK(test::error_of([&] { (void)recover(folder / "none" / "m"); }).os_error() == ENOENT);
  test::write_text(folder / "m.safetensors", "no");
  const safetensors::Error error = test::error_of([&] { (void)recover(folder / "m.safetensors"); });
  CHECK(error.code() == ErrorCode::kInvalidArgument);
  CHECK(std::string(error.what()).find("nothing to recover, but the file does not open") !=
        std::string::npos);
  test::save(test::old_model(kThree), folder.path());
  CHECK(recover(folder / "model.safetensors") == Recovery::kClean);  // it is in shards now
  test::write_text(folder / ".model.safetensors.0123456789abcdef.tmp", "half");
  CHECK(recover(folder.path()) == Recovery::kRolledBack);
}
