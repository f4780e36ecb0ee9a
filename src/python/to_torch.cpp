#include "to_torch.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <new>

#include "dlpack.hpp"
#include "errors.hpp"
#include "gil.hpp"
#include "lazy_value.hpp"

namespace safetensors::python {
namespace {

std::atomic<bool> may_use_exchange{true};

/// Objects of torch that are looked up once.
struct Torch {
  py::module_ module;
  py::object from_dlpack;
  py::object exchange_capsule;  // owns `exchange`
  const dlpack::ExchangeApi* exchange = nullptr;
  py::object tensor_type;
  py::object parameter_type;
  py::object is_neg;
  py::object is_conj;
  std::array<py::object, kDtypeCount> dtypes;  // empty for types that this torch lacks
};

const dlpack::ExchangeApi* exchange_api(const py::object& capsule) {
  if (!capsule || !PyCapsule_CheckExact(capsule.ptr())) return nullptr;
  const void* const pointer = PyCapsule_GetPointer(capsule.ptr(), dlpack::kExchangeApiCapsule);
  if (pointer == nullptr) throw py::error_already_set();
  const auto* api = static_cast<const dlpack::ExchangeApi*>(pointer);
  while (api != nullptr && api->version.major != 1) api = api->previous;
  return api;
}

Torch load_torch() {
  Torch torch;
  torch.module = py::module_::import("torch");
  torch.tensor_type = torch.module.attr("Tensor");
  torch.parameter_type = torch.module.attr("nn").attr("Parameter");
  torch.is_neg = torch.tensor_type.attr("is_neg");
  torch.is_conj = torch.tensor_type.attr("is_conj");
  torch.from_dlpack = py::module_::import("torch.utils.dlpack").attr("from_dlpack");
  torch.exchange_capsule = py::getattr(torch.tensor_type, "__dlpack_c_exchange_api__", py::none());
  torch.exchange = exchange_api(torch.exchange_capsule);
  for (const Dtype dtype : all_dtypes()) {
    const char* const name = names_of(dtype).torch;
    if (name != nullptr && py::hasattr(torch.module, name)) {
      torch.dtypes[static_cast<std::size_t>(dtype)] = torch.module.attr(name);
    }
  }
  return torch;
}

const Torch& torch() {
  static constinit LazyValue<Torch> storage;
  return storage.get(&load_torch);
}

/// A DLPack tensor and what it points to, in one block of memory:
///
///     Managed | owner | shape[0..rank) | strides[0..rank)
///
/// torch calls the deleter when it frees the storage, on any thread. The deleter needs no GIL,
/// because `owner` holds no Python objects.
template <typename Managed>
struct Node {
  Managed managed{};
  std::shared_ptr<const void> owner;
  [[nodiscard]] std::int64_t* dims() noexcept { return reinterpret_cast<std::int64_t*>(this + 1); }

  static Node* make(std::size_t rank) {
    static_assert(alignof(Node) >= alignof(std::int64_t));
    void* const block = ::operator new(sizeof(Node) + 2 * rank * sizeof(std::int64_t));
    Node* const node = new (block) Node();
    node->managed.context = node;
    node->managed.deleter = [](Managed* tensor) {
      auto* const self = static_cast<Node*>(tensor->context);
      self->~Node();
      ::operator delete(self);
    };
    return node;
  }
};

template <typename Managed>
Node<Managed>* make_node(std::span<std::byte> bytes, std::span<const std::int64_t> shape,
                         dlpack::DataType dtype, std::shared_ptr<const void> owner) {
  auto* const node = Node<Managed>::make(shape.size());
  node->owner = std::move(owner);
  std::int64_t* const dims = node->dims();
  std::int64_t stride = 1;
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    dims[axis] = shape[axis];
    dims[shape.size() + axis] = stride;
    stride *= std::max<std::int64_t>(shape[axis], 1);
  }
  node->managed.tensor = {.data = bytes.data(),
                          .device = {dlpack::kCpu, 0},
                          .ndim = static_cast<std::int32_t>(shape.size()),
                          .dtype = dtype,
                          .shape = dims,
                          .strides = dims + shape.size(),
                          .byte_offset = 0};
  return node;
}

py::object import_by_exchange(const dlpack::ExchangeApi& api, std::span<std::byte> bytes,
                              std::span<const std::int64_t> shape, dlpack::DataType dtype,
                              std::shared_ptr<const void> owner) {
  auto* const node =
      make_node<dlpack::ManagedTensorVersioned>(bytes, shape, dtype, std::move(owner));
  node->managed.version = {1, 0};
  void* object = nullptr;
  if (api.to_object(&node->managed, &object) != 0) {
    node->managed.deleter(&node->managed);  // torch takes ownership only on success
    throw py::error_already_set();
  }
  return py::reinterpret_steal<py::object>(static_cast<PyObject*>(object));
}

py::object import_by_capsule(std::span<std::byte> bytes, std::span<const std::int64_t> shape,
                             dlpack::DataType dtype, std::shared_ptr<const void> owner) {
  auto* const node = make_node<dlpack::ManagedTensor>(bytes, shape, dtype, std::move(owner));
  const auto capsule = py::reinterpret_steal<py::object>(
      PyCapsule_New(&node->managed, "dltensor", [](PyObject* unused) {
        if (PyCapsule_IsValid(unused, "dltensor") == 0) return;  // torch owns it, and renamed this
        auto* const managed =
            static_cast<dlpack::ManagedTensor*>(PyCapsule_GetPointer(unused, "dltensor"));
        managed->deleter(managed);
      }));
  if (!capsule) {
    node->managed.deleter(&node->managed);
    throw py::error_already_set();
  }
  return torch().from_dlpack(capsule);
}

/// Lets torch's operators take real tensors in a mode such as FakeTensorMode, while it lives.
class WithoutModes {
 public:
  WithoutModes() : guard_(torch().module.attr("_C").attr("_DisableTorchDispatch")()) {
    guard_.attr("__enter__")();
  }
  WithoutModes(const WithoutModes&) = delete;
  WithoutModes& operator=(const WithoutModes&) = delete;
  ~WithoutModes() {
    try {
      guard_.attr("__exit__")(py::none(), py::none(), py::none());
    } catch (py::error_already_set& error) {
      error.discard_as_unraisable("torch._C._DisableTorchDispatch");
    }
  }

 private:
  py::object guard_;
};

/// Imports bytes and views them as the type, for types that this torch does not take by DLPack.
py::object import_as_bytes(std::span<std::byte> bytes, std::span<const std::int64_t> shape,
                           Dtype dtype, std::shared_ptr<const void> owner) {
  const auto nbytes = static_cast<std::int64_t>(bytes.size());
  py::object tensor =
      import_by_capsule(bytes, {&nbytes, 1}, {dlpack::kUInt, 8, 1}, std::move(owner));
  const WithoutModes without_modes;  // which DLPack's import takes no notice of
  tensor = tensor.attr("view")(find_torch_dtype(dtype));
  py::tuple dims(shape.size());
  for (std::size_t axis = 0; axis < shape.size(); ++axis) dims[axis] = py::int_(shape[axis]);
  return tensor.attr("view")(dims);
}

/// Returns the view in the machine's byte order, in which torch computes: copied on big-endian
/// machines.
TensorView in_native_order(const TensorView& view) {
  if constexpr (std::endian::native == std::endian::little) {
    return view;
  } else {
    const unsigned bits = view.dtype == Dtype::kC64 ? 32 : bit_size(view.dtype);
    const std::size_t width = std::max(1U, bits / 8);
    auto swapped = std::make_shared<const Buffer>(static_cast<std::size_t>(view.nbytes()));
    const std::span<std::byte> to = swapped->bytes();
    std::copy(view.bytes().begin(), view.bytes().end(), to.begin());
    for (std::size_t i = 0; i + width <= to.size(); i += width) {
      std::reverse(to.begin() + static_cast<std::ptrdiff_t>(i),
                   to.begin() + static_cast<std::ptrdiff_t>(i + width));
    }
    return {view.name, view.dtype, view.shape, to, nullptr, std::move(swapped)};
  }
}

bool is_contiguous(const dlpack::Tensor& tensor) noexcept {
  if (tensor.strides == nullptr) return true;
  std::int64_t stride = 1;
  for (std::int32_t axis = tensor.ndim; axis-- > 0;) {
    if (tensor.shape[axis] == 0) return true;
    if (tensor.shape[axis] != 1 && tensor.strides[axis] != stride) return false;
    stride *= tensor.shape[axis];
  }
  return true;
}

bool says_yes(const py::object& method, py::handle tensor) {
  const auto answer =
      py::reinterpret_steal<py::object>(PyObject_CallOneArg(method.ptr(), tensor.ptr()));
  if (!answer) throw py::error_already_set();
  return answer.ptr() == Py_True;
}

/// Returns whether two tensors overlap in memory.
bool any_overlap(std::span<const TensorData> tensors) {
  std::vector<std::span<const std::byte>> blocks;
  blocks.reserve(tensors.size());
  for (const TensorData& tensor : tensors) {
    if (!tensor.bytes.empty()) blocks.push_back(tensor.bytes);
  }
  const auto before = [](const auto& a, const auto& b) { return a.data() < b.data(); };
  std::sort(blocks.begin(), blocks.end(), before);
  return std::adjacent_find(blocks.begin(), blocks.end(), [](const auto& a, const auto& b) {
           return b.data() < a.data() + a.size();
         }) != blocks.end();
}

}  // namespace

void import_torch() { (void)torch(); }

void use_torch_exchange(bool use) { may_use_exchange = use; }

py::object find_torch_dtype(Dtype dtype) { return torch().dtypes[static_cast<std::size_t>(dtype)]; }

py::object torch_dtype(Dtype dtype, const TensorOrigin& origin) {
  py::object object = find_torch_dtype(dtype);
  if (!object) fail_dtype(dtype, "torch has no such type", origin);
  return object;
}

std::vector<std::int64_t> torch_shape(Dtype dtype, std::span<const std::uint64_t> shape,
                                      const TensorOrigin& origin) {
  std::vector<std::int64_t> result(shape.begin(), shape.end());
  if (dtype != Dtype::kF4) return result;
  if (result.empty() || result.back() % 2 != 0) {
    std::string text;
    for (const std::uint64_t dim : shape) text += (text.empty() ? "" : ", ") + std::to_string(dim);
    throw tensor_error(
        ErrorCode::kUnsupportedDtype,
        "f4_x2 dtype requires that the last dim be divisible by 2 in torch: got [" + text + "]",
        origin);
  }
  result.back() /= 2;
  return result;
}

py::object to_torch(Dtype dtype, std::span<const std::int64_t> shape, std::span<std::byte> bytes,
                    std::shared_ptr<const void> owner) {
  const Torch& torch_state = torch();
  const dlpack::DataType type = names_of(dtype).dlpack;
  if (torch_state.exchange != nullptr && may_use_exchange.load(std::memory_order_relaxed)) {
    return import_by_exchange(*torch_state.exchange, bytes, shape, type, std::move(owner));
  }
  if (type.code > dlpack::kBool) return import_as_bytes(bytes, shape, dtype, std::move(owner));
  try {
    return import_by_capsule(bytes, shape, type, owner);
  } catch (py::error_already_set&) {  // older versions of torch lack unsigned types in DLPack
    return import_as_bytes(bytes, shape, dtype, std::move(owner));
  }
}

py::object to_torch(const TensorView& stored, const std::filesystem::path* file) {
  const TensorOrigin origin{stored.name, file};
  (void)torch_dtype(stored.dtype, origin);  // raises if torch has no such type
  const TensorView view = in_native_order(stored);
  return to_torch(view.dtype, torch_shape(view.dtype, view.shape, origin), view.writable_bytes(),
                  view.owner());
}

py::object to_torch_device(const SafeOpen& file, const TensorInfo& info, const DeviceSpec& device) {
  const TensorOrigin origin{info.name, &file.path()};
  const std::vector<std::int64_t> shape = torch_shape(info.dtype, info.shape, origin);
  py::tuple dims(shape.size());
  for (std::size_t axis = 0; axis < shape.size(); ++axis) dims[axis] = py::int_(shape[axis]);
  py::dict options;
  options["dtype"] = torch_dtype(info.dtype, origin);
  options["device"] = device.kind == DeviceSpec::Kind::kMeta ? "meta" : "cpu";
  if (device.kind == DeviceSpec::Kind::kCuda) options["pin_memory"] = true;  // copies at full speed
  const py::object tensor = torch().module.attr("empty")(dims, **options);
  if (device.kind == DeviceSpec::Kind::kMeta) return tensor;
  auto* const data =
      reinterpret_cast<std::byte*>(py::cast<std::uintptr_t>(tensor.attr("data_ptr")()));
  {
    const GilRelease release;
    file.read(info, {data, static_cast<std::size_t>(info.nbytes())}, python_interrupt());
  }
  return move_to_device(tensor, device);
}

py::object move_to_device(py::object tensor, const DeviceSpec& device) {
  if (device.kind == DeviceSpec::Kind::kCpu) return tensor;
  return tensor.attr("to")(device.object);
}

std::optional<TorchBytes> bytes_of_torch(py::handle tensor) {
  const Torch& torch_state = torch();
  if constexpr (std::endian::native == std::endian::big) return std::nullopt;
  if (torch_state.exchange == nullptr || !may_use_exchange) return std::nullopt;
  const PyObject* const type = reinterpret_cast<PyObject*>(Py_TYPE(tensor.ptr()));
  if (type != torch_state.tensor_type.ptr() && type != torch_state.parameter_type.ptr()) {
    return std::nullopt;
  }
  dlpack::Tensor borrowed{};
  if (torch_state.exchange->borrow_from_object(tensor.ptr(), &borrowed) != 0) {
    PyErr_Clear();
    return std::nullopt;
  }
  const std::optional<Dtype> dtype = dtype_of_dlpack(borrowed.dtype);
  if (!dtype || borrowed.device.type != dlpack::kCpu || !is_contiguous(borrowed)) {
    return std::nullopt;
  }
  // torch exports types of fewer bits (uint1, int4) as whole bytes.
  if ((*dtype == Dtype::kU8 || *dtype == Dtype::kI8) &&
      !py::object(tensor.attr("dtype")).is(find_torch_dtype(*dtype))) {
    return std::nullopt;
  }
  if (says_yes(torch_state.is_neg, tensor)) return std::nullopt;
  if (*dtype == Dtype::kC64 && says_yes(torch_state.is_conj, tensor)) return std::nullopt;

  TorchBytes result{
      .shape = {borrowed.shape, borrowed.shape + borrowed.ndim}, .bytes = {}, .dtype = *dtype};
  if (*dtype == Dtype::kF4 && !result.shape.empty()) result.shape.back() *= 2;
  std::uint64_t nbits = bit_size(*dtype);
  for (const std::uint64_t dim : result.shape) nbits *= dim;  // cannot overflow: the memory exists
  if (borrowed.data == nullptr && nbits != 0) return std::nullopt;
  result.bytes = {static_cast<const std::byte*>(borrowed.data) + borrowed.byte_offset,
                  static_cast<std::size_t>(nbits / 8)};
  return result;
}

std::optional<TorchTensors> collect_torch(const py::dict& tensors) {
  TorchTensors result;
  result.tensors = copy_of(tensors);
  result.data.reserve(result.tensors.size());
  result.shapes.reserve(result.tensors.size());
  for (const auto& [key, value] : result.tensors) {
    std::optional<TorchBytes> found = bytes_of_torch(value);
    if (!found) return std::nullopt;
    result.shapes.push_back(std::move(found->shape));
    result.data.push_back({.name = text_of_key(key, "tensor_dict"),
                           .shape = result.shapes.back(),
                           .bytes = found->bytes,
                           .dtype = found->dtype});
  }
  if (any_overlap(result.data)) return std::nullopt;
  return result;
}

}  // namespace safetensors::python
