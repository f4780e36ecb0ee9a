// Loading many tensors, PrefetchLoader, and the settings of loads.
#include <pybind11/stl.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "digests.hpp"
#include "errors.hpp"
#include "fast_def.hpp"
#include "gil.hpp"
#include "load_tensors.hpp"
#include "not_pickled.hpp"
#include "open_file.hpp"
#include "open_source.hpp"
#include "prefetch.hpp"
#include "register.hpp"
#include "safetensors/detail/cuda_driver.hpp"
#include "safetensors/staged_save.hpp"

namespace safetensors::python {
namespace {

/// Returns the file of a handle. Raises TypeError for another object, and SafetensorError if the
/// handle was closed or is for another framework.
std::shared_ptr<const OpenFile> torch_file_of(py::handle handle) {
  auto file = py::cast<const Handle&>(handle).file();
  if (file->framework() != Framework::kTorch) {
    raise_safetensor_error(ErrorCode::kInvalidArgument,
                           "only files opened with framework=\"pt\" can be loaded this way");
  }
  return file;
}

/// Returns the caller's destination, or nothing for None. Raises SafetensorError if it has another
/// size than the request.
py::object checked_tensor(py::handle tensor, const Request& request) {
  if (tensor.is_none()) return {};
  if (py::cast<std::uint64_t>(tensor.attr("nbytes")) != request.nbytes) {
    raise_safetensor_error(ErrorCode::kInvalidArgument,
                           "tensor `" + std::string(request.info->name) + "` has " +
                               std::to_string(request.nbytes) + " bytes, the destination " +
                               py::cast<std::string>(py::str(tensor.attr("nbytes"))),
                           request.info->name);
  }
  return py::reinterpret_borrow<py::object>(tensor);
}

std::vector<Request> requests_of(const py::list& tuples) {
  std::vector<Request> requests;
  requests.reserve(tuples.size());
  for (const py::handle each : tuples) {
    const auto tuple = py::cast<py::tuple>(each);
    if (tuple.size() != 4 && tuple.size() != 5) {
      throw py::type_error("a request has four or five parts");
    }
    auto file = torch_file_of(tuple[0]);
    const py::object name = tuple[1];
    const py::object index = tuple[2];
    if (tuple.size() == 4) {
      requests.push_back(make_request(std::move(file), text_of(name, "name"), index));
    } else {
      const auto strides = py::cast<std::vector<std::uint64_t>>(tuple[4]);
      requests.push_back(make_request(std::move(file), text_of(name, "name"), index, strides));
    }
    requests.back().tensor = checked_tensor(py::object(tuple[3]), requests.back());
  }
  return requests;
}

/// The requests for one device: a pair of the device and a list of
/// (handle, name, index, destination or None), and the destination's strides in bytes unless it is
/// contiguous.
struct Group {
  LoadTarget target;
  py::list tuples;
  std::vector<Request> requests;

  explicit Group(py::handle asked) {
    const auto pair = py::cast<py::tuple>(asked);
    if (pair.size() != 2) throw py::type_error("a group is a device and its requests");
    target = load_target_of(parse_device(pair[0]));
    tuples = py::list(pair[1]);
    requests = requests_of(tuples);
  }

  [[nodiscard]] bool is_copied_by_torch() const { return target.mode == TransferMode::kTorch; }
  [[nodiscard]] std::uint64_t nbytes() const {
    std::uint64_t sum = 0;
    for (const Request& request : requests) sum += request.nbytes;
    return sum;
  }
  [[nodiscard]] py::list tensors() {
    py::list list(requests.size());
    for (std::size_t i = 0; i < requests.size(); ++i) {
      PyList_SET_ITEM(list.ptr(), static_cast<Py_ssize_t>(i), requests[i].tensor.release().ptr());
    }
    return list;
  }
};

/// Calls the caller's progress function with the sum over several loads that run one after another.
class Report {
 public:
  Report(py::handle function, std::uint64_t total) : function_(function), total_(total) {}

  /// Returns the callback for the next load if the core runs it, without the GIL.
  [[nodiscard]] Load::Progress for_engine() const {
    if (function_.is_none()) return {};
    return [*this](std::uint64_t done, std::uint64_t) {
      const GilAcquire gil;
      tell(done);
    };
  }
  /// Returns the callback for the next load if torch copies.
  [[nodiscard]] py::object for_torch() const {
    if (function_.is_none()) return py::none();
    return py::cpp_function([*this](std::uint64_t done, std::uint64_t) { tell(done); });
  }
  void add(std::uint64_t nbytes) noexcept { before_ += nbytes; }

 private:
  void tell(std::uint64_t done) const {
    (void)py::reinterpret_borrow<py::object>(function_)(before_ + done, total_);
  }

  py::handle function_;  // owned by the caller
  std::uint64_t total_;
  std::uint64_t before_ = 0;
};

/// Loads a group by torch. Errors name all damage, as those of load_requests() do.
py::object copy_by_torch(Group& group, const Report& report) {
  try {
    return torch_hooks().attr("copy_requests")(group.tuples, group.target.to_torch(),
                                               report.for_torch());
  } catch (py::error_already_set& error) {
    const py::object code = py::getattr(error.value(), "code", py::none());
    if (py::str("damaged").equal(code)) {
      const RequestGroup all{group.target, group.requests};
      const GilRelease release;
      fail_with_all_damage({&all, 1});
    }
    throw;
  }
}

py::list load_groups(py::handle asked, py::handle progress) {
  std::vector<Group> groups;
  for (const py::handle each : py::list(py::reinterpret_borrow<py::object>(asked))) {
    groups.emplace_back(each);
  }
  std::uint64_t total = 0;
  for (const Group& group : groups) total += group.nbytes();
  Report report(progress, total);

  // The core loads its groups concurrently. Then torch copies the others, one after another.
  std::vector<RequestGroup> engines;
  std::uint64_t nbytes = 0;
  for (Group& group : groups) {
    if (group.is_copied_by_torch()) continue;
    engines.push_back({group.target, group.requests});
    nbytes += group.nbytes();
  }
  load_requests(engines, report.for_engine());
  report.add(nbytes);
  py::list loaded;
  for (Group& group : groups) {
    if (!group.is_copied_by_torch()) {
      loaded.append(group.tensors());
      continue;
    }
    loaded.append(copy_by_torch(group, report));
    report.add(group.nbytes());
  }
  return loaded;
}

/// Returns a tensor for each request, without loading it.
py::list make_empty(py::handle device, py::handle requests) {
  Group group(py::make_tuple(device, requests));
  make_tensors(group.requests, group.target);
  return group.tensors();
}

/// Opens a file for torch like safe_open, but closes its descriptor after reading the header: a
/// model may have more files than a process may have open. Imports torch only when a tensor is
/// made.
std::unique_ptr<Handle> open_shard(py::handle filename, py::handle backend,
                                   py::handle storage_options, py::handle digests) {
  const OpenOptions options{.backend = backend_of(backend), .keeps_file_open = false};
  SafeOpen file = open_any(filename, options, storage_options, to_digests(digests));
  return std::make_unique<Handle>(
      std::make_shared<const OpenFile>(std::move(file), Framework::kTorch, DeviceSpec{}));
}

py::dict load_settings() {
  const LoadConfig config = load_config();
  py::dict settings;
  settings["threads"] = config.threads;
  settings["chunk_bytes"] = config.chunk_nbytes;
  settings["staging_bytes"] = config.staging_nbytes;
  settings["streams"] = config.streams;
  settings["slots"] = config.slots;
  return settings;
}

/// Returns the argument; `before` if it is None.
template <typename Number>
Number setting(py::handle argument, const char* name, Number before) {
  if (argument.is_none()) return before;
  const std::uint64_t value = size_of(argument, name);
  constexpr Number kMax = std::numeric_limits<Number>::max();  // refused by set_load_config
  return static_cast<Number>(std::min<std::uint64_t>(value, kMax));
}

py::dict io_config(py::handle threads, py::handle chunk_bytes, py::handle staging_bytes,
                   py::handle streams, py::handle slots) {
  LoadConfig config = load_config();
  config.threads = setting(threads, "threads", config.threads);
  config.chunk_nbytes = setting(chunk_bytes, "chunk_bytes", config.chunk_nbytes);
  config.staging_nbytes = setting(staging_bytes, "staging_bytes", config.staging_nbytes);
  config.streams = setting(streams, "streams", config.streams);
  config.slots = setting(slots, "slots", config.slots);
  set_load_config(config);
  return load_settings();
}

/// An iterator of a PrefetchLoader. Several iterators divide its tensors among them.
class PrefetchIterator {
 public:
  explicit PrefetchIterator(py::object loader) : loader_(std::move(loader)) {}
  py::tuple next() {
    if (auto item = py::cast<PrefetchLoader&>(loader_).next()) return *std::move(item);
    throw py::stop_iteration();
  }

 private:
  py::object loader_;
};

}  // namespace

void register_load(py::module_& module) {
  Class<PrefetchLoader>(module, "PrefetchLoader",
                        "Tensors of a file that load in the background, each returned once.\n\n"
                        "    with f.prefetch(device=\"cuda:0\") as loader:\n"
                        "        for name, tensor in loader:\n"
                        "            ...\n\n"
                        "Tensors on a device are allocated by torch and ready on every stream.\n"
                        "May be used by many threads at once.")
      .method("names", &PrefetchLoader::names,
              "names(self, /)\n--\n\n"
              "Returns the names of its tensors, in the order of their bytes in the file.")
      .method(
          "take", &PrefetchLoader::take, py::arg("name"),
          "take(self, /, name)\n--\n\n"
          "Blocks until one tensor is loaded, and returns it. Raises SafetensorError if it was\n"
          "returned before, is not in the plan, or could not be loaded.")
      .method(
          "close", [](PrefetchLoader& loader) { loader.close(); },
          "close(self, /)\n--\n\n"
          "Stops loading, and releases the tensors that were not returned. Closing twice does\n"
          "nothing.")
      .method("__len__", &PrefetchLoader::size, "__len__(self, /)\n--\n\n")
      .method("__repr__",
              [](const PrefetchLoader& loader) {
                return py::str("<PrefetchLoader of {:,} tensor{}{}>")
                    .format(loader.size(), loader.size() == 1 ? "" : "s",
                            loader.is_closed() ? ", closed" : "");
              })
      .method(
          "__bool__", [](const PrefetchLoader&) { return true; }, "__bool__(self, /)\n--\n\n")
      .method(
          "__iter__",
          [](py::object self) {
            if (!py::isinstance<PrefetchLoader>(self)) throw py::type_error("not a loader");
            return PrefetchIterator(std::move(self));
          },
          "__iter__(self, /)\n--\n\n"
          "Yields pairs of name and tensor as they finish loading, without those already taken.")
      .method_of_itself("__enter__", "__enter__(self, /)\n--\n\n")
      .method(
          "__exit__",
          [](PrefetchLoader& loader, py::handle type, py::handle, py::handle) {
            loader.close(!type.is_none() &&
                         PyErr_GivenExceptionMatches(type.ptr(), PyExc_KeyboardInterrupt) != 0);
          },
          py::arg("_exc_type"), py::arg("_exc_value"), py::arg("_traceback"),
          "__exit__(self, /, _exc_type, _exc_value, _traceback)\n--\n\nCloses it.")
      .method("__reduce__", &refuse_pickle<kThreadsLoad>)
      .attr("__module__") = "safetensors";
  Class<PrefetchIterator>(module, "TensorStream",
                          "Pairs of name and tensor of a PrefetchLoader, as they finish loading.")
      .method_of_itself("__iter__", "__iter__(self, /)\n--\n\n")
      .method("__next__", &PrefetchIterator::next, "__next__(self, /)\n--\n\n")
      .method("__reduce__", &refuse_pickle<kThreadsLoad>)
      .attr("__module__") = "safetensors._safetensors_rust";

  define(module, "_load_groups", &load_groups, py::arg("groups"), py::arg("progress") = py::none());
  define(
      module, "_make_empty", &make_empty, py::arg("device"), py::arg("requests"),
      "_make_empty(device, requests)\n--\n\n"
      "Returns a tensor for each request, as _load_groups() makes them, with unspecified values.");
  define(module, "_open_shard", &open_shard, py::arg("filename"), py::arg("backend"),
         py::arg("storage_options") = py::none(), py::arg("digests") = py::none());
  define(
      module, "io_config", &io_config, py::kw_only(), py::arg("threads") = py::none(),
      py::arg("chunk_bytes") = py::none(), py::arg("staging_bytes") = py::none(),
      py::arg("streams") = py::none(), py::arg("slots") = py::none(),
      "io_config(*, threads=None, chunk_bytes=None, staging_bytes=None, streams=None, "
      "slots=None)\n--\n\n"
      "Changes the settings that are given, for loads that begin later. Returns all settings as a\n"
      "dict. They apply to loads to devices and to loads in the background.\n\n"
      "threads: number of readers of a load (0: chosen for the machine).\n"
      "chunk_bytes: size of one read.\n"
      "staging_bytes: how much pinned memory the process keeps.\n"
      "streams: number of CUDA streams of a device.\n"
      "slots: number of copies that one reader has in flight.\n\n"
      "Raises SafetensorError for a value out of range.");
  define(
      module, "release_staging",
      [] {
        const GilRelease release;
        return release_staging() + release_save_memory();
      },
      "release_staging()\n--\n\n"
      "Frees the pinned memory that no load uses, and the memory that no save in the background\n"
      "uses. Returns how many bytes it freed. Memory that the driver fails to unpin stays\n"
      "allocated. May be called while a CUDA graph is being captured.");
  define(
      module, "_use_cuda_driver",
      [](const std::string& path) { safetensors::detail::use_cuda_driver(path.c_str()); },
      py::arg("path"));
  module.add_object("_MAX_THREADS", to_int(LoadConfig::kMaxThreads));
  define(module, "_has_cuda_driver", [] { return safetensors::Device::has_cuda(); });
}

}  // namespace safetensors::python
