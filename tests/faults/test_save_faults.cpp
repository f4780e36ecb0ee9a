// Saving while each system call fails in turn.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "faults.hpp"
#include "saving.hpp"

using faults::Call;
using faults::Effect;
using faults::Kind;
using faults::Outcome;
using faults::Plan;

namespace {

struct Scenario {
  const char* name;
  bool has_old;
  bool fsync;
  bool in_place = false;  ///< renaming does not work there
  bool by_link = false;   ///< saved through a symbolic link
};

/// Returns whether the error means that files cannot be created or renamed there. The old file is
/// overwritten then.
bool is_no_place(int error) {
  const std::vector<int> such = {EACCES, EPERM, EROFS, EBUSY, EXDEV};
  return std::ranges::find(such, error) != such.end();
}

/// Returns the only correct outcome.
std::string expected_verdict(const Scenario& scenario, const Plan& plan,
                             const std::vector<Call>& calls) {
  const Call& call = calls[plan.nth];
  const bool is_error = plan.effect == Effect::kError;
  if (is_error && plan.error == EINTR && call.kind != Kind::kRename) return "ok";
  const auto failed_if = [](bool failed) { return std::string(failed ? "kIo" : "ok"); };
  switch (call.kind) {
    case Kind::kOpen: {
      // An old file is opened to find its mappings; it has none if it may not be read.
      const std::string_view path = call.path;
      const bool is_question = (call.flags & (O_ACCMODE | O_DIRECTORY)) == O_RDONLY &&
                               (!path.starts_with("/proc/") || path.starts_with("/proc/self/fd/"));
      if (is_question && plan.error == EACCES) return "ok";
      const bool more = plan.onward && meets(plan, calls, [&](std::size_t i) {
                          return i > plan.nth && calls[i].kind == Kind::kOpen;
                        });
      if (is_folder(&call) && !more) return failed_if(plan.error != EACCES);  // may not be read
      if (plan.onward) return "kIo";
      // No file can be made beside an old one: that is overwritten then.
      const bool is_temporary = (call.flags & O_EXCL) != 0;
      return failed_if(!(scenario.has_old && is_temporary && is_no_place(plan.error)));
    }
    case Kind::kWrite:
      return failed_if(is_error || plan.effect == Effect::kNothing);
    case Kind::kRead:  // of the mappings; the end may come after the relevant lines
      return plan.effect == Effect::kNothing ? "either" : failed_if(is_error);
    case Kind::kMapFile:  // likewise: nothing where files cannot be mapped
      return failed_if(plan.error != ENODEV);
    case Kind::kReserve:  // only a lack of space is an error
      return failed_if(plan.error == ENOSPC || plan.error == EDQUOT || plan.error == EFBIG);
    case Kind::kSync:  // not all file systems can flush folders
      return failed_if(meets(plan, calls, [&](std::size_t i) {
        return plan.error != EINVAL || !is_folder(opening_of(calls, i));
      }));
    case Kind::kRename:
      return failed_if(!is_no_place(plan.error));
    case Kind::kClose:
      return failed_if(meets(plan, calls, [&](std::size_t i) { return ends_writing(calls, i); }));
    case Kind::kStatus:  // of an open file, or of the new one: only decides how to treat it
      if (plan.nth == 0) return "either";  // whether the path names a descriptor
      return call.path[0] == '\0' || faults::is_renamed(calls, plan.nth) ? "either" : "kIo";
    case Kind::kTruncate:
    case Kind::kLink:
      return "kIo";
    default:
      return "ok";
  }
}

/// Returns what the target may be after an error.
std::vector<std::string> may_be_found(const Scenario& scenario, const Plan& plan,
                                      const std::vector<Call>& calls) {
  const std::string before = scenario.has_old ? "old" : "none";
  const auto first = [&](auto wanted) {
    std::size_t i = 0;
    while (i < calls.size() && !wanted(i)) ++i;
    return i;
  };
  // The last step is to flush the folder: the file has its name by then.
  const std::size_t flush = first([&](std::size_t i) {
    return calls[i].kind == Kind::kSync && is_folder(opening_of(calls, i));
  });
  if (plan.nth >= flush) return {"new"};
  if (!scenario.in_place || !scenario.has_old) return {before};
  // Once overwriting has begun, the old content is lost.
  const std::size_t overwritten = first([&](std::size_t i) {
    const Call* const opening = opening_of(calls, i);
    return calls[i].kind == Kind::kWrite && opening != nullptr && (opening->flags & O_EXCL) == 0;
  });
  if (plan.nth < overwritten && !plan.onward) return {before};
  return {"old", "damaged", "new"};
}

class Bench {
 public:
  explicit Bench(const Scenario& scenario)
      : scenario_(scenario), target_(scenario.has_old, scenario.by_link) {}

  void prepare() const {
    if (target_.found() == "old" && scenario_.has_old) return;
    target_.remove();
    if (scenario_.has_old) target_.write_old();
  }
  std::pair<std::vector<Call>, Outcome> run(Plan plan) const {
    plan.no_rename = scenario_.in_place;
    return faults::run(plan, [&] {
      target_.save(scenario_.fsync);
      return std::string();
    });
  }
  [[nodiscard]] const faults::Target& target() const { return target_; }

 private:
  Scenario scenario_;
  faults::Target target_;
};

void check_after(const Bench& bench, const Scenario& scenario, const Outcome& outcome,
                 const std::vector<std::string>& found_wanted) {
  const std::string found = bench.target().found();
  CAPTURE(found);
  CHECK(std::ranges::find(found_wanted, found) != found_wanted.end());
  // No temporary file, nor anything else.
  const auto names = bench.target().names();
  CHECK(names.size() == (found == "none" ? 0U : 1U));
  if (outcome.verdict == "ok" && !scenario.has_old) {
    CHECK(test::mode_of(bench.target().real()) == 0640);
  }
  // However the old file's rights could not be carried over, the new one has no others.
  if (found == "new" && scenario.has_old) {
    CHECK((test::mode_of(bench.target().real()) & ~0640U) == 0);
  }
}

}  // namespace

TEST_CASE("a save in which any call fails in any way leaves a whole file") {
  const test::Umask umask(0026);
  for (const Scenario& scenario : {
           Scenario{"new", false, false},
           Scenario{"new, flushed", false, true},
           Scenario{"over a file", true, false},
           Scenario{"over a file, flushed", true, true},
           Scenario{"in place", true, false, true},
           Scenario{"in place, flushed", true, true, true},
           Scenario{"new, no renaming", false, true, true},
           Scenario{"through a link", true, false, false, true},
           Scenario{"new, through a link", false, true, false, true},
       }) {
    CAPTURE(scenario.name);
    const Bench bench(scenario);
    const std::size_t descriptors = test::open_descriptors();
    const auto [calls, clean] = bench.run({});
    CAPTURE(clean.text);
    REQUIRE(clean.verdict == "ok");
    CHECK(bench.target().found() == "new");
    if (!scenario.has_old) CHECK(test::mode_of(bench.target().real()) == 0640);
    std::size_t points = 0;
    for (std::size_t nth = 0; nth < calls.size(); ++nth) {
      for (Plan plan : faults::plans_for(calls[nth].kind)) {
        plan.nth = nth;
        bench.prepare();
        const Outcome outcome = bench.run(plan).second;
        const std::string wanted = expected_verdict(scenario, plan, calls);
        CAPTURE(faults::shown(plan, calls[nth]));
        CAPTURE(outcome.text);
        if (wanted != "either") CHECK(outcome.verdict == wanted);
        if (outcome.verdict == "ok") {
          check_after(bench, scenario, outcome, {"new"});
        } else {
          CHECK(outcome.verdict == "kIo");
          CHECK(outcome.os_error == (plan.effect == Effect::kError ? plan.error : EIO));
          CHECK(outcome.text.starts_with("Error while serializing: I/O error: "));
          const bool is_named =
              outcome.text.find(bench.target().path().native()) != outcome.text.npos ||
              outcome.text.find(bench.target().real().native()) != outcome.text.npos;
          CHECK(is_named);
          check_after(bench, scenario, outcome, may_be_found(scenario, plan, calls));
        }
        CHECK(test::open_descriptors() == descriptors);
        ++points;
      }
    }
    MESSAGE(std::string(scenario.name), ": ", calls.size(), " calls, ", points, " faults");
  }
}

TEST_CASE("a save in which any allocation fails leaves a whole file") {
  const test::Umask umask(0026);
  for (const Scenario& scenario :
       {Scenario{"new", false, true}, Scenario{"over a file", true, true}}) {
    const Bench bench(scenario);
    const std::size_t descriptors = test::open_descriptors();
    const auto save = [&] {
      bench.target().save(scenario.fsync);
      return std::string();
    };
    const auto check = [&](const Outcome& outcome) {
      // Flushing the folder is the last step, and needs none.
      check_after(bench, scenario, outcome,
                  {outcome.verdict == "ok" ? "new"
                   : scenario.has_old      ? "old"
                                           : "none"});
      CHECK(test::open_descriptors() == descriptors);
    };
    const std::size_t count = faults::fail_each_allocation([&] { bench.prepare(); }, save, check);
    MESSAGE(std::string(scenario.name), ": ", count, " allocations");
  }
}

TEST_CASE("fsync flushes the data before the rename and the folder after it") {
  const faults::Target target(true);
  const auto [calls, outcome] = faults::run({}, [&] {
    target.save(true);
    return std::string();
  });
  REQUIRE(outcome.verdict == "ok");
  // Descriptors are reused, so follow the calls to find what a descriptor refers to.
  std::vector<std::string> steps;
  std::map<int, std::string> opened;
  for (const Call& call : calls) {
    if (call.kind == Kind::kOpen) {
      opened[call.fd] = (call.flags & O_DIRECTORY) != 0 ? "folder" : "file";
      if (opened[call.fd] == "folder") CHECK(test::fs::equivalent(call.path, target.folder()));
    } else if (call.kind == Kind::kWrite) {
      if (steps.empty() || steps.back() != "write " + opened[call.fd]) {
        steps.push_back("write " + opened[call.fd]);
      }
    } else if (call.kind == Kind::kSync) {
      steps.push_back("sync " + opened[call.fd]);
    } else if (call.kind == Kind::kRename) {
      steps.emplace_back("rename");
    }
  }
  const std::vector<std::string> wanted = {"write file", "sync file", "rename", "sync folder"};
  CHECK(steps == wanted);
}
