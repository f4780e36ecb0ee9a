// Objects that belong to this process.
#pragma once

#include <string>

#include "python.hpp"

namespace safetensors::python {

inline constexpr char kFileIsOpen[] =
    "its file is open in this process. Pass the path, and open the file there";
inline constexpr char kThreadsLoad[] =
    "threads of this process load it. Pass the path, and open the file there";
inline constexpr char kHasAddress[] = "it has an address of this process. Pass the tensor";

/// The method __reduce__ of a class without pickles and copies. Raises TypeError; `kWhy` gives the
/// reason, and what to do instead.
template <const char* kWhy>
py::object refuse_pickle(const py::object& self) {
  const py::object type = py::type::of(self);
  throw py::type_error(
      py::cast<std::string>(py::str("cannot pickle or copy '{}.{}' object: {}")
                                .format(type.attr("__module__"), type.attr("__qualname__"), kWhy)));
}

}  // namespace safetensors::python
