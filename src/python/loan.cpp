#include "loan.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <new>
#include <thread>
#include <utility>

#include "errors.hpp"
#include "gil.hpp"
#include "lazy_value.hpp"

namespace safetensors::python {
namespace {

constexpr auto kMaxWait = std::chrono::seconds(1);
constexpr auto kFirstPause = std::chrono::microseconds(100);
constexpr auto kLongestPause = std::chrono::milliseconds(10);
// Threads that drop their references do so sooner; a collection takes longer than this.
constexpr auto kWaitBeforeCollection = std::chrono::milliseconds(2);

constexpr Py_ssize_t kEnded = -1;

/// The value of a lent object.
struct Lent {
  std::byte* data = nullptr;
  Py_ssize_t nbytes = 0;
  bool is_readonly = true;
  /// How many exports there are; kEnded if the memory may not be exported any more. Atomic for
  /// Pythons without a GIL.
  std::atomic<Py_ssize_t> exports{0};
  Buffer buffer;     ///< the memory, or empty
  py::object owner;  ///< of memory that is not in the buffer
};

struct LentObject {
  PyObject_HEAD Lent value;
};

Lent& lent_of(PyObject* self) noexcept { return reinterpret_cast<LentObject*>(self)->value; }

int export_bytes(PyObject* self, Py_buffer* view, int flags) {
  Lent& lent = lent_of(self);
  Py_ssize_t count = lent.exports;
  do {
    if (count == kEnded) {
      view->obj = nullptr;
      PyErr_SetString(PyExc_BufferError, "the memory was lent for a call that has returned");
      return -1;
    }
  } while (!lent.exports.compare_exchange_weak(count, count + 1));
  const int result =
      PyBuffer_FillInfo(view, self, lent.data, lent.nbytes, lent.is_readonly ? 1 : 0, flags);
  if (result != 0) --lent.exports;
  return result;
}

void release_bytes(PyObject* self, Py_buffer*) { --lent_of(self).exports; }

void destroy_lent(PyObject* self) {
  PyObject_GC_UnTrack(self);
  PyTypeObject* const type = Py_TYPE(self);
  lent_of(self).~Lent();
  type->tp_free(self);
  Py_DECREF(type);
}

int visit_lent(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(lent_of(self).owner.ptr());
  return 0;
}

PyTypeObject* make_lent_type() {
  std::array<PyType_Slot, 5> slots{{{Py_bf_getbuffer, reinterpret_cast<void*>(&export_bytes)},
                                    {Py_bf_releasebuffer, reinterpret_cast<void*>(&release_bytes)},
                                    {Py_tp_dealloc, reinterpret_cast<void*>(&destroy_lent)},
                                    {Py_tp_traverse, reinterpret_cast<void*>(&visit_lent)},
                                    {0, nullptr}}};
  PyType_Spec spec{"safetensors._core._LentMemory", static_cast<int>(sizeof(LentObject)), 0,
                   Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION |
                       Py_TPFLAGS_IMMUTABLETYPE,
                   slots.data()};
  PyObject* const type = PyType_FromSpec(&spec);
  if (type == nullptr) throw py::error_already_set();
  return reinterpret_cast<PyTypeObject*>(type);
}

py::object make_lent() {
  static constinit LazyValue<PyTypeObject*> types;
  PyTypeObject* const type = types.get(&make_lent_type);
  PyObject* const self = type->tp_alloc(type, 0);
  if (self == nullptr) throw py::error_already_set();
  new (&lent_of(self)) Lent();
  return py::reinterpret_steal<py::object>(self);
}

/// Returns an object that keeps the bytes of `owner` where they are, if its kind allows that: a
/// bytearray with an export cannot be resized, and a tensor that shares the storage is not changed
/// by `tensor.data = other`.
py::object pinned(const py::object& owner) noexcept {
  const py::error_scope pending;
  try {
    if (PyObject_CheckBuffer(owner.ptr()) != 0) return py::memoryview(owner);
    if (py::hasattr(owner, "detach")) return owner.attr("detach")();
  } catch (const py::error_already_set&) {  // such as an array of ml_dtypes
  }
  return owner;
}

thread_local const MemoryOwner* innermost_owner = nullptr;

}  // namespace

MemoryOwner::MemoryOwner(py::handle owner, std::span<const std::byte> bytes) noexcept
    : owner_(owner), bytes_(bytes), outer_(innermost_owner) {
  innermost_owner = this;
}

MemoryOwner::~MemoryOwner() { innermost_owner = outer_; }

py::handle MemoryOwner::of(std::span<const std::byte> bytes) noexcept {
  const auto address_of = [](const auto& of) {
    return reinterpret_cast<std::uintptr_t>(of.data());
  };
  for (const MemoryOwner* each = innermost_owner; each != nullptr; each = each->outer_) {
    const std::uintptr_t begin = address_of(each->bytes_);
    const std::uintptr_t at = address_of(bytes);
    const std::size_t size = each->bytes_.size();
    if (at >= begin && at - begin <= size && bytes.size() <= size - (at - begin)) {
      return each->owner_;
    }
  }
  return {};
}

py::handle owner_of_buffer(py::handle object) noexcept {
  const bool is_view = PyMemoryView_Check(object.ptr());
  return is_view && PyMemoryView_GET_BASE(object.ptr()) == nullptr ? py::handle() : object;
}

Loan::Loan(py::handle owner, std::span<const std::byte> bytes)
    : Loan(owner, {const_cast<std::byte*>(bytes.data()), bytes.size()}, true) {}

Loan::Loan(std::span<std::byte> bytes) : Loan({}, bytes, false) {}

Loan::Loan(py::handle owner, std::span<std::byte> bytes, bool is_readonly) : lent_(make_lent()) {
  Lent& lent = lent_of(lent_.ptr());
  lent.data = bytes.data();
  lent.nbytes = static_cast<Py_ssize_t>(bytes.size());
  lent.is_readonly = is_readonly;
  lent.owner = py::reinterpret_borrow<py::object>(owner);
  make_view();
}

Loan::Loan(Buffer buffer, std::size_t nbytes, bool is_readonly) : lent_(make_lent()) {
  Lent& lent = lent_of(lent_.ptr());
  lent.data = buffer.data();
  lent.nbytes = static_cast<Py_ssize_t>(nbytes);
  lent.is_readonly = is_readonly;
  lent.buffer = std::move(buffer);
  make_view();
}

void Loan::revoke() noexcept {
  const py::error_scope pending;
  const auto released =
      py::reinterpret_steal<py::object>(PyObject_CallMethod(view_.ptr(), "release", nullptr));
  if (!released) PyErr_WriteUnraisable(view_.ptr());
}

void Loan::make_view() {
  view_ = py::reinterpret_steal<py::object>(PyMemoryView_FromObject(lent_.ptr()));
  if (!view_) throw py::error_already_set();
}

Loan::~Loan() {
  view_ = {};
  if (is_back()) return;
  Lent& lent = lent_of(lent_.ptr());
  if (lent.owner) lent.owner = pinned(lent.owner);
}

bool Loan::is_back() noexcept {
  Py_ssize_t none = 0;
  return lent_of(lent_.ptr()).exports.compare_exchange_strong(none, kEnded) || none == kEnded;
}

bool Loan::comes_back() {
  using Clock = std::chrono::steady_clock;
  const py::object collect = py::module_::import("gc").attr("collect");
  const Clock::time_point begin = Clock::now();
  bool is_collected = false;
  std::chrono::microseconds pause = kFirstPause;
  while (Clock::now() - begin < kMaxWait) {
    {
      const GilRelease release;
      std::this_thread::sleep_for(pause);
    }
    pause = std::min<std::chrono::microseconds>(2 * pause, kLongestPause);
    if (is_back()) return true;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    if (!is_collected && Clock::now() - begin > kWaitBeforeCollection) {
      (void)collect(0);  // the cycles that the call has made are young
      is_collected = true;
      if (is_back()) return true;
    }
  }
  (void)collect();
  return is_back();
}

Buffer Loan::take_back(std::string_view borrower) {
  view_ = {};
  Lent& lent = lent_of(lent_.ptr());
  if (!is_back() && !comes_back()) {
    raise_safetensor_error(ErrorCode::kInvalidArgument,
                           "Error while serializing: " + std::string(borrower) +
                               " kept a reference to the " + std::to_string(lent.nbytes) +
                               " bytes that it was given; it must copy what it needs later");
  }
  return std::move(lent.buffer);
}

}  // namespace safetensors::python
