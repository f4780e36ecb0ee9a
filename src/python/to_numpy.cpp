#include "to_numpy.hpp"

#include <pybind11/numpy.h>

#include <array>
#include <atomic>

#include "errors.hpp"
#include "fast_def.hpp"
#include "lazy_value.hpp"
#include "register.hpp"

namespace safetensors::python {
namespace {

/// Owns the memory behind arrays, and nothing else of the file.
class Memory {
 public:
  Memory(std::shared_ptr<const void> owner, std::span<std::byte> bytes)
      : owner_(std::move(owner)), bytes_(bytes) {}
  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return bytes_; }

 private:
  std::shared_ptr<const void> owner_;
  std::span<std::byte> bytes_;
};

/// Returns the unsigned integer of the same size for a type that NumPy lacks; else the type itself.
Dtype bits_of(Dtype dtype) noexcept {
  if (names_of(dtype).numpy != nullptr) return dtype;
  return bit_size(dtype) == 16 ? Dtype::kU16 : Dtype::kU8;
}

/// NumPy's type objects. Those of ml_dtypes are made on first use, because that imports it.
/// Thread safety: may be used by many threads at once.
class DtypeTable {
 public:
  DtypeTable() {
    for (const Dtype dtype : all_dtypes()) {
      if (names_of(dtype).numpy != nullptr) by_object_[get(dtype)] = static_cast<int>(dtype);
    }
  }

  /// Returns a borrowed reference, which stays valid: the table is never destroyed.
  /// Raises SafetensorError, which names the tensor, if there is no such type.
  py::handle get(Dtype dtype, const TensorOrigin& origin = {}) {
    std::atomic<PyObject*>& slot = slots_[static_cast<std::size_t>(dtype)];
    if (PyObject* const made = slot.load(std::memory_order_acquire)) return made;
    py::object made = make(dtype, origin);
    PyObject* before = nullptr;
    if (slot.compare_exchange_strong(before, made.ptr())) return made.release();
    return before;  // another thread stored its own first
  }

  /// Returns the type of a NumPy type object; nothing if files store such elements differently.
  std::optional<Dtype> find(py::handle numpy_dtype) {
    PyObject* const found = PyDict_GetItemWithError(by_object_.ptr(), numpy_dtype.ptr());
    if (found != nullptr) return static_cast<Dtype>(PyLong_AsLong(found));
    if (PyErr_Occurred() != nullptr) throw py::error_already_set();
    return find_ml_dtype(numpy_dtype);
  }

 private:
  static py::object make(Dtype dtype, const TensorOrigin& origin) {
    if (const char* const code = names_of(dtype).numpy) return py::dtype(std::string(code));
    const char* const name_there = names_of(dtype).ml_dtypes;
    if (name_there == nullptr) fail_dtype(dtype, "NumPy has no such type", origin);
    try {
      return py::dtype::from_args(py::module_::import("ml_dtypes").attr(name_there));
    } catch (py::error_already_set& error) {
      if (!error.matches(PyExc_ImportError) && !error.matches(PyExc_AttributeError)) throw;
      fail_dtype(dtype,
                 "NumPy has no such type of its own: install a recent ml_dtypes (pip install "
                 "ml_dtypes)",
                 origin);
    }
  }

  /// An array of such a type can only exist after ml_dtypes was imported, so get() imports nothing
  /// new.
  std::optional<Dtype> find_ml_dtype(py::handle numpy_dtype) {
    const std::string name_there = py::cast<std::string>(numpy_dtype.attr("name"));
    for (const Dtype dtype : all_dtypes()) {
      // ml_dtypes stores one F4 element in a byte, files store two.
      if (dtype == Dtype::kF4 || names_of(dtype).ml_dtypes == nullptr) continue;
      if (name_there != names_of(dtype).ml_dtypes) continue;
      if (!get(dtype).equal(numpy_dtype)) return std::nullopt;  // byte-swapped
      by_object_[numpy_dtype] = static_cast<int>(dtype);
      return dtype;
    }
    return std::nullopt;
  }

  std::array<std::atomic<PyObject*>, kDtypeCount> slots_{};
  py::dict by_object_;
};

DtypeTable& dtypes() {
  static constinit LazyValue<DtypeTable> table;
  return table.get([] { return DtypeTable(); });
}

/// Copies packed elements, two to a byte with the first in the low half, to one element a byte.
py::object unpack_f4(const TensorView& view, const std::vector<py::ssize_t>& shape) {
  py::array array(py::reinterpret_borrow<py::dtype>(dtypes().get(Dtype::kF4)), shape);
  auto* to = static_cast<std::uint8_t*>(array.mutable_data());
  for (const std::byte pair : view.bytes()) {
    *to++ = std::to_integer<std::uint8_t>(pair) & 0x0F;
    *to++ = std::to_integer<std::uint8_t>(pair) >> 4;
  }
  return array;
}

}  // namespace

py::object make_memory(std::shared_ptr<const void> owner, std::span<std::byte> bytes) {
  return py::cast(std::make_unique<Memory>(std::move(owner), bytes));
}

bool has_array_type(Dtype dtype, MlDtypesMode mode) noexcept {
  if (dtype == Dtype::kF4 && mode == MlDtypesMode::kBits) return false;
  return names_of(dtype).numpy != nullptr || names_of(dtype).ml_dtypes != nullptr;
}

py::object to_numpy(const TensorView& view, const std::filesystem::path* file, py::object memory,
                    MlDtypesMode mode) {
  const auto dtype = py::reinterpret_borrow<py::dtype>(dtypes().get(
      mode == MlDtypesMode::kBits ? bits_of(view.dtype) : view.dtype, {view.name, file}));
  std::vector<py::ssize_t> shape(view.shape.begin(), view.shape.end());
  if (view.dtype == Dtype::kF4) return unpack_f4(view, shape);
  if (!memory) memory = make_memory(view.owner(), view.writable_bytes());
  std::vector<py::ssize_t> strides(shape.size());
  auto stride = static_cast<py::ssize_t>(bit_size(view.dtype) / 8);
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    strides[axis] = stride;
    stride *= shape[axis] == 0 ? 1 : shape[axis];
  }
  return py::array(dtype, std::move(shape), std::move(strides), view.writable_bytes().data(),
                   memory);
}

std::optional<Dtype> dtype_of_array(py::handle array) {
  return dtypes().find(py::reinterpret_borrow<py::array>(array).dtype());
}

void register_memory(py::module_& module) {
  Class<Memory>(module, "_Memory", py::buffer_protocol(),
                "The memory behind arrays: the pages of a file, or a buffer.")
      .def_buffer([](Memory& memory) {
        return py::buffer_info(memory.bytes().data(), 1, "B", 1,
                               {static_cast<py::ssize_t>(memory.bytes().size())}, {1});
      });
}

}  // namespace safetensors::python
