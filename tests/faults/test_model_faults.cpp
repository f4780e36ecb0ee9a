// System calls that fail while a model of several files is saved over another one, and kills.
#include <doctest/doctest.h>

#include <csignal>
#include <string>
#include <utility>

#include "faults.hpp"
#include "model_saves.hpp"
#include "posix_support.hpp"

using faults::Call;
using faults::Effect;
using faults::Kind;
using faults::Plan;
using safetensors::Recovery;

namespace {

constexpr std::uint64_t kOne = 10'000;
constexpr std::uint64_t kThree = 400;

/// A folder with an old model, and a new one that replaces it.
class Replacement {
 public:
  Replacement(std::uint64_t old_limit, std::uint64_t new_limit)
      : old_(test::old_model(old_limit)), new_(test::new_model(new_limit)) {
    reset();
  }
  void reset() const {
    test::fs::remove_all(folder_ / "m");
    test::save(old_, folder_ / "m");
  }
  std::string save(const safetensors::SaveModelOptions& options = {}) const {
    test::save(new_, folder_ / "m", options);
    return {};
  }
  [[nodiscard]] test::fs::path path() const { return folder_ / "m"; }
  [[nodiscard]] Recovery recover() const { return safetensors::recover(folder_ / "m"); }
  /// Returns "old", "new" or "damaged".
  [[nodiscard]] std::string found() const {
    const auto files = test::contents(folder_ / "m");
    return files == old_files_ ? "old" : files == new_files_ ? "new" : "damaged";
  }
  [[nodiscard]] std::vector<Call> calls() const {
    reset();
    return faults::run({}, [&] { return save(); }).first;
  }

 private:
  test::TempDir folder_;
  test::SavedModel old_;
  test::SavedModel new_;
  std::map<std::string, std::string> old_files_ = test::files_of(old_);
  std::map<std::string, std::string> new_files_ = test::files_of(new_);
};

constexpr std::pair<std::uint64_t, std::uint64_t> kChanges[] = {
    {kThree, kThree}, {kOne, kThree}, {kThree, kOne}, {kOne, kOne}};

}  // namespace

TEST_CASE("a model whose save is killed before or after each call is old or new") {
  for (const auto& [old_limit, new_limit] : kChanges) {
    const Replacement model(old_limit, new_limit);
    const std::vector<Call> calls = model.calls();
    REQUIRE(model.found() == "new");
    REQUIRE(calls.size() < faults::kMaxCalls);
    bool is_new = false;
    for (std::size_t nth = 0; nth < calls.size(); ++nth) {
      for (const Effect effect : {Effect::kKillBefore, Effect::kKillAfter}) {
        model.reset();
        const int status = test::in_child([&] {
          const Plan plan = {.effect = effect, .nth = nth};
          faults_begin(&plan);
          model.save();
          return 0;
        });
        CAPTURE(nth);
        CHECK(status == 256 + SIGKILL);
        (void)model.recover();
        const std::string found = model.found();
        CHECK(found == (is_new ? "new" : found));  // once new, never old again
        CHECK(found != "damaged");
        is_new = found == "new";
        CHECK(model.recover() == Recovery::kClean);
      }
    }
    CHECK(is_new);
  }
}

TEST_CASE("a model is old or new when a call of its save fails, once or for good") {
  for (const auto& [old_limit, new_limit] : kChanges) {
    const Replacement model(old_limit, new_limit);
    const std::vector<Call> calls = model.calls();
    for (std::size_t nth = 0; nth < calls.size(); ++nth) {
      for (const bool onward : {false, true}) {
        model.reset();
        const Plan plan = {.effect = Effect::kError, .error = EIO, .nth = nth, .onward = onward};
        const faults::Outcome outcome = faults::run(plan, [&] { return model.save(); }).second;
        CAPTURE(nth);
        CAPTURE(onward);
        CAPTURE(outcome.text);
        (void)model.recover();
        const std::string found = model.found();
        CHECK(found != "damaged");
        if (outcome.verdict == "ok") CHECK(found == "new");
        if (found == "old") CHECK(outcome.os_error == EIO);
        CHECK(model.recover() == Recovery::kClean);
      }
    }
  }
}

TEST_CASE("a switch that is undone is flushed empty before its parts are removed") {
  const Replacement model(kThree, kThree);
  const test::fs::path folder = model.path();
  const auto stop_when_complete = [&] {
    for (const auto& each : test::fs::recursive_directory_iterator(folder)) {
      if (each.path().filename() != "switch" || each.file_size() == 0) continue;
      safetensors::fail(safetensors::ErrorCode::kInvalidArgument, "stopped");
    }
  };
  const auto [calls, outcome] =
      faults::run({}, [&] { return model.save({.interrupt = stop_when_complete}); });
  CHECK(outcome.text == "stopped");
  CHECK(model.found() == "old");
  const auto cleared = std::ranges::find(calls, Kind::kTruncate, &Call::kind);
  REQUIRE(cleared != calls.end());
  const auto after = [&](Kind kind) {
    return std::find_if(cleared, calls.end(), [&](const Call& call) { return call.kind == kind; });
  };
  REQUIRE(after(Kind::kUnlink) != calls.end());
  REQUIRE(after(Kind::kSync) < after(Kind::kUnlink));
  CHECK(after(Kind::kSync)->fd == cleared->fd);
}
