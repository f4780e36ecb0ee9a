// Releasing the GIL while the core works on bytes, and acquiring it again.
//
// Before Python 3.14, a thread that asks for the GIL while the interpreter exits is ended by
// unwinding its stack. That aborts the process if it meets a noexcept function: a program would
// crash at exit because a daemon thread was saving. These classes make such a thread wait for the
// end of the process instead, which is what Python does itself from 3.14 on.
#pragma once

#include <pybind11/pybind11.h>

namespace safetensors::python {

/// Blocks for ever: for a thread that the interpreter would end.
[[noreturn]] void wait_for_the_end() noexcept;

/// Blocks until this thread holds the GIL. Never returns while the interpreter exits.
void acquire_gil(PyThreadState* state) noexcept;

/// Releases the GIL while it lives.
///
/// Requires: until then, this thread uses, copies and destroys no Python object, not even by the
///   destructor of a variable that is declared after this one.
class GilRelease {
 public:
  GilRelease() noexcept : state_(PyEval_SaveThread()) {}
  GilRelease(const GilRelease&) = delete;
  GilRelease& operator=(const GilRelease&) = delete;
  ~GilRelease() { acquire_gil(state_); }

 private:
  PyThreadState* state_;
};

/// Holds the GIL while it lives.
///
/// Requires: this thread is inside a GilRelease.
class GilAcquire {
 public:
  GilAcquire() noexcept { acquire_gil(PyGILState_GetThisThreadState()); }
  GilAcquire(const GilAcquire&) = delete;
  GilAcquire& operator=(const GilAcquire&) = delete;
  ~GilAcquire() { (void)PyEval_SaveThread(); }
};

}  // namespace safetensors::python
