// State of the whole process that has locks.
#pragma once

#include <atomic>
#include <cstdint>

#include "io/process.hpp"

namespace safetensors::io {

/// One T for the process, made when it is first asked for and never destroyed. A forked process
/// gets a T of its own, as new: a lock in its copy of the parent's may be held by a thread that it
/// does not have. For the same reason nothing here waits, as the first use of a local static would.
/// Thread safe. Lives in a variable that is constinit.
template <typename T>
class OfProcess {
 public:
  [[nodiscard]] T& get() {
    const std::uint64_t generation = fork_generation();
    Kept* found = current_.load(std::memory_order_acquire);
    if (found != nullptr && found->generation == generation) return found->value;
    auto* const fresh = new Kept{generation, found, {}};
    if (current_.compare_exchange_strong(found, fresh)) return fresh->value;
    delete fresh;
    return found->value;
  }

 private:
  struct Kept {
    std::uint64_t generation;
    const Kept* of_parent;
    T value;
  };
  std::atomic<Kept*> current_{nullptr};
};

}  // namespace safetensors::io
