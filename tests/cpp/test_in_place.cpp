// Changes of tensors in place: what an interrupt, an error and a recovery leave. (tests/python/
// test_in_place_recovery.py kills changes at each call.)
#include <doctest/doctest.h>
#include <sys/stat.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "model_saves.hpp"
#include "posix_support.hpp"
#include "safetensors/detail/in_place.hpp"
#include "safetensors/detail/recovery.hpp"
#include "safetensors/safe_open.hpp"
#include "safetensors/save.hpp"
#include "safetensors/sums.hpp"

using safetensors::ErrorCode;
using safetensors::recover;
using safetensors::Recovery;
using safetensors::detail::Folder;
using safetensors::detail::InPlaceChange;
using test::fs::path;

namespace {

const std::string kFile = "m.safetensors";

struct Stopped : std::runtime_error {
  using std::runtime_error::runtime_error;
};

std::vector<test::OwnTensor> tensors_of(std::uint32_t seed) {
  return {test::tensor_of("a", test::Dtype::kF32, {3, 500}, seed),
          test::tensor_of("b", test::Dtype::kU8, {7}, 1),
          test::tensor_of("c", test::Dtype::kF4, {4}, seed)};
}

path make(const test::TempDir& folder) {
  safetensors::save_file(test::views_of(tensors_of(1)), folder / kFile);
  return folder / kFile;
}

/// Changes two tensors in place, also if the file is in use.
void change(const path& file, safetensors::detail::InPlaceOptions options = {.shared = true}) {
  const std::vector<std::string> names = {file.filename()};
  const Folder folder = Folder::open(file.parent_path());
  (void)safetensors::detail::recover_changes(folder, names);
  InPlaceChange changed(folder, names, names.front(), std::move(options));
  for (const test::OwnTensor& each : tensors_of(2)) changed.write(each.name, each.bytes);
  changed.commit();
}

/// Returns which of the two states the file has; 0 if it does not open.
std::uint32_t state(const path& file) {
  for (const std::uint32_t seed : {1U, 2U}) {
    const test::TempDir other;
    safetensors::save_file(test::views_of(tensors_of(seed)), other / kFile);
    if (test::read_text(file) == test::read_text(other / kFile)) return seed;
  }
  CHECK_THROWS_AS((void)safetensors::SafeOpen(file), safetensors::Error);
  return 0;
}

void set_mark(const path& file) {
  std::string text = test::read_text(file);
  text[7] = static_cast<char>(text[7] | 0x80);
  test::write_text(file, text);
}

/// Leaves a complete journal of a change: the sums, which go first, cannot be removed.
path leave_journal(const path& file) {
  const path sums = safetensors::sums_path(file);
  test::fs::create_directory(sums);
  CHECK_THROWS_AS(change(file), safetensors::Error);
  test::fs::remove(sums);
  for (const std::string& name : test::names_in(file.parent_path())) {
    if (name.ends_with(".journal")) return file.parent_path() / name / "journal";
  }
  FAIL("there is no journal");
  return {};
}

}  // namespace

TEST_CASE("a change gives the bytes of a new file") {
  const test::TempDir folder;
  const path file = make(folder);
  struct stat before{};
  REQUIRE(::stat(file.c_str(), &before) == 0);
  change(file);
  struct stat after{};
  REQUIRE(::stat(file.c_str(), &after) == 0);
  CHECK(state(file) == 2);
  CHECK(after.st_ino == before.st_ino);
  CHECK(test::names_in(folder.path()) == std::set<std::string>{kFile});
  CHECK(recover(file) == Recovery::kClean);
}

TEST_CASE("an interrupt leaves the old file, and nothing else") {
  for (std::size_t at = 0;; ++at) {
    const test::TempDir folder;
    const path file = make(folder);
    std::size_t polls = 0;
    const auto stop = [&] {
      if (polls++ == at) throw Stopped("stop");
    };
    bool is_stopped = false;
    try {
      change(file, {.shared = true, .interrupt = stop});
    } catch (const Stopped&) {
      is_stopped = true;
    }
    CHECK(test::names_in(folder.path()) == std::set<std::string>{kFile});
    CHECK(state(file) == (is_stopped ? 1 : 2));
    if (is_stopped) continue;
    CHECK(at > 3);  // three tensors, and before the mark
    break;
  }
}

TEST_CASE("a folder that is renamed during a change loses its own sums, and none at its old path") {
  const test::TempDir folder;
  test::fs::create_directory(folder / "m");
  safetensors::save_file(test::views_of(tensors_of(1)), folder / "m" / kFile, nullptr,
                         {.sums = true});
  const path sums = safetensors::sums_path(folder / "m" / kFile);
  bool is_moved = false;
  const auto move = [&] {
    if (!std::exchange(is_moved, true)) test::replace_folder(folder / "m", sums);
  };
  change(folder / "m" / kFile, {.shared = true, .interrupt = move});
  CHECK(is_moved);
  CHECK(test::read_text(sums) == "of another model");
  CHECK(test::names_in(folder / "moved") == std::set<std::string>{kFile});
  CHECK(state(folder / "moved" / kFile) == 2);
}

TEST_CASE("a change without a commit leaves nothing") {
  const test::TempDir folder;
  const path file = make(folder);
  {
    InPlaceChange changed(Folder::open(folder.path()), std::vector{kFile}, kFile, {.shared = true});
    changed.write("a", tensors_of(2)[0].bytes);
    CHECK(test::names_in(folder.path()).size() == 2);
  }
  CHECK(test::names_in(folder.path()) == std::set<std::string>{kFile});
  CHECK(state(file) == 1);
}

TEST_CASE("arguments are checked") {
  const test::TempDir folder;
  make(folder);
  const Folder held = Folder::open(folder.path());
  const std::vector<std::string> names = {kFile};
  InPlaceChange changed(held, names, kFile, {.shared = true});
  CHECK(changed.file_count() == 1);
  CHECK(changed.at("b").nbytes() == 7);
  std::vector<std::byte> bytes(8);
  const auto refused = [&](const auto& call) { return test::error_of(call); };
  CHECK(refused([&] { changed.write("b", bytes); }).code() == ErrorCode::kInvalidArgument);
  CHECK(refused([&] { changed.read("b", bytes); }).code() == ErrorCode::kInvalidArgument);
  CHECK(refused([&] { changed.write("x", bytes); }).code() == ErrorCode::kTensorNotFound);
  // It is locked by the other object.
  const auto second = refused([&] { InPlaceChange(held, names, kFile, {.shared = true}); });
  CHECK(std::string(second.what()).ends_with("another process is changing it"));
  const std::vector<std::string> absent = {"none"};
  CHECK(refused([&] { InPlaceChange(held, absent, "none"); }).os_error() == ENOENT);
}

TEST_CASE("a file in use is refused unless it may be shared") {
  const test::TempDir folder;
  const path file = make(folder);
  const safetensors::SafeOpen opened(file);
  const auto error = test::error_of([&] { change(file, {}); });
  CHECK(error.code() == ErrorCode::kInvalidArgument);
  CHECK(state(file) == 1);
}

TEST_CASE("recover() removes a journal before the mark, and completes a change after it") {
  for (const bool is_marked : {false, true}) {
    for (const bool by_folder : {false, true}) {
      const test::TempDir folder;
      const path file = make(folder);
      leave_journal(file);
      CHECK(state(file) == 1);
      if (is_marked) set_mark(file);
      CHECK(recover(by_folder ? folder.path() : file) ==
            (is_marked ? Recovery::kRolledForward : Recovery::kRolledBack));
      CHECK(state(file) == (is_marked ? 2 : 1));
      CHECK(test::names_in(folder.path()) == std::set<std::string>{kFile});
    }
  }
}

TEST_CASE("a journal has the name of its file where that of its folder is shortened") {
  const auto name_in = [](const path& journal) {
    const safetensors::SafeOpen tensors(journal);
    const auto found =
        std::ranges::find(tensors.metadata(), "name", &safetensors::Header::MetadataItem::first);
    return found == tensors.metadata().end() ? std::string() : std::string(found->second);
  };
  for (const std::string& name : {kFile, std::string(150, 'm') + ".safetensors"}) {
    const test::TempDir folder;
    test::fs::rename(make(folder), folder / name);
    CHECK(name_in(leave_journal(folder / name)) == (name == kFile ? "" : name));
    set_mark(folder / name);
    CHECK(recover(folder / name) == Recovery::kRolledForward);
    CHECK(state(folder / name) == 2);
  }
}

TEST_CASE("a marked file whose journal is gone is not changed") {
  const test::TempDir folder;
  const path file = make(folder);
  set_mark(file);
  const auto error = test::error_of([&] { change(file); });
  CHECK(std::string(error.what()).ends_with("its journal is gone"));
  CHECK(state(file) == 0);
}

TEST_CASE("a damaged journal changes nothing") {
  const test::TempDir folder;
  const path file = make(folder);
  const path journal = leave_journal(file);
  set_mark(file);
  const std::string before = test::read_text(file);
  const std::string text = test::read_text(journal);
  const std::size_t header = text.find('}') + 1;
  for (std::size_t at = text.size() - 1; at > header && at > text.size() - 200; at -= 13) {
    std::string damaged = text;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    test::write_text(journal, damaged);
    CHECK_THROWS_AS((void)recover(file), safetensors::Error);
    CHECK(test::read_text(file) == before);
  }
  test::write_text(journal, text.substr(0, text.size() - 1));
  CHECK_THROWS_AS((void)recover(file), safetensors::Error);
  CHECK(test::read_text(file) == before);
  test::write_text(journal, text);
  CHECK(recover(file) == Recovery::kRolledForward);
  CHECK(state(file) == 2);
}

TEST_CASE("a file that was replaced after the mark is left alone") {
  const test::TempDir folder;
  const path file = make(folder);
  leave_journal(file);
  const std::vector<test::OwnTensor> other = test::some_tensors();
  safetensors::save_file(test::views_of(other), file);
  const std::string before = test::read_text(file);
  CHECK(recover(folder.path()) == Recovery::kRolledBack);
  CHECK(test::read_text(file) == before);
  CHECK(test::names_in(folder.path()) == std::set<std::string>{kFile});
}
