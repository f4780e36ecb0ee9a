// The sums of a file that is being written, by a function of Python.
#pragma once

#include "python.hpp"
#include "safetensors/detail/write_sums.hpp"

namespace safetensors::python {

/// Converts None, for no sums, or a tuple (path, make). `make(temporary, digests)` gets the path of
/// the complete file, and a dict of name to (XXH3-128 in hexadecimal digits, bytes of the blocks),
/// or to None if the tensor was not hashed; or None if no tensor was added. It returns the content
/// of the sums, which are written to `path`, or None.
///
/// Lifetime: the result holds `make`; it is destroyed with the GIL. Its members need no GIL.
[[nodiscard]] detail::WriteSums to_write_sums(py::handle given);

}  // namespace safetensors::python
