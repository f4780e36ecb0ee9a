#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <set>
#include <thread>
#include <vector>

#include "io/file_source.hpp"
#include "io/posix/mapped_files.hpp"
#include "posix_support.hpp"

using safetensors::FileSource;
using safetensors::io::mapped_files;
using safetensors::io::MappedFiles;
using safetensors::io::MappingsLock;

namespace {

bool may_be_mapped(const test::fs::path& path) {
  const struct stat status = test::stat_of(path);
  return mapped_files().may_contain(MappedFiles::slot_of(status.st_dev, status.st_ino));
}

}  // namespace

TEST_CASE("a file counts as mapped until its last mapping is gone") {
  const test::TempDir folder;
  for (const char* name : {"a", "b"}) test::write_text(folder / name, "text");
  CHECK_FALSE(may_be_mapped(folder / "a"));
  auto first = FileSource::open(folder / "a")->map();
  auto second = FileSource::open(folder / "a")->map();
  CHECK(may_be_mapped(folder / "a"));
  CHECK_FALSE(may_be_mapped(folder / "b"));
  first.reset();
  CHECK(may_be_mapped(folder / "a"));
  second.reset();
  CHECK_FALSE(may_be_mapped(folder / "a"));
}

TEST_CASE("a forked child inherits what is mapped, and counts on its own") {
  const test::TempDir folder;
  test::write_text(folder / "a", "text");
  auto mapping = FileSource::open(folder / "a")->map();
  const int status = test::in_child([&] {
    if (!may_be_mapped(folder / "a")) return 1;
    mapping.reset();
    return may_be_mapped(folder / "a") ? 2 : 0;
  });
  CHECK(status == 0);
  CHECK(may_be_mapped(folder / "a"));
}

TEST_CASE("a mapping that the system refuses does not count") {
  const test::TempDir folder;
  test::write_text(folder / "empty", "");
  CHECK(test::outcome_of([&] { (void)FileSource::open(folder / "empty")->map(); }) == "kIo");
  CHECK_FALSE(may_be_mapped(folder / "empty"));
}

TEST_CASE("a slot that reaches the maximum stays there") {
  static MappedFiles files;
  for (int i = 0; i < MappedFiles::kMax - 1; ++i) files.add(7);
  for (int i = 0; i < MappedFiles::kMax - 1; ++i) files.remove(7);
  CHECK_FALSE(files.may_contain(7));
  for (int i = 0; i < MappedFiles::kMax + 5; ++i) files.add(7);
  for (int i = 0; i < MappedFiles::kMax + 5; ++i) files.remove(7);
  CHECK(files.may_contain(7));
  CHECK_FALSE(files.may_contain(6));
}

TEST_CASE("files are spread over the slots") {
  std::set<MappedFiles::Slot> slots;
  for (std::uint64_t file = 1000; file < 1500; ++file) {
    for (const std::uint64_t device : {0xFE00U, 0xFE01U}) {
      slots.insert(MappedFiles::slot_of(device, file));
    }
  }
  CHECK(*slots.rbegin() < MappedFiles::kSlots);
  CHECK(slots.size() > 700);  // of 1,000 random ones, 887 differ on average
}

TEST_CASE("threads count without losing anything") {
  static MappedFiles files;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([] {
      for (int j = 0; j < 50'000; ++j) {
        files.add(3);
        files.remove(3);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_FALSE(files.may_contain(3));
}

TEST_CASE("a mapping is not removed while another thread holds the lock") {
  const test::TempDir folder;
  test::write_text(folder / "a", "text");
  auto mapping = FileSource::open(folder / "a")->map();
  std::atomic<bool> is_gone = false;
  std::thread thread;
  const std::uint64_t before = MappingsLock::state();
  {
    const MappingsLock lock;
    thread = std::thread([&] {
      mapping.reset();
      is_gone = true;
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    CHECK_FALSE(is_gone);
    CHECK(MappingsLock::state() == before);
  }
  thread.join();
  CHECK(MappingsLock::state() != before);
}

TEST_CASE("a forked child does not inherit the lock") {
  const MappingsLock lock;
  const int status = test::in_child([] {
    const MappingsLock own;
    return 0;
  });
  CHECK(status == 0);
}
