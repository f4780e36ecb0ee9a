// Writing tensor by tensor while each system call fails in turn.
#include <doctest/doctest.h>
#include <fcntl.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "faults.hpp"
#include "io/posix/fd.hpp"
#include "saving.hpp"

using faults::Call;
using faults::Effect;
using faults::Kind;
using faults::Outcome;
using faults::Plan;
using faults::Target;

namespace {

struct Scenario {
  const char* name;
  bool has_old;
  bool fsync;
  bool no_copy = false;  ///< the system does not copy between files
  bool added = false;    ///< the tensors are not known before, and the header outgrows its room
};

/// Returns the only correct verdict, or "either" where the call may not matter.
std::string expected_verdict(const Scenario& scenario, const Plan& plan,
                             const std::vector<Call>& calls) {
  const Call& call = calls[plan.nth];
  const bool is_error = plan.effect == Effect::kError;
  if (is_error && plan.error == EINTR && call.kind != Kind::kRename) return "ok";
  const auto failed_if = [](bool failed) { return std::string(failed ? "kIo" : "ok"); };
  const auto is = [&](std::initializer_list<int> errors) {
    return is_error && std::ranges::find(errors, plan.error) != errors.end();
  };
  switch (call.kind) {
    case Kind::kOpen:  // a folder that may not be read is opened in another way
      return failed_if(!faults::is_folder(&call) || plan.error != EACCES || plan.onward);
    case Kind::kWrite:
      return failed_if(is_error || plan.effect == Effect::kNothing);
    case Kind::kRead:
      if (plan.effect == Effect::kNothing) return scenario.added ? "kIo" : "kFileChanged";
      return failed_if(is_error);
    case Kind::kCopy:
    case Kind::kShare:  // what cannot be copied so is read and written
      return failed_if(is({EIO, ENOSPC, EDQUOT, EFBIG, ENOMEM}));
    case Kind::kReserve:  // only a lack of space is an error; what cannot be inserted is moved
      return failed_if(!scenario.added && is({ENOSPC, EDQUOT, EFBIG}));
    case Kind::kSync:  // not all file systems can flush folders
      return failed_if(faults::meets(plan, calls, [&](std::size_t i) {
        return plan.error != EINVAL || !faults::is_folder(faults::opening_of(calls, i));
      }));
    case Kind::kRename:
      return "kIo";
    case Kind::kClose:
      return failed_if(faults::meets(
          plan, calls, [&](std::size_t i) { return faults::ends_writing(calls, i); }));
    case Kind::kStatus:  // of an open file, or of the new one: only decides how to treat it
      return call.path[0] == '\0' || faults::is_renamed(calls, plan.nth) ? "either" : "kIo";
    case Kind::kTruncate:
    case Kind::kLink:
      return "kIo";
    default:
      return "ok";
  }
}

/// Returns what the target must be after an error.
std::string found_after_error(const Scenario& scenario, const Plan& plan,
                              const std::vector<Call>& calls) {
  // The last step is to flush the folder: the file has its name by then.
  for (std::size_t i = 0; i <= plan.nth; ++i) {
    if (calls[i].kind == Kind::kSync && faults::is_folder(faults::opening_of(calls, i))) {
      return "new";
    }
  }
  return scenario.has_old ? "old" : "none";
}

}  // namespace

TEST_CASE("a writer in which any call fails in any way leaves a whole file") {
  for (const Scenario& scenario : {
           Scenario{"new", false, false},
           Scenario{"new, flushed", false, true},
           Scenario{"over a file, flushed", true, true},
           Scenario{"no copies by the system", true, false, true},
           Scenario{"tensors added", true, true, false, true},
       }) {
    CAPTURE(scenario.name);
    const Target target(scenario.has_old);
    const auto run = [&](Plan plan) {
      plan.no_copy = scenario.no_copy;
      return faults::run(plan, [&] {
        scenario.added ? target.write_added(scenario.fsync) : target.write(scenario.fsync);
        return std::string();
      });
    };
    const std::size_t descriptors = test::open_descriptors();
    const auto [calls, clean] = run({});
    CAPTURE(clean.text);
    REQUIRE(clean.verdict == "ok");
    CHECK(target.found() == "new");
    const auto has = [&](Kind kind) {
      return std::ranges::find(calls, kind, &Call::kind) != calls.end();
    };
    CHECK(has(Kind::kLock));
    CHECK(has(Kind::kReserve));
    CHECK(has(Kind::kShare) == !scenario.added);
    CHECK(has(Kind::kCopy) == !scenario.added);
    if (!scenario.added) CHECK(has(Kind::kRead) == scenario.no_copy);  // else it depends
    std::size_t points = 0;
    for (std::size_t nth = 0; nth < calls.size(); ++nth) {
      for (Plan plan : faults::plans_for(calls[nth].kind)) {
        plan.nth = nth;
        target.remove();
        if (scenario.has_old) target.write_old();
        const Outcome outcome = run(plan).second;
        const std::string wanted = expected_verdict(scenario, plan, calls);
        CAPTURE(faults::shown(plan, calls[nth]));
        CAPTURE(outcome.text);
        if (wanted != "either") CHECK(outcome.verdict == wanted);
        if (outcome.verdict == "ok") {
          CHECK(target.found() == "new");
        } else {
          if (outcome.verdict == "kIo") {
            CHECK(outcome.os_error == (plan.effect == Effect::kError ? plan.error : EIO));
          }
          CHECK(target.found() == found_after_error(scenario, plan, calls));
        }
        CHECK(target.names().size() == (target.found() == "none" ? 0U : 1U));
        CHECK(test::open_descriptors() == descriptors);
        ++points;
      }
    }
    MESSAGE(std::string(scenario.name), ": ", calls.size(), " calls, ", points, " faults");
  }
}

TEST_CASE("a writer to a descriptor that fails in any way cuts the file back") {
  const Target target(false);
  const auto path = target.folder() / "model.safetensors";
  const std::string before = "what was written before";
  const auto begin = [&] {
    test::write_text(path, before);
    safetensors::io::Fd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    REQUIRE(::lseek(fd.get(), 0, SEEK_END) == static_cast<off_t>(before.size()));
    return fd;
  };
  const auto run = [&](const Plan& plan, const safetensors::io::Fd& fd) {
    return faults::run(plan, [&] {
      target.write_to(safetensors::make_descriptor_sink(fd.get(), path), true);
      return std::string();
    });
  };
  const auto [calls, clean] = [&] {
    const safetensors::io::Fd fd = begin();
    return run({}, fd);
  }();
  REQUIRE(clean.verdict == "ok");
  const std::string after = test::read_text(path);
  CHECK(after.substr(0, before.size()) == before);
  std::size_t points = 0;
  for (std::size_t nth = 0; nth < calls.size(); ++nth) {
    for (Plan plan : faults::plans_for(calls[nth].kind)) {
      plan.nth = nth;
      const safetensors::io::Fd fd = begin();
      const Outcome outcome = run(plan, fd).second;
      CAPTURE(faults::shown(plan, calls[nth]));
      CAPTURE(outcome.text);
      CHECK(test::read_text(path) == (outcome.verdict == "ok" ? after : before));
      CHECK(::lseek(fd.get(), 0, SEEK_CUR) ==
            static_cast<off_t>((outcome.verdict == "ok" ? after : before).size()));
      // Only these may go unnoticed.
      if (outcome.verdict == "ok" && plan.effect == Effect::kError && plan.error != EINTR) {
        const bool may_fail = calls[nth].kind != Kind::kWrite && calls[nth].kind != Kind::kSync;
        CHECK(may_fail);
      }
      ++points;
    }
  }
  MESSAGE(calls.size(), " calls, ", points, " faults");
}

TEST_CASE("a writer in which any allocation fails leaves a whole file") {
  for (const bool added : {false, true}) {
    const Target target(true);
    const std::size_t descriptors = test::open_descriptors();
    const auto save = [&] {
      added ? target.write_added(true) : target.write(true);
      return std::string();
    };
    const auto check = [&](const Outcome& outcome) {
      CHECK(target.found() == (outcome.verdict == "ok" ? "new" : "old"));
      CHECK(target.names().size() == 1);
      CHECK(test::open_descriptors() == descriptors);
    };
    const std::size_t count =
        faults::fail_each_allocation([&] { target.write_old(); }, save, check);
    MESSAGE(count, " allocations");
  }
}
