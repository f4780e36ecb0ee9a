#include "gil.hpp"

#include <chrono>
#include <thread>

namespace safetensors::python {

void wait_for_the_end() noexcept {
  while (true) std::this_thread::sleep_for(std::chrono::hours(1));
}

void acquire_gil(PyThreadState* state) noexcept {
  // Late in its exit the interpreter has no state for this thread, and would abort.
  if (state == nullptr) wait_for_the_end();
  try {
    PyEval_RestoreThread(state);
  } catch (...) {
    // Not a C++ exception: Python is unwinding the stack to end the thread. Leaving this handler
    // would continue that.
    wait_for_the_end();
  }
}

}  // namespace safetensors::python
