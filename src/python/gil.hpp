// Letting go of the GIL for work on bytes, and taking it back.
//
// Before Python 3.14 a thread that asks for the GIL while the interpreter exits is ended by
// unwinding its stack, and that aborts the whole process where C++ does not expect it: a program
// would die at exit because a daemon thread was saving. Here such a thread waits for the end of the
// process instead, as Python does itself from 3.14 on.
#pragma once

#include <pybind11/pybind11.h>

namespace safetensors::python {

/// Waits for the GIL. Does not return while the interpreter exits.
void take_gil(PyThreadState* state) noexcept;

/// The GIL is free while this lives. What lives longer may be Python objects, but not be touched.
class GilRelease {
 public:
  GilRelease() noexcept : state_(PyEval_SaveThread()) {}
  GilRelease(const GilRelease&) = delete;
  GilRelease& operator=(const GilRelease&) = delete;
  ~GilRelease() { take_gil(state_); }

 private:
  PyThreadState* state_;
};

/// Within a GilRelease of the same thread: the GIL is taken again while this lives.
class GilAcquire {
 public:
  GilAcquire() noexcept { take_gil(PyGILState_GetThisThreadState()); }
  GilAcquire(const GilAcquire&) = delete;
  GilAcquire& operator=(const GilAcquire&) = delete;
  ~GilAcquire() { (void)PyEval_SaveThread(); }
};

}  // namespace safetensors::python
