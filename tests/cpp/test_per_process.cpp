// State that each process has for itself.
#include <doctest/doctest.h>
#include <unistd.h>

#include <array>
#include <mutex>
#include <thread>
#include <vector>

#include "base/per_process.hpp"
#include "posix_support.hpp"

using safetensors::fork_generation;
using safetensors::PerProcess;

namespace {

struct State {
  std::mutex mutex;
  int value = 1;
};

}  // namespace

TEST_CASE("all threads of a process get the same state") {
  PerProcess<State> state;
  CHECK(state.find() == nullptr);
  std::array<State*, 8> seen{};
  {
    std::vector<std::thread> threads;
    for (State*& each : seen) threads.emplace_back([&state, &each] { each = &state.get(); });
    for (std::thread& each : threads) each.join();
  }
  for (const State* each : seen) CHECK(each == &state.get());
  state.get().value = 2;
  CHECK(state.get().value == 2);
  CHECK(state.find() == &state.get());
  state.reset();
  CHECK(state.get().value == 1);
  state.reset();
  state.reset();
}

TEST_CASE("a forked process gets a new state, whatever its parent had locked") {
  static constinit PerProcess<State> state;  // its memory is never freed, and so must be reachable
  const std::uint64_t generation = fork_generation();
  State* const own = &state.get();
  own->value = 2;
  const std::lock_guard lock(own->mutex);
  CHECK(test::in_child([&] {
          ::alarm(10);
          if (fork_generation() != generation + 1) return 1;
          if (state.find() != nullptr) return 3;
          State& fresh = state.get();
          const std::lock_guard fresh_lock(fresh.mutex);
          return &fresh != own && fresh.value == 1 ? 0 : 2;
        }) == 0);
  CHECK(test::in_child([&] {
          state.reset();  // leaves the locked mutex alone
          return state.get().value == 1 ? 0 : 1;
        }) == 0);
  CHECK(fork_generation() == generation);
  CHECK(&state.get() == own);
}
