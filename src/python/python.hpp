// pybind11, and what all bindings share.
#pragma once

#include <pybind11/pybind11.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "safetensors/safetensors.hpp"

namespace safetensors::python {

namespace py = pybind11;

/// Switches Python's cyclic garbage collector off while many objects are made that it would
/// otherwise walk again and again; on every way out it is as it was.
class GcPause {
 public:
  GcPause() noexcept : was_enabled_(PyGC_Disable() != 0) {}
  GcPause(const GcPause&) = delete;
  GcPause& operator=(const GcPause&) = delete;
  ~GcPause() {
    if (was_enabled_) PyGC_Enable();
  }

 private:
  bool was_enabled_;
};

/// Lets Ctrl-C stop the core: runs Python's signal handlers, throws what they raise.
[[nodiscard]] Interrupt python_interrupt();

/// The name of an object's type, without its module, for an error text.
[[nodiscard]] inline std::string type_name(py::handle object) {
  const std::string_view name = Py_TYPE(object.ptr())->tp_name;
  return std::string(name.substr(name.rfind('.') + 1));
}

/// TypeError: `argument` is not of `type`.
[[noreturn]] void raise_wrong_type(py::handle object, const char* argument, const char* type);

/// The text of a str; a view into it, so the object must stay alive.
/// Raises TypeError, naming `argument`, when it is none.
[[nodiscard]] std::string_view text_of(py::handle object, const char* argument);

/// Of a str, bytes or os.PathLike. Raises TypeError, naming `argument`, when it is none of these.
[[nodiscard]] std::filesystem::path path_of(py::handle object, const char* argument);

/// As Python's own functions tell paths: a str.
[[nodiscard]] py::object to_object(const std::filesystem::path& path);

/// A size. Raises TypeError or OverflowError, naming `argument`, when it is none.
[[nodiscard]] std::uint64_t size_of(py::handle object, const char* argument);

/// Text of the core as a Python string: UTF-8, but for file names that are not.
[[nodiscard]] py::str to_str(std::string_view text);

/// A tensor's name, or other text that is known to be UTF-8.
[[nodiscard]] py::object to_unicode(std::string_view text);

[[nodiscard]] inline py::object to_int(std::uint64_t value) {
  auto object = py::reinterpret_steal<py::object>(PyLong_FromUnsignedLongLong(value));
  if (!object) throw py::error_already_set();
  return object;
}

/// A copy of a dict, with the same objects in it. To look at objects can run Python code, and let
/// other threads run: either may change the caller's dict, but not the copy.
[[nodiscard]] py::dict copy_of(py::handle dict);

[[nodiscard]] py::list to_list(std::span<const std::uint64_t> values);

/// Metadata of a dict of str to str, or none of None.
[[nodiscard]] std::optional<Metadata> metadata_of(py::handle object);

/// The bytes of any object with a contiguous buffer, for as long as this lives.
class BufferView {
 public:
  BufferView(py::handle object, const char* argument);
  BufferView(const BufferView&) = delete;
  BufferView& operator=(const BufferView&) = delete;
  ~BufferView() { PyBuffer_Release(&view_); }
  [[nodiscard]] std::span<const std::byte> bytes() const noexcept {
    return {static_cast<const std::byte*>(view_.buf), static_cast<std::size_t>(view_.len)};
  }

 private:
  Py_buffer view_{};
};

}  // namespace safetensors::python
