// A sink whose bytes go to a Python function.
#pragma once

#include <memory>

#include "python.hpp"

namespace safetensors::python {

/// Returns a sink that calls `write(offset, view)`, which writes all of the memoryview. The memory
/// is lent for the call: see Loan, which raises SafetensorError if something of it is kept.
///
/// The sink throws what `write` raises. All its calls and its destructor require that the thread is
/// inside a GilRelease.
[[nodiscard]] std::unique_ptr<ByteSink> make_python_sink(py::object write, bool seeks);

}  // namespace safetensors::python
