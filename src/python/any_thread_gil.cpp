#include "any_thread_gil.hpp"

#include <atomic>

#include "gil.hpp"

#if !defined(_WIN32)
#include <pthread.h>
#endif

namespace safetensors::python {
namespace {

constinit std::atomic<int> inside{0};
constinit std::atomic<bool> is_closed{false};
constinit std::atomic<std::uint64_t> forks{0};

#if !defined(_WIN32)
// The threads that were inside exist only in the parent.
[[maybe_unused]] const int fork_handler = ::pthread_atfork(nullptr, nullptr, [] {
  inside = 0;
  ++forks;
});
#endif

/// Either a thread sees that the gate is closed, or who closed it sees that the thread is inside.
bool enter() noexcept {
  ++inside;
  if (!is_closed) return true;
  --inside;
  return false;
}

void leave() noexcept { --inside; }

/// The Python thread state of a thread that the core started.
class ThreadState {
 public:
  ThreadState() = default;
  ThreadState(const ThreadState&) = delete;
  ThreadState& operator=(const ThreadState&) = delete;
  ~ThreadState() {
    if (state_ == nullptr || !enter()) return;
    acquire_gil(state_);
    PyGILState_Release(PyGILState_UNLOCKED);  // of the first call: destroys the state
    leave();
  }

  /// Makes the state, and acquires the GIL.
  void make() noexcept {
    try {
      (void)PyGILState_Ensure();
    } catch (...) {
      wait_for_the_end();  // see acquire_gil()
    }
    state_ = PyGILState_GetThisThreadState();
  }

 private:
  PyThreadState* state_ = nullptr;
};

thread_local ThreadState own_state;

}  // namespace

AnyThreadGil::AnyThreadGil() noexcept : is_inside_(enter()) {
  if (!is_inside_) return;
  PyThreadState* const state = PyGILState_GetThisThreadState();
  if (state == nullptr) {
    own_state.make();
    return;
  }
  was_held_ = state == py::detail::get_thread_state_unchecked();
  if (!was_held_) acquire_gil(state);
}

AnyThreadGil::~AnyThreadGil() {
  if (!is_inside_) return;
  if (!was_held_) (void)PyEval_SaveThread();
  leave();
}

void close_python_gate() noexcept { is_closed = true; }

int threads_in_python() noexcept { return inside; }

std::uint64_t fork_count() noexcept { return forks; }

}  // namespace safetensors::python
