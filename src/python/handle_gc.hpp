// The garbage collector and the handles of safe_open.
#pragma once

#include "python.hpp"

namespace safetensors::python {

/// Makes the garbage collector find the reader of a handle: it may refer to the handle. A handle in
/// such a cycle is closed before anything in the cycle is cleared, so that the reader is whole when
/// its close() is called.
///
/// Requires: the type is made for objects whose value is a Handle.
void collect_garbage(PyHeapTypeObject* made);

}  // namespace safetensors::python
