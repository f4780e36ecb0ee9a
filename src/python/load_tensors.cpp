#include "load_tensors.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <map>
#include <set>

#include "errors.hpp"
#include "gil.hpp"
#include "lazy_value.hpp"
#include "python_index.hpp"
#include "python_source.hpp"
#include "safetensors/detail/cuda_driver.hpp"
#include "to_torch.hpp"

namespace safetensors::python {
namespace {

// torch's CUDA allocator rounds sizes up to kBlock. It cuts tensors of more than kLargeTensor from
// large segments, which can be reserved in advance.
constexpr std::uint64_t kBlock = 512;
constexpr std::uint64_t kLargeTensor = std::uint64_t{1} << 20;
// Fewer tensors gain nothing from a segment that is reserved in advance.
constexpr std::size_t kMinTensorsToWarm = 8;

/// Names of methods and keywords.
struct Names {
  py::str data_ptr{"data_ptr"};
  py::tuple options = py::make_tuple("dtype", "device");
};

const Names& names() {
  static constinit LazyValue<Names> storage;
  return storage.get([] { return Names(); });
}

/// Returns whether torch also copies to CUDA devices. Reads the environment once.
bool is_engine_off() {
  static constinit LazyValue<bool> is_off;
  return is_off.get([] { return !safetensors::detail::is_cuda_engine_wanted(); });
}

/// Returns whether the engine copies tensors to CUDA devices.
bool has_cuda_engine() {
  return std::endian::native == std::endian::little && !is_engine_off() && !is_rocm_torch() &&
         safetensors::Device::has_cuda();
}

/// Returns the address of the tensor's memory.
std::uint64_t address_of(py::handle tensor) {
  const auto address = py::reinterpret_steal<py::object>(
      PyObject_CallMethodNoArgs(tensor.ptr(), names().data_ptr.ptr()));
  if (!address) throw py::error_already_set();
  const std::uint64_t value = PyLong_AsUnsignedLongLong(address.ptr());
  if (value == static_cast<std::uint64_t>(-1) && PyErr_Occurred() != nullptr) {
    throw py::error_already_set();
  }
  return value;
}

void make_host_tensor(Request& request) {
  auto memory = std::make_shared<const Buffer>(static_cast<std::size_t>(request.nbytes));
  const std::span<std::byte> bytes = memory->bytes();
  request.address = reinterpret_cast<std::uintptr_t>(bytes.data());
  request.tensor = to_torch(request.info->dtype, request.shape, bytes, std::move(memory));
}

py::object make_tensor(const py::object& empty, const Request& request, const LoadTarget& target) {
  const py::tuple dims(request.shape.size());
  for (std::size_t axis = 0; axis < request.shape.size(); ++axis) {
    PyObject* const dim = PyLong_FromLongLong(request.shape[axis]);
    if (dim == nullptr) throw py::error_already_set();
    PyTuple_SET_ITEM(dims.ptr(), static_cast<Py_ssize_t>(axis), dim);
  }
  const py::object dtype = find_torch_dtype(request.info->dtype);
  const std::array<PyObject*, 3> arguments = {dims.ptr(), dtype.ptr(), target.device.object.ptr()};
  auto tensor = py::reinterpret_steal<py::object>(
      PyObject_Vectorcall(empty.ptr(), arguments.data(), 1, names().options.ptr()));
  if (!tensor) throw py::error_already_set();
  return tensor;
}

void warm(std::span<const Request> requests, const LoadTarget& target, const py::module_& hooks) {
  std::uint64_t nbytes = 0;
  std::size_t count = 0;
  for (const Request& request : requests) {
    if (request.tensor) continue;
    ++count;
    if (request.nbytes > kLargeTensor) nbytes += (request.nbytes + kBlock - 1) / kBlock * kBlock;
  }
  if (count >= kMinTensorsToWarm) hooks.attr("warm")(nbytes, target.index());
}

/// Returns what a part selects that make_request() accepts.
Region region_of(const SafeOpen& file, const TensorInfo& info, const py::object& index) {
  if (!index.is_none() && has_lists(index)) return select_region(file, info, index).region;
  const Selection selection = index.is_none()
                                  ? resolve(std::span<const Index>{}, info.shape)
                                  : select_part(file, info, index, false).value().part.selection;
  Region region{.axes = {}, .shape = selection.shape};
  for (const Selection::Axis& axis : selection.axes) region.axes.push_back({axis});
  return region;
}

/// The arguments of a core Load that need the GIL to be collected. The sources are not among them:
/// they are opened without the GIL. Refers to the requests and the target, which must outlive it.
struct PreparedLoad {
  PreparedLoad(std::span<const Request> requests, const LoadTarget& device);

  const LoadTarget* target;
  void* stream;
  std::vector<const SafeOpen*> files;  // owned by the requests
  std::vector<LoadTensor> tensors;
};

PreparedLoad::PreparedLoad(std::span<const Request> requests, const LoadTarget& device)
    : target(&device), stream(current_stream(device)) {
  std::map<const OpenFile*, std::uint32_t> numbers;
  tensors.reserve(requests.size());
  const OpenFile* last = nullptr;
  std::uint32_t number = 0;
  for (const Request& request : requests) {
    const OpenFile* const file = request.file.get();
    if (file != last) {
      const auto [place, is_new] =
          numbers.try_emplace(file, static_cast<std::uint32_t>(files.size()));
      if (is_new) files.push_back(&file->file());
      number = place->second;
      last = file;
    }
    tensors.push_back(load_tensor_of(request, number));
  }
}

}  // namespace

Request make_request(std::shared_ptr<const OpenFile> file, const TensorInfo& info) {
  Request request;
  request.info = &info;
  const TensorOrigin origin = file->origin_of(info);
  (void)torch_dtype(info.dtype, origin);  // raises if torch has no such type
  request.shape = torch_shape(info.dtype, info.shape, origin);
  request.nbytes = info.nbytes();
  request.file = std::move(file);
  return request;
}

Request make_request(std::shared_ptr<const OpenFile> file, const TensorInfo& info,
                     std::vector<ByteRuns> runs, std::span<const std::uint64_t> shape) {
  Request request = make_request(std::move(file), info);
  request.shape = torch_shape(info.dtype, shape, request.file->origin_of(info));
  request.nbytes = nbytes_of(runs);
  request.runs = std::move(runs);
  return request;
}

Request make_request(std::shared_ptr<const OpenFile> file, std::string_view name,
                     py::handle given) {
  const TensorInfo& info = file->file().at(name);
  if (given.is_none()) return make_request(std::move(file), info);
  auto [runs, shape] = select_load_part(file->file(), info, given);
  if (runs.empty()) return make_request(std::move(file), info);
  return make_request(std::move(file), info, std::move(runs), shape);
}

Request make_request(std::shared_ptr<const OpenFile> file, std::string_view name, py::handle given,
                     std::span<const std::uint64_t> to_strides) {
  const TensorInfo& info = file->file().at(name);
  const py::object index = resolve_part(given, info.shape);
  Request request = make_request(std::move(file), name, index);
  const Region region = region_of(request.file->file(), info, index);
  request.runs = byte_runs(region, info.shape, info.dtype, to_strides);
  return request;
}

py::module_ torch_hooks() {
  static constinit LazyValue<py::module_> hooks;
  return hooks.get([] { return py::module_::import("safetensors._torch.transfer"); });
}

int LoadTarget::index() const noexcept {
  return static_cast<int>(std::min<std::uint64_t>(device.index, std::numeric_limits<int>::max()));
}

py::object LoadTarget::to_torch() const {
  return torch_hooks().attr("Device")(device.type, device.index);
}

LoadTarget load_target_of(const DeviceSpec& spec) {
  DeviceSpec device = resolve_index(spec);
  TransferMode mode = TransferMode::kTorch;
  if (device.kind == DeviceSpec::Kind::kMeta) {
    mode = TransferMode::kMeta;
  } else if (device.kind == DeviceSpec::Kind::kCpu) {
    // torch's copies convert to the byte order of the machine.
    if (std::endian::native == std::endian::little) mode = TransferMode::kHost;
  } else if (device.kind == DeviceSpec::Kind::kCuda && has_cuda_engine()) {
    mode = TransferMode::kCuda;
  }
  return {mode, std::move(device)};
}

bool is_rocm_torch() {
  return !py::object(py::module_::import("torch").attr("version").attr("hip")).is_none();
}

safetensors::Device engine_device(const LoadTarget& target) {
  if (target.mode != TransferMode::kCuda) return {};
  return safetensors::Device::cuda(target.index());
}

void make_tensors(std::span<Request> requests, const LoadTarget& target) {
  if (target.mode == TransferMode::kHost) {  // needs none of torch's functions
    const GcPause pause;
    for (Request& request : requests) {
      if (!request.tensor && request.address == 0) make_host_tensor(request);
    }
    return;
  }
  const py::module_ hooks = torch_hooks();
  if (target.mode == TransferMode::kCuda) {
    if (py::cast<bool>(hooks.attr("is_capturing")())) {
      raise_safetensor_error(ErrorCode::kDevice,
                             "nothing can be loaded while a CUDA graph is being captured");
    }
    warm(requests, target, hooks);
  }
  const py::object empty = hooks.attr("empty");
  const GcPause pause;
  for (Request& request : requests) {
    if (!request.tensor) request.tensor = make_tensor(empty, request, target);
  }
}

void* current_stream(const LoadTarget& target) {
  if (target.mode != TransferMode::kCuda) return nullptr;
  const py::object stream = torch_hooks().attr("raw_stream")(target.index());
  return reinterpret_cast<void*>(py::cast<std::uintptr_t>(stream));
}

LoadTensor load_tensor_of(const Request& request, std::uint32_t source) {
  std::uint64_t to = 0;
  if (request.nbytes != 0) {
    to = request.address != 0 ? request.address : address_of(request.tensor);
  }
  return {.name = request.info->name,
          .source = source,
          .offset = request.file->file().position(*request.info),
          .nbytes = request.nbytes,
          .to = to,
          .runs = request.runs};
}

void fail_with_all_damage(std::span<const RequestGroup> groups) {
  std::set<std::pair<const OpenFile*, std::uint64_t>> seen;
  std::vector<Damage> all;
  for (const RequestGroup& group : groups) {
    for (const Request& request : group.requests) {
      const SafeOpen& file = request.file->file();
      const std::uint64_t begin = file.position(*request.info);
      if (!seen.emplace(request.file.get(), begin).second || request.nbytes == 0) continue;
      std::ranges::move(find_damage(*file.source(), begin, begin + request.info->nbytes()),
                        std::back_inserter(all));
    }
  }
  if (!all.empty()) fail_damaged(std::move(all));
}

void load_requests(std::span<const RequestGroup> groups, const Load::Progress& progress) {
  for (const RequestGroup& group : groups) make_tensors(group.requests, group.target);
  std::vector<PreparedLoad> prepared;
  for (const auto& [target, requests] : groups) {
    if (target.mode == TransferMode::kMeta || requests.empty()) continue;
    prepared.emplace_back(requests, target);
  }
  std::vector<std::shared_ptr<const ByteSource>> remote;
  const GilRelease release;
  std::vector<std::unique_ptr<Load>> loads;
  std::vector<Load*> pointers;
  for (const PreparedLoad& load : prepared) {
    std::vector<std::shared_ptr<const ByteSource>> sources;
    for (const SafeOpen* const file : load.files) {
      sources.push_back(file->source());
      if (file->backend() == Backend::kSource) remote.push_back(unchecked(sources.back()));
    }
    loads.push_back(std::make_unique<Load>(engine_device(*load.target), std::move(sources)));
    pointers.push_back(loads.back().get());
    pointers.back()->add(load.tensors, load.stream);
    pointers.back()->finish();
  }
  try {
    wait_all(pointers, interrupt_of(std::move(remote)), progress);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kDamaged) fail_with_all_damage(groups);
    throw;
  }
}

}  // namespace safetensors::python
