#include "gil.hpp"

#include <chrono>
#include <thread>

namespace safetensors::python {
namespace {

[[noreturn]] void wait_for_the_end() noexcept {
  while (true) std::this_thread::sleep_for(std::chrono::hours(1));
}

}  // namespace

void take_gil(PyThreadState* state) noexcept {
  // Late in its exit the interpreter no longer knows the thread, and would abort over that.
  if (state == nullptr) wait_for_the_end();
  try {
    PyEval_RestoreThread(state);
  } catch (...) {
    // Not an exception: the stack is being unwound. To leave the handler would go on with that.
    wait_for_the_end();
  }
}

}  // namespace safetensors::python
