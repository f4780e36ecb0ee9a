// Kills a process while it saves: the target must be the whole old file or the whole new one.
//
// SAFETENSORS_TEST_KILLS sets how many processes are killed at a random moment (default 40).
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <thread>

#include "faults.hpp"
#include "saving.hpp"

using faults::Effect;
using faults::Kind;
using faults::Plan;

namespace {

/// Checks that the directory holds the target and at most one file left by the killed process, with
/// a name as docs/format.md says. Removes that file.
bool only_leftovers(const faults::Target& target) {
  std::size_t left = 0;
  for (const std::string& name : target.names()) {
    if (name == "model.safetensors") continue;
    if (!name.starts_with(".model.safetensors.") || !name.ends_with(".tmp")) return false;
    test::fs::remove(target.folder() / name);
    ++left;
  }
  return left <= 1;
}

/// Kills `save` before, during and after each of its calls.
void check_each_kill(bool has_old, const std::function<void(const faults::Target&)>& save) {
  const faults::Target target(has_old);
  const auto calls = faults::run({}, [&] {
                       save(target);
                       return std::string();
                     }).first;
  REQUIRE(target.found() == "new");
  const std::string before = has_old ? "old" : "none";
  bool is_new = false;
  for (std::size_t nth = 0; nth < calls.size(); ++nth) {
    for (const Effect effect : {Effect::kKillBefore, Effect::kKillAfter}) {
      target.remove();
      if (has_old) target.write_old();
      const int status = test::in_child([&] {
        const Plan plan = {.effect = effect, .nth = nth};
        faults_begin(&plan);
        save(target);
        return 0;
      });
      CAPTURE(nth);
      CAPTURE(has_old);
      CHECK(status == 256 + SIGKILL);
      // From the rename on it is the new one.
      is_new = is_new || (calls[nth].kind == Kind::kRename && effect == Effect::kKillAfter);
      CHECK(target.found() == (is_new ? "new" : before));
      CHECK(only_leftovers(target));
    }
  }
  CHECK(is_new);
}

std::size_t kill_count() {
  const char* const given = std::getenv("SAFETENSORS_TEST_KILLS");
  return given == nullptr ? 40 : std::strtoul(given, nullptr, 10);
}

}  // namespace

TEST_CASE("a save killed before, during or after each call leaves a whole file") {
  using Save = void (faults::Target::*)(bool) const;
  for (const Save save :
       {&faults::Target::save, &faults::Target::write, &faults::Target::write_added}) {
    for (const bool has_old : {false, true}) {
      for (const bool fsync : {false, true}) {
        check_each_kill(has_old, [&](const faults::Target& target) { (target.*save)(fsync); });
      }
    }
  }
}

TEST_CASE("a save killed at a random moment leaves a whole file") {
  std::mt19937 random(std::random_device{}());
  const faults::Target target(true);
  std::size_t kept = 0;
  for (std::size_t i = 0; i < kill_count(); ++i) {
    target.write_old();
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      // Old and new in turn, until the end.
      try {
        while (true) {
          const bool fsync = random() % 4 == 0;
          random() % 2 == 0 ? target.save(fsync) : target.write(fsync);
          target.replace_with_old();
        }
      } catch (...) {
        ::_exit(1);
      }
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 20'000));
    ::kill(child, SIGKILL);
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(WIFSIGNALED(status));
    const std::string found = target.found();
    CAPTURE(found);
    const bool is_whole = found == "old" || found == "new";
    CHECK(is_whole);
    kept += found == "old" ? 1 : 0;
    CHECK(only_leftovers(target));
  }
  MESSAGE(kill_count(), " killed: ", kept, " times the old file, else the new one");
}

TEST_CASE("the next save removes a killed process's temporary file") {
  const faults::Target target(false);
  const auto calls = faults::run({}, [&] {
                       target.save();
                       return std::string();
                     }).first;
  target.remove();
  const auto rename = std::ranges::find(calls, Kind::kRename, &faults::Call::kind);
  const int status = test::in_child([&] {
    const Plan plan = {.effect = Effect::kKillBefore,
                       .nth = static_cast<std::size_t>(rename - calls.begin())};
    faults_begin(&plan);
    target.save();
    return 0;
  });
  CHECK(status == 256 + SIGKILL);
  CHECK(target.found() == "none");
  CHECK(target.names().size() == 1);
  target.save();
  CHECK(target.found() == "new");
  CHECK(target.names().size() == 1);
}
