#include "python.hpp"

#include <cerrno>
#include <cstring>

#include "errors.hpp"
#include "gil.hpp"

namespace safetensors::python {
namespace {

/// Returns whether all bytes are ASCII. Reads words of eight bytes; the last may overlap the one
/// before.
/// Requires: at least eight bytes.
bool is_ascii(std::string_view text) noexcept {
  const auto word_at = [&](std::size_t offset) {
    std::uint64_t word = 0;
    std::memcpy(&word, text.data() + offset, sizeof word);
    return word;
  };
  std::uint64_t all = word_at(text.size() - 8);
  for (std::size_t i = 0; i + 8 < text.size(); i += 8) all |= word_at(i);
  return (all & 0x8080808080808080U) == 0;
}

}  // namespace

Interrupt python_interrupt() {
  return [] {
    const GilAcquire gil;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
  };
}

std::function<void(std::uint64_t, std::uint64_t)> python_progress(py::handle progress) {
  if (progress.is_none()) return {};
  return [progress](std::uint64_t done, std::uint64_t total) {
    const GilAcquire gil;
    (void)progress(done, total);
  };
}

void raise_wrong_type(py::handle object, const char* argument, const char* type,
                      const std::string& where) {
  const std::string found = object.is_none() ? "'None'" : "'" + type_name(object) + "' object";
  throw py::type_error(std::string("argument '") + argument + "': " + found +
                       " is not an instance of '" + type + "'" + where);
}

std::string_view text_of(py::handle object, const char* argument) {
  if (!PyUnicode_Check(object.ptr())) raise_wrong_type(object, argument, "str");
  Py_ssize_t size = 0;
  const char* const text = PyUnicode_AsUTF8AndSize(object.ptr(), &size);
  if (text == nullptr) throw py::error_already_set();
  return {text, static_cast<std::size_t>(size)};
}

std::string_view text_of_key(py::handle key, const char* argument) {
  if (PyUnicode_Check(key.ptr())) return text_of(key, argument);
  constexpr Py_ssize_t kMaxShown = 100;
  const auto shown =
      py::reinterpret_steal<py::object>(PyUnicode_Substring(py::repr(key).ptr(), 0, kMaxShown));
  if (!shown) throw py::error_already_set();
  raise_wrong_type(key, argument, "str", ": the key " + py::cast<std::string>(shown));
}

std::string_view text_of_value(py::handle value, std::string_view key, const char* argument) {
  if (PyUnicode_Check(value.ptr())) return text_of(value, argument);
  raise_wrong_type(value, argument, "str", ": the value of the key `" + std::string(key) + "`");
}

py::object to_unicode(std::string_view text) {
  const auto size = static_cast<Py_ssize_t>(text.size());
  // Most names are ASCII. Running the decoder takes as long as creating the object, so skip it.
  const bool plain = text.size() >= 8 && is_ascii(text);
  auto object = py::reinterpret_steal<py::object>(
      plain ? PyUnicode_New(size, 127) : PyUnicode_FromStringAndSize(text.data(), size));
  if (!object) throw py::error_already_set();
  if (plain) std::memcpy(PyUnicode_DATA(object.ptr()), text.data(), text.size());
  return object;
}

std::filesystem::path path_of(py::handle object, const char* argument) {
  const auto name = py::reinterpret_steal<py::object>(PyOS_FSPath(object.ptr()));
  if (!name) {
    if (!PyErr_ExceptionMatches(PyExc_TypeError)) throw py::error_already_set();
    PyErr_Clear();
    throw py::type_error(std::string("argument '") + argument +
                         "': expected str, bytes or os.PathLike object, not " + type_name(object));
  }
#if defined(_WIN32)
  PyObject* decoded = nullptr;
  if (PyUnicode_FSDecoder(name.ptr(), &decoded) == 0) throw py::error_already_set();
  const auto text = py::reinterpret_steal<py::object>(decoded);
  Py_ssize_t size = 0;
  wchar_t* const wide = PyUnicode_AsWideCharString(text.ptr(), &size);
  if (wide == nullptr) throw py::error_already_set();
  const std::wstring native(wide, static_cast<std::size_t>(size));
  PyMem_Free(wide);
#else
  const py::object encoded =
      PyBytes_Check(name.ptr())
          ? name
          : py::reinterpret_steal<py::object>(PyUnicode_EncodeFSDefault(name.ptr()));
  if (!encoded) throw py::error_already_set();
  const std::string native(PyBytes_AS_STRING(encoded.ptr()),
                           static_cast<std::size_t>(PyBytes_GET_SIZE(encoded.ptr())));
#endif
  // The system would silently end the name at the NUL.
  if (native.find(typename decltype(native)::value_type{0}) != std::string::npos) {
    fail(ErrorCode::kIo, "No such file or directory: a NUL in the name", ENOENT);
  }
  return native;
}

std::filesystem::path optional_path_of(py::handle object, const char* argument) {
  return object.is_none() ? std::filesystem::path() : path_of(object, argument);
}

bool is_url(py::handle object) {
  if (!PyUnicode_Check(object.ptr())) return false;
  // Without encoding it, because the name of a file may be no text.
  const Py_ssize_t size = PyUnicode_GET_LENGTH(object.ptr());
  const auto at = [&](Py_ssize_t i) { return PyUnicode_READ_CHAR(object.ptr(), i); };
  const auto is_letter = [](Py_UCS4 c) { return (c | 0x20U) >= 'a' && (c | 0x20U) <= 'z'; };
  if (size < 5 || !is_letter(at(0))) return false;
  for (Py_ssize_t i = 1; i + 2 < size; ++i) {
    const Py_UCS4 c = at(i);
    // Two characters at least: "C://" is a drive.
    if (c == ':' && at(i + 1) == '/' && at(i + 2) == '/') return i > 1;
    const bool is_digit = c >= '0' && c <= '9';
    if (!is_letter(c) && !is_digit && c != '+' && c != '.' && c != '-' && c != ':') return false;
  }
  return false;
}

std::filesystem::path local_path_of(py::handle object, const char* argument, const char* what) {
  if (!is_url(object)) return path_of(object, argument);
  // Only the scheme: the rest may have secrets in it.
  const std::string_view url = text_of(object, argument);
  fail(ErrorCode::kInvalidArgument, std::string(what) + " is not possible: " +
                                        std::string(url.substr(0, url.find("://"))) + "://...");
}

std::string file_name_of(py::handle name) {
  const auto bytes = py::reinterpret_steal<py::bytes>(PyUnicode_EncodeFSDefault(name.ptr()));
  if (!bytes) throw py::error_already_set();
  return std::string(bytes);
}

py::object to_file_name(std::string_view name) {
  auto object = py::reinterpret_steal<py::object>(
      PyUnicode_DecodeFSDefaultAndSize(name.data(), static_cast<Py_ssize_t>(name.size())));
  if (!object) throw py::error_already_set();
  return object;
}

std::vector<std::string> file_names_of(py::handle names) {
  std::vector<std::string> converted;
  for (const py::handle name : names) converted.push_back(file_name_of(name));
  return converted;
}

py::list to_file_names(std::span<const std::string> names) {
  py::list converted(names.size());
  for (std::size_t i = 0; i < names.size(); ++i) converted[i] = to_file_name(names[i]);
  return converted;
}

py::object to_object(const std::filesystem::path& path) {
#if defined(_WIN32)
  const std::wstring& native = path.native();
  auto object = py::reinterpret_steal<py::object>(
      PyUnicode_FromWideChar(native.data(), static_cast<Py_ssize_t>(native.size())));
#else
  const std::string& native = path.native();
  auto object = py::reinterpret_steal<py::object>(
      PyUnicode_DecodeFSDefaultAndSize(native.data(), static_cast<Py_ssize_t>(native.size())));
#endif
  if (!object) throw py::error_already_set();
  return object;
}

std::uint64_t size_of(py::handle object, const char* argument) {
  if (PyIndex_Check(object.ptr()) == 0) {
    throw py::type_error(std::string("argument '") + argument + "': '" + type_name(object) +
                         "' object cannot be interpreted as an integer");
  }
  const auto number = py::reinterpret_steal<py::object>(PyNumber_Index(object.ptr()));
  if (!number) throw py::error_already_set();
  const unsigned long long value = PyLong_AsUnsignedLongLong(number.ptr());
  if (PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    const bool is_negative = number < py::int_(0);
    PyErr_Format(PyExc_OverflowError, "%s: argument '%s'",
                 is_negative ? "can't convert negative int to unsigned" : "int too big to convert",
                 argument);
    throw py::error_already_set();
  }
  return value;
}

std::vector<std::uint64_t> dims_of(py::handle shape) {
  // Most shapes are tuples: for these, this makes no object.
  const auto sizes = py::reinterpret_steal<py::tuple>(PySequence_Tuple(shape.ptr()));
  if (!sizes) throw py::error_already_set();
  std::vector<std::uint64_t> dims;
  dims.reserve(sizes.size());
  for (const py::handle size : sizes) dims.push_back(size_of(size, "shape"));
  return dims;
}

py::str to_str(std::string_view text) {
  auto object = py::reinterpret_steal<py::str>(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "surrogateescape"));
  if (!object) throw py::error_already_set();
  return object;
}

py::list to_list(std::span<const std::uint64_t> values) {
  py::list list(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    PyList_SET_ITEM(list.ptr(), static_cast<Py_ssize_t>(i), to_int(values[i]).release().ptr());
  }
  return list;
}

py::dict copy_of(py::handle dict) {
  auto copy = py::reinterpret_steal<py::dict>(PyDict_Copy(dict.ptr()));
  if (!copy) throw py::error_already_set();
  return copy;
}

std::optional<Metadata> metadata_of(py::handle object) {
  if (object.is_none()) return std::nullopt;
  if (!PyDict_Check(object.ptr())) raise_wrong_type(object, "metadata", "dict");
  Metadata metadata;
  for (const auto& [key, value] : copy_of(object)) {
    const std::string_view name = text_of_key(key, "metadata");
    metadata.emplace(name, text_of_value(value, name, "metadata"));
  }
  return metadata;
}

BufferView::BufferView(py::handle object, const char* argument) {
  if (!PyObject_CheckBuffer(object.ptr())) raise_wrong_type(object, argument, "bytes");
  if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_SIMPLE) != 0) throw py::error_already_set();
}

}  // namespace safetensors::python
