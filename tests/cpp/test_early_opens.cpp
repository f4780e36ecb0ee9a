// Files that are opened while their index is read, and models that open all files so.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "io/system.hpp"
#include "open/early_opens.hpp"
#include "safetensors/model.hpp"
#include "sharded_model.hpp"

using safetensors::EarlyOpens;
using safetensors::Error;
using safetensors::Model;
using safetensors::open_model;
using safetensors::SafeOpen;
using test::index_text;
using test::kIndexName;
using test::padded;
using test::same;
using test::shard;
using test::Sharded;

namespace {

/// Notes which files were opened, and by which threads.
class Calls {
 public:
  [[nodiscard]] Model::Opener opener() {
    return [this](const test::fs::path& path) {
      {
        const std::lock_guard lock(mutex_);
        calls_.emplace_back(path, std::this_thread::get_id());
      }
      return SafeOpen(path);
    };
  }
  [[nodiscard]] std::vector<std::pair<test::fs::path, std::thread::id>> all() const {
    const std::lock_guard lock(mutex_);
    return calls_;
  }
  [[nodiscard]] std::ptrdiff_t count(const test::fs::path& path) const {
    return std::ranges::count(all(), path, [](const auto& call) { return call.first; });
  }
  void wait_for(std::size_t count) const {
    while (all().size() < count) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::pair<test::fs::path, std::thread::id>> calls_;
};

bool has_other_processor() {
  if (safetensors::io::processor_count() > 1) return true;
  MESSAGE("skipped: a single processor");
  return false;
}

}  // namespace

TEST_CASE("a file that is added is opened by another thread, and taken once") {
  if (!has_other_processor()) return;
  const Sharded files(false);
  Calls calls;
  EarlyOpens early(calls.opener());
  early.add(files.file(1));
  calls.wait_for(1);
  early.stop();
  CHECK(calls.all()[0].second != std::this_thread::get_id());
  const SafeOpen file = early.open(files.file(1));
  CHECK(file.header().size() == files.tensors(1).size());
  CHECK(calls.all().size() == 1);
  (void)early.open(files.file(1));
  early.add(files.file(2));  // too late
  (void)early.open(files.file(2));
  const auto all = calls.all();
  REQUIRE(all.size() == 3);
  for (const std::size_t i : {1U, 2U}) CHECK(all[i].second == std::this_thread::get_id());
}

TEST_CASE("a file that cannot be opened early is an error when it is taken") {
  if (!has_other_processor()) return;
  const Sharded files(false);
  Calls calls;
  EarlyOpens early(calls.opener());
  early.add(files.path() / "absent");
  early.add(files.file(0));
  calls.wait_for(2);
  early.stop();
  const Error error = test::error_of([&] { (void)early.open(files.path() / "absent"); });
  CHECK(error.code() == test::ErrorCode::kIo);
  CHECK(error.path() == files.path() / "absent");
  CHECK(calls.count(files.path() / "absent") == 2);
  (void)early.open(files.file(0));
  CHECK(calls.count(files.file(0)) == 1);
}

TEST_CASE("a file that is being opened is waited for") {
  if (!has_other_processor()) return;
  const Sharded files(false);
  Calls calls;
  std::atomic<bool> may_go = false;
  EarlyOpens early([&, open = calls.opener()](const test::fs::path& path) {
    SafeOpen file = open(path);
    while (!may_go) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return file;
  });
  early.add(files.file(0));
  early.add(files.file(1));
  calls.wait_for(1);
  std::thread taker([&] {
    const SafeOpen file = early.open(files.file(0));
    CHECK(file.path() == files.file(0));
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(calls.all().size() == 1);
  may_go = true;
  taker.join();
  const SafeOpen file = early.open(files.file(1));
  CHECK(file.path() == files.file(1));
  early.stop();
  CHECK(calls.all().size() == 2);
}

TEST_CASE("files that are forgotten are opened again") {
  if (!has_other_processor()) return;
  const Sharded files(false);
  Calls calls;
  EarlyOpens early(calls.opener());
  early.add(files.file(0));
  calls.wait_for(1);
  early.forget();
  early.add(files.file(0));
  (void)early.open(files.file(0));
  CHECK(calls.all().size() == 2);
}

TEST_CASE("files that nobody takes do not keep the thread") {
  const Sharded files(false);
  for (std::size_t round = 0; round < 50; ++round) {
    Calls calls;
    EarlyOpens early(calls.opener());
    for (std::size_t i = 0; i < round; ++i) early.add(files.file(i % 3));
    if (round % 2 == 0) (void)early.open(files.file(0));
  }
}

TEST_CASE("a model opens all files once, with an index of any size and without") {
  for (const bool with_index : {false, true}) {
    for (const bool is_large : {false, true}) {
      CAPTURE(with_index);
      CAPTURE(is_large);
      const Sharded files(with_index);
      const test::fs::path index = files.path() / kIndexName;
      if (with_index && is_large) test::write_text(index, padded(test::read_text(index)));
      for (int round = 0; round < 10; ++round) {
        Calls calls;
        const Model model = open_model(round % 2 == 0 && with_index ? index : files.path(),
                                       {.opener = calls.opener(), .opens_all = true});
        CHECK(calls.all().size() == 3);
        for (std::size_t i = 0; i < 3; ++i) CHECK(calls.count(files.file(i)) == 1);
        for (const auto& [name, place] : files.by_name()) {
          CHECK(same(model.get_tensor(name), *place.second));
        }
        CHECK(calls.all().size() == 3);
      }
    }
  }
}

TEST_CASE("a model that opens all files has the errors of one that opens them later") {
  using Damage = std::function<std::string(const Sharded& files)>;  // returns the index
  const auto index_of = [](const std::string& of_y) {
    return index_text({{"y", of_y}, {"b", shard(3, 3)}, {"a", shard(2, 3)}, {"c", shard(1, 3)}});
  };
  std::string whole = padded(index_of(shard(2, 3)));
  const auto damage = [](const test::fs::path& path) { test::write_text(path, "no header"); };
  const std::map<std::string, Damage> cases = {
      {"an absent file",
       [&](const Sharded& files) {
         test::fs::remove(files.file(1));
         return whole;
       }},
      {"two damaged files, of which the index names the second one first",
       [&](const Sharded& files) {
         damage(files.file(0));
         damage(files.file(1));
         return whole;
       }},
      {"a tensor that no file has", [&](const Sharded&) { return padded(index_of(shard(3, 3))); }},
      {"a damaged index and a damaged file",
       [&](const Sharded& files) {
         damage(files.file(1));
         return whole + "}";
       }},
      {"an index that puts a tensor into two files, of which one is damaged",
       [&](const Sharded& files) {
         damage(files.file(1));
         return padded(index_text({{"a", shard(2, 3)}, {"a", shard(1, 3)}}));
       }},
      {"a file that is a folder",
       [&](const Sharded& files) {
         test::fs::remove(files.file(2));
         test::fs::create_directory(files.file(2));
         return whole;
       }},
  };
  for (const auto& [title, make] : cases) {
    CAPTURE(title);
    const Sharded files(false);
    const test::fs::path index = files.path() / kIndexName;
    test::write_text(index, make(files));
    const Error later = test::error_of([&] { open_model(index).open_all(); });
    for (int round = 0; round < 10; ++round) {
      const Error error = test::error_of([&] { (void)open_model(index, {.opens_all = true}); });
      CHECK(std::string(error.what()) == later.what());
      CHECK(error.code() == later.code());
      CHECK(error.path() == later.path());
      CHECK(error.subject() == later.subject());
    }
  }
}

TEST_CASE("no file is opened whose name an index may not have") {
  const Sharded files(false);
  const test::fs::path folder = files.path() / "model";
  test::fs::create_directory(folder);
  for (const std::string& name :
       {"../" + shard(1, 3), "./../" + shard(1, 3), "x/../../" + shard(1, 3),
        files.file(0).string(), std::string("..\\\\") + shard(1, 3), std::string()}) {
    CAPTURE(name);
    test::write_text(folder / kIndexName, padded(index_text({{"c", name}, {"a", shard(2, 3)}})));
    Calls calls;
    CHECK(test::outcome_of([&] {
            (void)open_model(folder / kIndexName, {.opener = calls.opener(), .opens_all = true});
          }) == "kInvalidHeaderJson");
    for (const auto& [path, thread] : calls.all()) CHECK(path == folder / shard(2, 3));
  }
}
