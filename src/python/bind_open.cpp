// safe_open, and _safe_open_handle, which takes a Python file object.
#include <pybind11/stl.h>

#include <algorithm>
#include <bit>
#include <climits>
#include <optional>
#include <ranges>
#include <string_view>

#include "bind_slice.hpp"
#include "digests.hpp"
#include "errors.hpp"
#include "fast_def.hpp"
#include "gil.hpp"
#include "handle_gc.hpp"
#include "load_tensors.hpp"
#include "not_pickled.hpp"
#include "open_file.hpp"
#include "open_source.hpp"
#include "prefetch.hpp"
#include "prefetch_plan.hpp"
#include "register.hpp"
#include "slice_handle.hpp"
#include "to_torch.hpp"

namespace safetensors::python {
namespace {

/// A handle that was opened from a Python file object instead of a path.
class FileHandle : public Handle {
  using Handle::Handle;
};

void log_fallback(const SafeOpen& file, Backend wanted) {
  if (wanted == Backend::kAuto || file.backend() == wanted) return;
  if (file.backend() == Backend::kSource) return;
  const char* const text = wanted == Backend::kMmap
                               ? "the system refused to map %s: reading it instead"
                               : "the system refused direct reads of %s: reading it by its cache";
  py::module_::import("logging")
      .attr("getLogger")("safetensors")
      .attr("debug")(text, to_str(file.path().string()));
}

template <typename Open>
std::shared_ptr<const OpenFile> open(py::handle framework, py::handle device, py::handle backend,
                                     const Open& open_with) {
  const Framework framework_wanted = framework_of(framework);
  DeviceSpec device_wanted = parse_device(device);
  OpenOptions options{.backend = backend_of(backend)};
  options.is_for_device =
      framework_wanted == Framework::kTorch && device_wanted.kind == DeviceSpec::Kind::kCuda;
  SafeOpen file = open_with(options);
  if (!options.is_for_device) log_fallback(file, options.backend);
  auto opened =
      std::make_shared<const OpenFile>(std::move(file), framework_wanted, std::move(device_wanted));
  if (framework_wanted == Framework::kTorch) import_torch();  // raises here if it is not installed
  return opened;
}

std::unique_ptr<Handle> open_path(py::handle filename, py::handle framework, py::handle device,
                                  py::handle backend, py::handle storage_options, py::handle verify,
                                  py::handle expected_hashes) {
  return std::make_unique<Handle>(open(framework, device, backend, [&](OpenOptions options) {
    return open_any(filename, options, storage_options,
                    digests_of(verify, expected_hashes, filename));
  }));
}

std::unique_ptr<FileHandle> open_file_object(py::handle file, py::handle framework,
                                             py::handle device, py::handle backend) {
  const py::object fileno = file.attr("fileno");
  const std::filesystem::path path = path_of(file.attr("name"), "f");
  return std::make_unique<FileHandle>(open(framework, device, backend, [&](OpenOptions options) {
    // A closed file object still has its name.
    if (py::cast<bool>(py::getattr(file, "closed", py::bool_(false)))) {
      return SafeOpen(path, options);
    }
    return SafeOpen(py::cast<int>(fileno()), path, options);
  }));
}

template <typename Names>
py::list to_names(const Names& names) {
  py::list list(std::ranges::size(names));
  Py_ssize_t i = 0;
  for (const std::string_view name : names) {
    PyList_SET_ITEM(list.ptr(), i++, to_unicode(name).release().ptr());
  }
  return list;
}

py::list keys(const Handle& handle) {
  const auto open_file = handle.file();
  return to_names(open_file->file().keys());
}

py::list offset_keys(const Handle& handle) {
  const auto open_file = handle.file();
  return to_names(open_file->file().header().tensors() | std::views::transform(&TensorInfo::name));
}

py::object metadata(const Handle& handle) {
  const auto open_file = handle.file();
  const Header& header = open_file->file().header();
  if (!header.has_metadata()) return py::none();
  py::dict dict;
  for (const auto& [key, value] : header.metadata()) dict[to_unicode(key)] = to_unicode(value);
  return dict;
}

py::object load_one(const std::shared_ptr<const OpenFile>& open_file, const TensorInfo& info) {
  const LoadTarget target = load_target_of(open_file->device());
  if (target.mode == TransferMode::kTorch) return open_file->to_framework(info);
  Request request = make_request(open_file, info);
  load_requests({&request, 1}, target);
  return std::move(request.tensor);
}

py::object get_tensor_of(const std::shared_ptr<const OpenFile>& open_file, const TensorInfo& info) {
  if (open_file->device().kind == DeviceSpec::Kind::kCuda) return load_one(open_file, info);
  return open_file->to_framework(info);
}

py::object get_tensor(const Handle& handle, py::handle name) {
  const auto open_file = handle.file();
  return get_tensor_of(open_file, open_file->file().at(text_of(name, "name")));
}

/// `f[name]`. Raises a KeyError for an unknown name, as Python's mappings do.
py::object get_item(const Handle& handle, py::handle name) {
  const auto open_file = handle.file();
  const auto found = [&]() -> const TensorInfo& {
    try {
      return open_file->file().at(text_of(name, "name"));
    } catch (const Error& error) {
      raise_both(PyExc_KeyError, error);
    }
  };
  return get_tensor_of(open_file, found());
}

const Handle& handle_of(py::handle self) {
  if (!py::isinstance<Handle>(self)) raise_wrong_type(self, "self", "safe_open");
  return py::cast<const Handle&>(self);
}

/// Returns Python's `map`, which makes each tensor when the iteration reaches it.
py::object values(py::handle self) {
  const py::list names = keys(handle_of(self));
  return py::handle(reinterpret_cast<PyObject*>(&PyMap_Type))(self.attr("get_tensor"), names);
}

py::object items(py::handle self) {
  const py::list names = keys(handle_of(self));
  return py::handle(reinterpret_cast<PyObject*>(&PyZip_Type))(names, values(self));
}

py::str describe(py::handle self) {
  const auto type = py::cast<std::string>(py::type::handle_of(self).attr("__name__"));
  return to_str("<" + type + " " + handle_of(self).describe() + ">");
}

py::object to_html(py::handle self) {
  (void)handle_of(self);  // raises for other objects
  return py::module_::import("safetensors._outline.views").attr("of_handle")(self);
}

std::uint64_t nbytes_of(const Handle& handle) {
  const auto open_file = handle.file();
  std::uint64_t nbytes = 0;
  for (const TensorInfo& info : open_file->file().header().tensors()) nbytes += info.nbytes();
  return nbytes;
}

void add_to(py::dict& dict, std::string_view name, py::handle tensor) {
  if (PyDict_SetItem(dict.ptr(), to_unicode(name).ptr(), tensor.ptr()) != 0) {
    throw py::error_already_set();
  }
}

/// Loads all tensors to a device that is not the CPU.
py::dict load_all(const Handle& handle, const std::shared_ptr<const OpenFile>& open_file) {
  const std::span<const TensorInfo> infos = open_file->file().header().tensors();
  const LoadTarget target = load_target_of(open_file->device());
  py::dict dict;
  if (target.mode == TransferMode::kTorch) {
    const py::object self = py::cast(&handle, py::return_value_policy::reference);
    py::list asked;
    for (const TensorInfo& info : infos) {
      asked.append(py::make_tuple(self, to_unicode(info.name), py::none(), py::none()));
    }
    const py::list made = torch_hooks().attr("copy_requests")(asked, target.to_torch(), py::none());
    for (std::size_t i = 0; i < infos.size(); ++i) add_to(dict, infos[i].name, made[i]);
    return dict;
  }
  std::vector<Request> requests;
  requests.reserve(infos.size());
  for (const TensorInfo& info : infos) requests.push_back(make_request(open_file, info));
  load_requests(requests, target);
  for (const Request& request : requests) add_to(dict, request.info->name, request.tensor);
  return dict;
}

py::dict get_tensors(const Handle& handle) {
  const auto open_file = handle.file();
  const DeviceSpec::Kind device = open_file->device().kind;
  if (device != DeviceSpec::Kind::kMeta) {
    const GilRelease release;
    open_file->file().warm(python_interrupt());
  }
  if (open_file->framework() == Framework::kTorch && device != DeviceSpec::Kind::kCpu) {
    return load_all(handle, open_file);
  }
  py::dict dict;
  const GcPause pause;
  if (open_file->is_mapped()) {
    for (const TensorInfo& info : open_file->file().header().tensors()) {
      add_to(dict, info.name, open_file->to_framework(info));
    }
  } else {
    for (const TensorView& view : open_file->views()) {
      add_to(dict, view.name, open_file->to_framework(view));
    }
  }
  return dict;
}

/// Raises the reason why the engine cannot be used for the target.
[[noreturn]] void fail_without_engine(const LoadTarget& target) {
  if constexpr (std::endian::native == std::endian::big) {
    raise_safetensor_error(ErrorCode::kDevice, "prefetch needs a little-endian machine");
  }
  if (is_rocm_torch()) {
    raise_safetensor_error(ErrorCode::kDevice,
                           "prefetch needs a CUDA device; it does not support AMD devices");
  }
  if (!safetensors::Device::has_cuda()) {
    (void)engine_device({TransferMode::kCuda, target.device});  // throws, and says why
  }
  raise_safetensor_error(
      ErrorCode::kDevice,
      "prefetch needs the CUDA engine, which SAFETENSORS_CUDA_ENGINE=off disables");
}

std::unique_ptr<PrefetchLoader> prefetch(const Handle& handle, py::handle plan, py::handle device,
                                         py::handle threads, py::handle budget_bytes) {
  const std::uint64_t thread_count = size_of(threads, "threads");
  std::optional<std::uint64_t> budget_nbytes;
  if (!budget_bytes.is_none()) budget_nbytes = size_of(budget_bytes, "budget_bytes");
  const auto open_file = handle.file();
  if (open_file->framework() != Framework::kTorch) {
    raise_safetensor_error(ErrorCode::kInvalidArgument,
                           "prefetch is only compatible with framework=\"pt\"");
  }
  const DeviceSpec wanted = device.is_none() ? open_file->device() : parse_device(device);
  if (wanted.kind == DeviceSpec::Kind::kOther || wanted.kind == DeviceSpec::Kind::kMeta) {
    raise_safetensor_error(ErrorCode::kInvalidArgument, "prefetch loads to cuda devices, not " +
                                                            wanted.name() + " (or to the cpu)");
  }
  std::vector<Request> requests = requests_of_plan(open_file, plan);
  LoadTarget target = load_target_of(wanted);
  if (target.mode == TransferMode::kTorch) fail_without_engine(target);
  return std::make_unique<PrefetchLoader>(
      std::move(requests), std::move(target),
      static_cast<unsigned>(std::min<std::uint64_t>(thread_count, UINT_MAX)), budget_nbytes);
}

py::object get_slice(const Handle& handle, py::handle name) {
  return new_slice(handle.file(), text_of(name, "name"));
}

TensorMeta get_tensor_meta(const Handle& handle, py::handle name) {
  const auto open_file = handle.file();
  return TensorMeta(open_file->file().at(text_of(name, "name")));
}

bool contains(const Handle& handle, py::handle name) {
  const auto open_file = handle.file();
  return PyUnicode_Check(name.ptr()) && open_file->file().find(text_of(name, "name")) != nullptr;
}

void bind_methods(Class<Handle>& cls) {
  cls.method("keys", &keys,
             "keys(self, /)\n--\n\n"
             "Returns the names of all tensors, sorted.")
      .method("offset_keys", &offset_keys,
              "offset_keys(self, /)\n--\n\n"
              "Returns the names of all tensors, in the order of their bytes in the file.")
      .method("metadata", &metadata,
              "metadata(self, /)\n--\n\n"
              "Returns the header's metadata as a new dict of str to str, or None if it has none.")
      .quick_method<&get_tensor>(
          "get_tensor", "name",
          "get_tensor($self, /, name)\n--\n\n"
          "Returns one tensor, on the device that the file was opened for.\n\n"
          "With the mmap backend, a CPU tensor is a view of the file's pages: nothing is read "
          "until\n"
          "it is used, writing to it does not change the file, and it stays valid after the\n"
          "handle is closed. Raises SafetensorError if there is no such tensor.")
      .method("get_tensors", &get_tensors,
              "get_tensors(self, /)\n--\n\n"
              "Returns all tensors as a dict by name, in the order of their bytes in the file.")
      .method("values", &values,
              "values(self, /)\n--\n\n"
              "Returns an iterator of all tensors, in the order of keys(). It makes each tensor on "
              "demand.")
      .method(
          "items", &items,
          "items(self, /)\n--\n\n"
          "Returns an iterator of (name, tensor), in the order of keys(). It makes each tensor on\n"
          "demand.")
      .method(
          "__getitem__", &get_item, py::arg("name"),
          "__getitem__(self, name, /)\n--\n\n"
          "Returns get_tensor(name). Raises an error that is both SafetensorError and KeyError.")
      .method("__repr__", &describe)
      .method("_repr_html_", &to_html, "_repr_html_(self, /)\n--\n\n")
      .method("_ipython_key_completions_", &keys, "_ipython_key_completions_(self, /)\n--\n\n")
      .property(
          "path", [](const Handle& handle) { return to_object(handle.path()); },
          "The path, or the URL without secrets. A closed handle has it, too.")
      .property("nbytes", &nbytes_of, "The bytes of all tensors.")
      .quick_method<&get_slice>(
          "get_slice", "name",
          "get_slice($self, /, name)\n--\n\n"
          "Returns a slice of one tensor, which reads only the parts that it is indexed with:\n\n"
          "    rows = f.get_slice(\"embedding\")[100:200]")
      .method("get_tensor_meta", &get_tensor_meta, py::arg("name"),
              "get_tensor_meta(self, /, name)\n--\n\n"
              "Returns the header's entry for one tensor, a TensorMeta. Reads no data.")
      .method(
          "prefetch", &prefetch, py::arg("plan") = py::none(), py::kw_only(),
          py::arg("device") = py::none(), py::arg("threads") = 8,
          py::arg("budget_bytes") = py::none(),
          "prefetch(self, /, plan=None, *, device=None, threads=8, budget_bytes=None)\n--\n\n"
          "Starts to load tensors in the background. Returns a PrefetchLoader, which returns each\n"
          "tensor once.\n\n"
          "plan: a dict from names to None, for a whole tensor, or to a slice of rows with step "
          "1.\n"
          "Without a plan, all tensors are loaded.\n"
          "device: a CUDA device or the CPU; None is the device of the handle.\n"
          "threads: number of readers of this loader.\n"
          "budget_bytes: limit for the memory of tensors that were made and not yet returned. One\n"
          "tensor may always exist. Without a limit, all tensors are made at once.\n\n"
          "The handle stays usable, and several loaders may run. Raises SafetensorError for an\n"
          "invalid plan, and if there is no such device.")
      .method("close", &Handle::close,
              "close(self, /)\n--\n\n"
              "Releases the file. Tensors and slices taken from it stay valid; the other methods\n"
              "raise SafetensorError from then on. Closing twice does nothing.")
      .method_of_itself("__enter__", "__enter__(self, /)\n--\n\n")
      .method(
          "__exit__", [](Handle& handle, py::handle, py::handle, py::handle) { handle.close(); },
          py::arg("_exc_type"), py::arg("_exc_value"), py::arg("_traceback"),
          "__exit__(self, /, _exc_type, _exc_value, _traceback)\n--\n\n"
          "Closes the handle.")
      .method("__contains__", &contains, py::arg("name"), "__contains__(self, name, /)\n--\n\n")
      .method(
          "__len__", [](const Handle& handle) { return handle.file()->file().header().size(); },
          "__len__(self, /)\n--\n\n")
      .method(
          "__iter__", [](const Handle& handle) { return py::iter(keys(handle)); },
          "__iter__(self, /)\n--\n\n")
      // Otherwise the handle of a file without tensors would be false, because its length is 0.
      .method(
          "__bool__", [](const Handle&) { return true; }, "__bool__(self, /)\n--\n\n")
      .method("__reduce__", &refuse_pickle<kFileIsOpen>);
  cls.attr("__module__") = "safetensors";
}

}  // namespace

void register_open(py::module_& module) {
  Class<Handle> handle(module, "safe_open",
                       "A file opened for reading, which returns its tensors on demand.\n\n"
                       "    with safe_open(\"model.safetensors\", framework=\"pt\") as f:\n"
                       "        for name in f.keys():\n"
                       "            tensor = f.get_tensor(name)\n\n"
                       "May be used by many threads at once.",
                       py::custom_type_setup(&collect_garbage));
  handle.constructor(
      &open_path, py::arg("filename"), py::arg("framework"), py::arg("device") = "cpu",
      py::kw_only(), py::arg("backend") = "mmap", py::arg("storage_options") = py::none(),
      py::arg("verify") = py::none(), py::arg("expected_hashes") = py::none(),
      "__init__(self, filename, framework, device='cpu', *, backend='mmap', "
      "storage_options=None, verify=None, expected_hashes=None)\n--\n\n"
      "filename: str, bytes or os.PathLike; the URL of a file, a str with \"://\"; or a\n"
      "RangeReader.\n"
      "framework: \"pt\" (torch), \"np\" (NumPy), \"tf\", \"flax\", \"mlx\" or \"paddle\".\n"
      "device: where tensors go, for torch and Paddle: a str such as \"cuda:0\", an index, or a\n"
      "torch.device.\n"
      "backend: \"mmap\" returns views of the file's pages. \"pread\" reads into memory of the\n"
      "tensor's own, and \"direct\" does so past the page cache. \"auto\" maps the file, and on\n"
      "network file systems first brings it into the page cache. URLs and RangeReaders are always\n"
      "read.\n"
      "storage_options: settings for a URL, a dict.\n"
      "verify: True compares what is read with the sums beside the file; the names of an "
      "algorithm,\n"
      "a file of sums, or digests by tensor may be given instead. Nothing is mapped then.\n"
      "expected_hashes: the SHA-256 of the whole file by its name or path, a dict. The file is "
      "read\n"
      "to memory at once.\n\n"
      "Raises SafetensorError for a damaged file (IntegrityError if a digest differs), and OSError "
      "if it cannot be read.");
  bind_methods(handle);
  Class<FileHandle, Handle> file_handle(module, "_safe_open_handle",
                                        "Like safe_open, for a Python file object.");
  file_handle.constructor(&open_file_object, py::arg("f"), py::arg("framework"),
                          py::arg("device") = "cpu", py::kw_only(), py::arg("backend") = "mmap",
                          "__init__(self, f, framework, device='cpu', *, backend='mmap')\n--\n\n"
                          "f: an object with fileno() and name. Its position is ignored.");
  file_handle.attr("__module__") = "safetensors";
}

}  // namespace safetensors::python
