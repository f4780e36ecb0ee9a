// pybind11, and conversions that all bindings share. All functions require the GIL.
#pragma once

#include <pybind11/pybind11.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "safetensors/safetensors.hpp"

namespace safetensors::python {

namespace py = pybind11;

/// Disables Python's cyclic garbage collector while it lives. A call that creates many objects
/// would otherwise trigger collections that walk all of them, again and again.
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

/// Returns a callback by which Ctrl-C interrupts the core: it runs Python's signal handlers and
/// throws what they raise. The core calls it on the thread that released the GIL, and it acquires
/// the GIL.
[[nodiscard]] Interrupt python_interrupt();

/// Returns a callback that calls `progress(done, total)` with the GIL; none for None. The core
/// calls it on the thread that released the GIL. Lifetime: the caller keeps `progress` as long as
/// the callback.
[[nodiscard]] std::function<void(std::uint64_t done, std::uint64_t total)> python_progress(
    py::handle progress);

/// Returns the name of an object's type without its module, for an error text.
[[nodiscard]] inline std::string type_name(py::handle object) {
  const std::string_view name = Py_TYPE(object.ptr())->tp_name;
  return std::string(name.substr(name.rfind('.') + 1));
}

/// Raises TypeError: `argument` is not of `type`. `where` is the end of the text.
[[noreturn]] void raise_wrong_type(py::handle object, const char* argument, const char* type,
                                   const std::string& where = {});

/// Returns the text of a str. Raises TypeError that names `argument` for any other object.
/// Lifetime: the view points into the object.
[[nodiscard]] std::string_view text_of(py::handle object, const char* argument);

/// Returns the text of a key of the argument, or of the value of the key. Raises TypeError that
/// names `argument` and the key. Lifetime: as for text_of().
[[nodiscard]] std::string_view text_of_key(py::handle key, const char* argument);
[[nodiscard]] std::string_view text_of_value(py::handle value, std::string_view key,
                                             const char* argument);

/// Converts a str, bytes or os.PathLike. Raises TypeError that names `argument` for other objects.
[[nodiscard]] std::filesystem::path path_of(py::handle object, const char* argument);

/// The same, with an empty path for None.
[[nodiscard]] std::filesystem::path optional_path_of(py::handle object, const char* argument);

/// Returns whether the object is a URL and not a path: a str that begins with a scheme of two or
/// more characters and "://". Chains such as "zip::s3://" are URLs, too.
[[nodiscard]] bool is_url(py::handle object);

/// Converts like path_of(). Throws Error kInvalidArgument for a URL: `what` is not possible.
[[nodiscard]] std::filesystem::path local_path_of(py::handle object, const char* argument,
                                                  const char* what);

/// Returns the path as a str, decoded as Python's own functions decode file names.
[[nodiscard]] py::object to_object(const std::filesystem::path& path);

/// Converts the name of a file, which Python decodes as the system's. Not by a path: each name
/// would take a microsecond.
[[nodiscard]] std::string file_name_of(py::handle name);
[[nodiscard]] py::object to_file_name(std::string_view name);
/// The same of a list of names.
[[nodiscard]] std::vector<std::string> file_names_of(py::handle names);
[[nodiscard]] py::list to_file_names(std::span<const std::string> names);

/// Converts a size. Raises TypeError or OverflowError that names `argument`.
[[nodiscard]] std::uint64_t size_of(py::handle object, const char* argument);

/// Converts the sizes of an iterable. Raises as size_of, with the argument "shape".
[[nodiscard]] std::vector<std::uint64_t> dims_of(py::handle shape);

/// Converts text of the core, which is UTF-8 except for file names that are not: bytes that cannot
/// be decoded become surrogates.
[[nodiscard]] py::str to_str(std::string_view text);

/// Converts text that is valid UTF-8, such as a tensor's name.
[[nodiscard]] py::object to_unicode(std::string_view text);

[[nodiscard]] inline py::object to_int(std::uint64_t value) {
  auto object = py::reinterpret_steal<py::object>(PyLong_FromUnsignedLongLong(value));
  if (!object) throw py::error_already_set();
  return object;
}

/// Returns a shallow copy of a dict. Inspecting the objects in a dict can run Python code and
/// switch threads, and either may change the caller's dict; nobody else changes the copy.
[[nodiscard]] py::dict copy_of(py::handle dict);

[[nodiscard]] py::list to_list(std::span<const std::uint64_t> values);

/// Converts a dict of str to str; nothing for None.
[[nodiscard]] std::optional<Metadata> metadata_of(py::handle object);

/// The bytes of an object with a contiguous buffer. Keeps the buffer exported while it lives, so
/// that the bytes stay valid while the GIL is released.
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

/// The same, for an object whose bytes are to be written.
class WritableBuffer {
 public:
  explicit WritableBuffer(py::handle object) {
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_WRITABLE) != 0) {
      throw py::error_already_set();
    }
  }
  WritableBuffer(const WritableBuffer&) = delete;
  WritableBuffer& operator=(const WritableBuffer&) = delete;
  ~WritableBuffer() { PyBuffer_Release(&view_); }
  [[nodiscard]] std::span<std::byte> bytes() const noexcept {
    return {static_cast<std::byte*>(view_.buf), static_cast<std::size_t>(view_.len)};
  }
  /// Returns the bytes as values. Raises ValueError if they are not aligned for these.
  template <typename T>
  [[nodiscard]] std::span<T> values() const {
    const auto size = static_cast<std::size_t>(view_.len);
    if (size == 0) return {};  // Python may have an empty buffer begin at any address
    if (size % sizeof(T) != 0 || reinterpret_cast<std::uintptr_t>(view_.buf) % alignof(T) != 0) {
      throw py::value_error("argument 'out': not aligned for its values");
    }
    return {static_cast<T*>(view_.buf), size / sizeof(T)};
  }

 private:
  Py_buffer view_{};
};

}  // namespace safetensors::python
