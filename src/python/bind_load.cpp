// Loads of many tensors, prefetching, and the settings of both.
#include <pybind11/stl.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "errors.hpp"
#include "fast_def.hpp"
#include "gil.hpp"
#include "load_tensors.hpp"
#include "open_file.hpp"
#include "prefetch.hpp"
#include "register.hpp"
#include "safetensors/detail/cuda_driver.hpp"

namespace safetensors::python {
namespace {

/// Raises TypeError unless it is an open handle; SafetensorError when it was closed, or is of
/// another framework.
std::shared_ptr<const OpenFile> torch_file_of(py::handle handle) {
  auto file = py::cast<const Handle&>(handle).file();
  if (file->framework() != Framework::kTorch) {
    raise_safetensor_error("only files opened with framework=\"pt\" can be loaded so");
  }
  return file;
}

/// A tensor that the caller brought, of the size that will be written to it.
py::object checked_tensor(py::handle tensor, const Request& request) {
  if (tensor.is_none()) return {};
  if (py::cast<std::uint64_t>(tensor.attr("nbytes")) != request.nbytes) {
    raise_safetensor_error("tensor `" + std::string(request.info->name) + "` has " +
                           std::to_string(request.nbytes) + " bytes, the destination " +
                           py::cast<std::string>(py::str(tensor.attr("nbytes"))));
  }
  return py::reinterpret_borrow<py::object>(tensor);
}

std::vector<Request> requests_of(const py::list& tuples) {
  std::vector<Request> requests;
  requests.reserve(tuples.size());
  for (const py::handle each : tuples) {
    const auto tuple = py::cast<py::tuple>(each);
    if (tuple.size() != 4) throw py::type_error("a request has four parts");
    const py::object name = tuple[1];
    requests.push_back(
        make_request(torch_file_of(tuple[0]), text_of(name, "name"), py::object(tuple[2])));
    requests.back().tensor = checked_tensor(py::object(tuple[3]), requests.back());
  }
  return requests;
}

/// What goes to one device.
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

  [[nodiscard]] bool is_torchs() const { return target.mode == TransferMode::kTorch; }
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

/// Tells Python's function how far several loads after one another are.
class Report {
 public:
  Report(py::handle function, std::uint64_t total) : function_(function), total_(total) {}

  /// What the next of them is to call with its own bytes: one of the engine's, which has no GIL.
  [[nodiscard]] Load::Progress for_engine() const {
    if (function_.is_none()) return {};
    return [*this](std::uint64_t done, std::uint64_t) {
      const GilAcquire gil;
      tell(done);
    };
  }
  [[nodiscard]] py::object for_torch() const {
    if (function_.is_none()) return py::none();
    return py::cpp_function([*this](std::uint64_t done, std::uint64_t) { tell(done); });
  }
  void add(std::uint64_t nbytes) noexcept { before_ += nbytes; }

 private:
  void tell(std::uint64_t done) const {
    (void)py::reinterpret_borrow<py::object>(function_)(before_ + done, total_);
  }

  py::handle function_;  // the caller keeps it
  std::uint64_t total_;
  std::uint64_t before_ = 0;
};

py::list load_groups(py::handle asked, py::handle progress) {
  std::vector<Group> groups;
  for (const py::handle each : py::list(py::reinterpret_borrow<py::object>(asked))) {
    groups.emplace_back(each);
  }
  std::uint64_t total = 0;
  for (const Group& group : groups) total += group.nbytes();
  Report report(progress, total);

  std::vector<RequestGroup> engines;  // all at once; then torch's, one after the other
  std::uint64_t nbytes = 0;
  for (Group& group : groups) {
    if (group.is_torchs()) continue;
    engines.push_back({group.target, group.requests});
    nbytes += group.nbytes();
  }
  load_requests(engines, report.for_engine());
  report.add(nbytes);
  py::list loaded;
  for (Group& group : groups) {
    if (!group.is_torchs()) {
      loaded.append(group.tensors());
      continue;
    }
    loaded.append(torch_hooks().attr("copy_requests")(group.tuples, group.target.to_torch(),
                                                      report.for_torch()));
    report.add(group.nbytes());
  }
  return loaded;
}

void read_request(py::handle handle, py::handle name, py::handle index, std::uintptr_t address,
                  std::uint64_t nbytes) {
  const Request request = make_request(torch_file_of(handle), text_of(name, "name"), index);
  if (request.nbytes != nbytes) {
    raise_safetensor_error("the request has " + std::to_string(request.nbytes) + " bytes, not " +
                           std::to_string(nbytes));
  }
  const std::span<std::byte> to(reinterpret_cast<std::byte*>(address),
                                static_cast<std::size_t>(nbytes));
  const SafeOpen& file = request.file->file();
  const GilRelease release;
  if (request.runs) {
    file.read(*request.info, *request.runs, to, python_interrupt());
  } else {
    file.read(*request.info, to, python_interrupt());
  }
}

/// As safe_open for torch, but no file is kept open: models have more files than a process may.
std::unique_ptr<Handle> open_shard(py::handle filename, py::handle backend) {
  const std::filesystem::path path = path_of(filename, "filename");
  const OpenOptions options{.backend = backend_of(backend), .keeps_file_open = false};
  SafeOpen file = [&] {
    const GilRelease release;
    return SafeOpen(path, options);
  }();
  return std::make_unique<Handle>(
      std::make_shared<const OpenFile>(std::move(file), Framework::kTorch, DeviceSpec{}));
}

/// The tensors' names by the path of their file, and the size of all, if the index tells it.
py::tuple read_index(py::handle path) {
  const std::filesystem::path file = path_of(path, "path");
  const ShardIndex index = [&] {
    const GilRelease release;
    return ShardIndex::read(file);
  }();
  std::vector<std::size_t> counts(index.files().size());
  for (std::size_t i = 0; i < index.size(); ++i) ++counts[index.file(i)];
  std::vector<py::list> lists;
  lists.reserve(counts.size());
  py::dict by_file;
  const GcPause pause;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    lists.emplace_back(counts[i]);
    by_file[to_unicode(index.files()[i])] = lists.back();
  }
  std::vector<std::size_t> filled(counts.size());
  for (std::size_t i = 0; i < index.size(); ++i) {
    const std::size_t number = index.file(i);
    PyList_SET_ITEM(lists[number].ptr(), static_cast<Py_ssize_t>(filled[number]++),
                    to_unicode(index.name(i)).release().ptr());
  }
  return py::make_tuple(by_file, index.total_size());
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

/// The argument; `before` of None.
template <typename Number>
Number setting(py::handle argument, const char* name, Number before) {
  if (argument.is_none()) return before;
  const std::uint64_t value = size_of(argument, name);
  constexpr Number kMax = std::numeric_limits<Number>::max();  // more than any of them may be
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

/// Iterator of a PrefetchLoader. Several share what there is.
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
  Class<PrefetchLoader>(
      module, "PrefetchLoader",
      "Tensors of a file that load in the background, each handed out once.\n\n"
      "    with f.prefetch(device=\"cuda:0\") as loader:\n"
      "        for name, tensor in loader:\n"
      "            ...\n\n"
      "Those on a device are torch's own, in memory of torch's, and ready on every stream.\n"
      "Safe to use from many threads.")
      .method("names", &PrefetchLoader::names,
              "names(self, /)\n--\n\n"
              "The names of its tensors, in the order of their bytes in the file.")
      .method("take", &PrefetchLoader::take, py::arg("name"),
              "take(self, /, name)\n--\n\n"
              "One tensor; waits until it is there. Raises SafetensorError when it was handed out\n"
              "before, is not in the plan, or could not be loaded.")
      .method("close", &PrefetchLoader::close,
              "close(self, /)\n--\n\n"
              "Stops loading and lets go of tensors that were not handed out. Closing twice does\n"
              "nothing.")
      .method("__len__", &PrefetchLoader::size, "__len__(self, /)\n--\n\n")
      .method(
          "__bool__", [](const PrefetchLoader&) { return true; }, "__bool__(self, /)\n--\n\n")
      .method(
          "__iter__",
          [](py::object self) {
            if (!py::isinstance<PrefetchLoader>(self)) throw py::type_error("not a loader");
            return PrefetchIterator(std::move(self));
          },
          "__iter__(self, /)\n--\n\n"
          "Pairs of name and tensor, as they come to be there; without those taken already.")
      .method_of_itself("__enter__", "__enter__(self, /)\n--\n\n")
      .method(
          "__exit__",
          [](PrefetchLoader& loader, py::handle, py::handle, py::handle) { loader.close(); },
          py::arg("_exc_type"), py::arg("_exc_value"), py::arg("_traceback"),
          "__exit__(self, /, _exc_type, _exc_value, _traceback)\n--\n\nCloses it.")
      .attr("__module__") = "safetensors";
  Class<PrefetchIterator>(module, "TensorStream",
                          "Pairs of name and tensor of a PrefetchLoader, as they come to be there.")
      .method_of_itself("__iter__", "__iter__(self, /)\n--\n\n")
      .method("__next__", &PrefetchIterator::next, "__next__(self, /)\n--\n\n")
      .attr("__module__") = "safetensors._safetensors_rust";

  define(module, "_load_groups", &load_groups, py::arg("groups"), py::arg("progress") = py::none());
  define(module, "_read_request", &read_request, py::arg("handle"), py::arg("name"),
         py::arg("index"), py::arg("address"), py::arg("nbytes"));
  define(module, "_open_shard", &open_shard, py::arg("filename"), py::arg("backend"));
  define(module, "_read_index", &read_index, py::arg("path"));
  define(module, "io_config", &io_config, py::kw_only(), py::arg("threads") = py::none(),
         py::arg("chunk_bytes") = py::none(), py::arg("staging_bytes") = py::none(),
         py::arg("streams") = py::none(), py::arg("slots") = py::none(),
         "io_config(*, threads=None, chunk_bytes=None, staging_bytes=None, streams=None, "
         "slots=None)\n--\n\n"
         "The settings of loads to devices and in the background, after those given are changed,\n"
         "for loads that begin later: a dict. threads is how many readers a load has (0: as many\n"
         "as serve best), chunk_bytes what one read brings, staging_bytes how much pinned memory\n"
         "the process keeps, streams and slots how many copies each device and each reader has\n"
         "under way. Raises SafetensorError for sizes that cannot be.");
  define(
      module, "release_staging",
      [] {
        const GilRelease release;
        return release_staging();
      },
      "release_staging()\n--\n\n"
      "Frees the pinned memory that no load uses, and returns how many bytes it freed. Memory "
      "that\n"
      "the driver fails to unpin stays allocated. May be called while a CUDA graph is being\n"
      "captured.");
  define(
      module, "_use_cuda_driver",
      [](const std::string& path) { safetensors::detail::use_cuda_driver(path.c_str()); },
      py::arg("path"));
  define(module, "_has_cuda_driver", [] { return safetensors::Device::has_cuda(); });
}

}  // namespace safetensors::python
