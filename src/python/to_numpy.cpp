#include "to_numpy.hpp"

#include <pybind11/gil_safe_call_once.h>
#include <pybind11/numpy.h>

#include <array>
#include <atomic>

#include "errors.hpp"

namespace safetensors::python {
namespace {

/// What arrays hold instead of the file: the memory alone.
class Memory {
 public:
  Memory(std::shared_ptr<const void> owner, std::span<std::byte> bytes)
      : owner_(std::move(owner)), bytes_(bytes) {}
  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return bytes_; }

 private:
  std::shared_ptr<const void> owner_;
  std::span<std::byte> bytes_;
};

// As files store them: little-endian on every machine.
constexpr const char* numpy_code(Dtype dtype) noexcept {
  switch (dtype) {
    case Dtype::kU64:
      return "<u8";
    case Dtype::kI64:
      return "<i8";
    case Dtype::kF64:
      return "<f8";
    case Dtype::kC64:
      return "<c8";
    case Dtype::kF32:
      return "<f4";
    case Dtype::kU32:
      return "<u4";
    case Dtype::kI32:
      return "<i4";
    case Dtype::kF16:
      return "<f2";
    case Dtype::kU16:
      return "<u2";
    case Dtype::kI16:
      return "<i2";
    case Dtype::kI8:
      return "|i1";
    case Dtype::kU8:
      return "|u1";
    case Dtype::kBool:
      return "|b1";
    default:
      return nullptr;
  }
}

constexpr const char* ml_dtypes_name(Dtype dtype) noexcept {
  switch (dtype) {
    case Dtype::kBF16:
      return "bfloat16";
    case Dtype::kF8E5M2FNUZ:
      return "float8_e5m2fnuz";
    case Dtype::kF8E4M3FNUZ:
      return "float8_e4m3fnuz";
    case Dtype::kF8E8M0:
      return "float8_e8m0fnu";
    case Dtype::kF8E4M3:
      return "float8_e4m3fn";
    case Dtype::kF8E5M2:
      return "float8_e5m2";
    case Dtype::kF4:
      return "float4_e2m1fn";
    default:
      return nullptr;
  }
}

/// The unsigned integer of the same size for a type that is ml_dtypes' own; else the type itself.
constexpr Dtype bits_of(Dtype dtype) noexcept {
  if (ml_dtypes_name(dtype) == nullptr) return dtype;
  return dtype == Dtype::kBF16 ? Dtype::kU16 : Dtype::kU8;
}

/// NumPy's type objects. Those of ml_dtypes are made when first needed: until then it is not
/// imported. Safe from many threads.
class DtypeTable {
 public:
  DtypeTable() {
    for (const Dtype dtype : all_dtypes()) {
      if (numpy_code(dtype) != nullptr) by_object_[get(dtype)] = static_cast<int>(dtype);
    }
  }

  /// Borrowed: the table lives as long as the interpreter.
  py::handle get(Dtype dtype) {
    std::atomic<PyObject*>& slot = slots_[static_cast<std::size_t>(dtype)];
    if (PyObject* const made = slot.load(std::memory_order_acquire)) return made;
    py::object made = make(dtype);
    PyObject* before = nullptr;
    if (slot.compare_exchange_strong(before, made.ptr())) return made.release();
    return before;  // another thread was quicker
  }

  /// From NumPy's type objects to ours, for the types that are stored as files store them.
  std::optional<Dtype> find(py::handle numpy_dtype) {
    PyObject* const found = PyDict_GetItemWithError(by_object_.ptr(), numpy_dtype.ptr());
    if (found != nullptr) return static_cast<Dtype>(PyLong_AsLong(found));
    if (PyErr_Occurred() != nullptr) throw py::error_already_set();
    return find_ml_dtype(numpy_dtype);
  }

 private:
  static py::object make(Dtype dtype) {
    if (const char* const code = numpy_code(dtype)) return py::dtype(std::string(code));
    const char* const name_there = ml_dtypes_name(dtype);
    if (name_there == nullptr) {
      raise_safetensor_error("Dtype not understood: " + std::string(name(dtype)) +
                             ": NumPy has no such type");
    }
    try {
      return py::dtype::from_args(py::module_::import("ml_dtypes").attr(name_there));
    } catch (py::error_already_set& error) {
      if (!error.matches(PyExc_ImportError) && !error.matches(PyExc_AttributeError)) throw;
      raise_safetensor_error("Dtype not understood: " + std::string(name(dtype)) +
                             ": NumPy has no such type of its own: install a recent ml_dtypes (pip "
                             "install ml_dtypes)");
    }
  }

  /// An array of such a type says that ml_dtypes is imported, so nothing is imported for it.
  std::optional<Dtype> find_ml_dtype(py::handle numpy_dtype) {
    const std::string name_there = py::cast<std::string>(numpy_dtype.attr("name"));
    for (const Dtype dtype : all_dtypes()) {
      // F4 takes a byte an element in NumPy: not as files store it.
      if (dtype == Dtype::kF4 || ml_dtypes_name(dtype) == nullptr) continue;
      if (name_there != ml_dtypes_name(dtype)) continue;
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
  PYBIND11_CONSTINIT static py::gil_safe_call_once_and_store<DtypeTable> storage;
  return storage.call_once_and_store_result([] { return DtypeTable(); }).get_stored();
}

/// Two elements a byte, the first in the low half, to one a byte.
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
  need_memory();
  return py::cast(std::make_unique<Memory>(std::move(owner), bytes));
}

bool has_array_type(Dtype dtype, Exotic exotic) noexcept {
  if (dtype == Dtype::kF4 && exotic == Exotic::kBits) return false;
  return numpy_code(dtype) != nullptr || ml_dtypes_name(dtype) != nullptr;
}

py::object to_numpy(const TensorView& view, py::object memory, Exotic exotic) {
  const auto dtype = py::reinterpret_borrow<py::dtype>(
      dtypes().get(exotic == Exotic::kBits ? bits_of(view.dtype) : view.dtype));
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
  py::class_<Memory>(module, "_Memory", py::buffer_protocol(), py::module_local(),
                     "Memory behind arrays: the pages of a file, or a block that was read.")
      .def_buffer([](Memory& memory) {
        return py::buffer_info(memory.bytes().data(), 1, "B", 1,
                               {static_cast<py::ssize_t>(memory.bytes().size())}, {1});
      });
}

}  // namespace safetensors::python
