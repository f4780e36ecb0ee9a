// Runs a piece of work with each of its system calls failing in turn.
#pragma once

#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "control.hpp"
#include "posix_support.hpp"
#include "support.hpp"

namespace faults {

/// The outcome of a piece of work.
struct Outcome {
  std::string verdict;  ///< "ok", the name of an ErrorCode, or "bad_alloc"
  int os_error = 0;
  std::string text;    ///< of the error
  std::string result;  ///< of the work, when it is ok
};

inline Outcome outcome_of(const std::function<std::string()>& work) {
  try {
    return {"ok", 0, {}, work()};
  } catch (const safetensors::Error& error) {
    return {std::string(test::name_of(error.code())), error.os_error(), error.what(), {}};
  } catch (const std::bad_alloc&) {
    return {"bad_alloc", 0, {}, {}};
  }
}

/// Runs `work` under a plan. Returns its calls and its outcome.
inline std::pair<std::vector<Call>, Outcome> run(const Plan& plan,
                                                 const std::function<std::string()>& work) {
  faults_begin(&plan);
  const Outcome outcome = outcome_of(work);
  const std::size_t count = faults_end();
  const Call* const calls = faults_calls();
  return {{calls, calls + std::min(count, kMaxCalls)}, outcome};
}

/// Returns the effects to try on a call of this kind.
inline std::vector<Plan> plans_for(Kind kind) {
  std::vector<Plan> plans;
  const auto errors = [&](std::initializer_list<int> numbers) {
    for (const int number : numbers) plans.push_back({.effect = Effect::kError, .error = number});
  };
  const auto effects = [&](std::initializer_list<Effect> some) {
    for (const Effect effect : some) plans.push_back({.effect = effect});
  };
  switch (kind) {
    case Kind::kOpen:
      errors({EINTR, EMFILE, ENFILE, ENOMEM, EIO, EACCES, ENOSPC, EDQUOT, EROFS, EPERM, ENODEV});
      break;
    case Kind::kRead:
      errors({EINTR, EIO, ENOMEM});
      effects({Effect::kHalf, Effect::kOneByte, Effect::kNothing});
      break;
    case Kind::kWrite:
      errors({EINTR, EIO, ENOSPC, EDQUOT, EFBIG, EROFS, ENOMEM});
      effects({Effect::kHalf, Effect::kOneByte, Effect::kNothing});
      break;
    case Kind::kMapFile:
      errors({ENOMEM, EAGAIN, ENODEV, EACCES, EPERM, ENFILE});
      break;
    case Kind::kMapMemory:
      errors({ENOMEM});
      break;
    case Kind::kReserve:
      errors({EINTR, ENOSPC, EDQUOT, EFBIG, EIO, EOPNOTSUPP, ENOSYS, EINVAL, EPERM});
      break;
    case Kind::kTruncate:
      errors({EIO, EPERM, EINVAL, EROFS});
      break;
    case Kind::kSync:
      errors({EINTR, EIO, ENOSPC, EDQUOT, EROFS, EINVAL});
      break;
    case Kind::kRename:
      errors({EIO, ENOSPC, EDQUOT, ENOMEM, EMFILE, EINTR, EXDEV, EROFS, EACCES, EPERM, EBUSY});
      break;
    case Kind::kUnlink:
      break;  // a temporary file that cannot be removed stays: nothing can be asked
    case Kind::kClose:
      errors({EINTR, EIO, ENOSPC, EDQUOT});
      break;
    case Kind::kStatus:
    case Kind::kLink:
      errors({EIO, ENOMEM, EACCES});
      break;
    case Kind::kDuplicate:
      errors({EMFILE, ENOMEM});
      break;
    case Kind::kMode:
      errors({EPERM, EIO, EROFS});
      break;
    case Kind::kAttribute:
      errors({ENODATA, ENOTSUP, EIO, ENOMEM});
      break;
    case Kind::kCopy:
      errors({EINTR, EIO, ENOSPC, EDQUOT, EFBIG, ENOMEM, EXDEV, ENOSYS, EINVAL, EPERM});
      effects({Effect::kHalf, Effect::kOneByte, Effect::kNothing});
      break;
    case Kind::kShare:
      errors({EINTR, EIO, ENOSPC, EDQUOT, ENOMEM, EXDEV, EOPNOTSUPP, EINVAL, ENOTTY});
      break;
    case Kind::kLock:
      errors({EINTR, EWOULDBLOCK, ENOLCK});
      break;
    case Kind::kSeek:
      errors({EINVAL, ESPIPE});
      break;
  }
  // What does not pass by itself: a full disk is full for the next call too.
  const std::size_t once = plans.size();
  for (std::size_t i = 0; i < once; ++i) {
    if (plans[i].effect != Effect::kError || plans[i].error == EINTR) continue;
    plans.push_back(plans[i]);
    plans.back().onward = true;
  }
  return plans;
}

/// Returns the call that opened the descriptor of call `i`. Numbers of descriptors are reused.
inline const Call* opening_of(const std::vector<Call>& calls, std::size_t i) {
  for (std::size_t k = i; k-- > 0;) {
    if (calls[k].kind == Kind::kOpen && calls[k].fd == calls[i].fd) return &calls[k];
  }
  return nullptr;
}

inline bool is_folder(const Call* opening) {
  return opening != nullptr && (opening->flags & O_DIRECTORY) != 0;
}

/// Returns whether call `i` closes a file that was written.
inline bool ends_writing(const std::vector<Call>& calls, std::size_t i) {
  if (calls[i].kind != Kind::kClose) return false;
  for (std::size_t k = i; k-- > 0 && &calls[k] != opening_of(calls, i);) {
    if (calls[k].kind == Kind::kWrite && calls[k].fd == calls[i].fd) return true;
  }
  return false;
}

/// Returns whether a call before `i` has renamed the file.
inline bool is_renamed(const std::vector<Call>& calls, std::size_t i) {
  return std::any_of(calls.begin(), calls.begin() + static_cast<std::ptrdiff_t>(i),
                     [](const Call& call) { return call.kind == Kind::kRename; });
}

/// Returns whether a call that `counts` selects has failed.
template <typename Counts>
bool meets(const Plan& plan, const std::vector<Call>& calls, const Counts& counts) {
  for (std::size_t i = plan.nth; i < (plan.onward ? calls.size() : plan.nth + 1); ++i) {
    if (calls[i].kind == calls[plan.nth].kind && counts(i)) return true;
  }
  return false;
}

/// Describes a call and its fault, for failed checks.
inline std::string shown(const Plan& plan, const Call& call) {
  return "call " + std::to_string(plan.nth) + " of kind " +
         std::to_string(static_cast<int>(call.kind)) + " (" + call.path + "), effect " +
         std::to_string(static_cast<int>(plan.effect)) + ", error " + std::to_string(plan.error) +
         (plan.onward ? ", and onward" : "");
}

/// Makes operator new throw at its `nth` call from here (see allocations.cpp).
void begin_allocations(std::size_t nth);
/// Stops that. Returns the number of calls.
std::size_t end_allocations();

/// Runs `work` with each of its allocations failing in turn, `prepare` before each run, and `check`
/// after it. Returns the number of runs.
inline std::size_t fail_each_allocation(const std::function<void()>& prepare,
                                        const std::function<std::string()>& work,
                                        const std::function<void(const Outcome&)>& check) {
  std::size_t nth = 0;
  for (std::size_t count = 1; nth < count; ++nth) {
    prepare();
    begin_allocations(nth);
    const Outcome outcome = outcome_of(work);
    // After a failure there may be fewer calls, so a run without one determines the end.
    count = std::max(end_allocations(), outcome.verdict == "ok" ? 0 : nth + 2);
    CAPTURE(nth);
    CAPTURE(outcome.verdict);
    check(outcome);
  }
  return nth;
}

}  // namespace faults
