// Reads of tensors, and parts of them, to memory of the caller, and of bytes of open files. They
// need no framework.
#include <pybind11/stl.h>

#include <limits>
#include <optional>
#include <vector>

#include "errors.hpp"
#include "fast_def.hpp"
#include "gil.hpp"
#include "load_tensors.hpp"
#include "open_file.hpp"
#include "python_index.hpp"
#include "register.hpp"
#include "safetensors/fill_page_cache.hpp"
#include "safetensors/verify.hpp"

namespace safetensors::python {
namespace {

/// Returns a request that does not say yet which bytes are read.
Request request_to(py::handle handle, py::handle name, std::uintptr_t address) {
  Request request;
  request.file = py::cast<const Handle&>(handle).file();
  request.info = &request.file->file().at(text_of(name, "name"));
  request.address = address;
  return request;
}

/// Makes the request read a part. Raises what select_load_part() raises.
void select(Request& request, py::handle index) {
  request.runs = select_load_part(request.file->file(), *request.info, index).runs;
  request.nbytes = request.runs.empty() ? request.info->nbytes() : nbytes_of(request.runs);
}

/// Raises SafetensorError if the request has not as many bytes as the caller's memory.
void check_nbytes(const Request& request, std::uint64_t nbytes) {
  if (request.nbytes == nbytes) return;
  raise_safetensor_error(ErrorCode::kInvalidArgument, "the request has " +
                                                          std::to_string(request.nbytes) +
                                                          " bytes, not " + std::to_string(nbytes));
}

void read_request(py::handle handle, py::handle name, py::handle index, std::uintptr_t address,
                  std::uint64_t nbytes) {
  Request request = request_to(handle, name, address);
  select(request, index);
  check_nbytes(request, nbytes);
  const std::span<std::byte> to(reinterpret_cast<std::byte*>(address),
                                static_cast<std::size_t>(nbytes));
  const SafeOpen& file = request.file->file();
  const Interrupt interrupt = request.file->interrupt();
  const GilRelease release;
  if (request.runs.empty()) {
    file.read(*request.info, to, interrupt);
  } else {
    file.read(*request.info, request.runs, to, interrupt);
  }
}

/// Returns the number of elements; nothing if it does not fit in 64 bits.
std::optional<std::uint64_t> elements_of(std::span<const std::uint64_t> shape) {
  std::uint64_t count = 1;
  for (const std::uint64_t size : shape) {
    if (size != 0 && count > std::numeric_limits<std::uint64_t>::max() / size) return std::nullopt;
    count *= size;
  }
  return count;
}

/// Makes the request read the tensor as one of another shape, to a destination with strides.
void reshape(Request& request, py::handle index, const std::vector<std::uint64_t>& shape,
             const std::vector<std::uint64_t>& to_strides) {
  TensorInfo info = *request.info;
  info.shape = shape;
  if (elements_of(shape) != elements_of(request.info->shape)) {
    raise_safetensor_error(ErrorCode::kInvalidArgument,
                           "tensor `" + std::string(info.name) +
                               "` has another number of elements "
                               "than the shape as which it is read",
                           info.name);
  }
  const Region region = select_region(request.file->file(), info, index).region;
  request.runs = byte_runs(region, shape, info.dtype, to_strides);
  request.nbytes = nbytes_of(request.runs);
}

/// Returns a callback that calls a function of Python without holding the GIL before; none for
/// None. The caller keeps the function.
Load::Progress progress_of(py::handle function) {
  if (function.is_none()) return {};
  return [function](std::uint64_t done, std::uint64_t total) {
    const GilAcquire gil;
    (void)py::reinterpret_borrow<py::object>(function)(done, total);
  };
}

void read_requests(py::handle asked, py::handle progress) {
  std::vector<Request> requests;
  for (const py::handle each : py::list(py::reinterpret_borrow<py::object>(asked))) {
    const auto tuple = py::cast<py::tuple>(each);
    if (tuple.size() != 5 && tuple.size() != 7) {
      throw py::type_error("a request has five or seven parts");
    }
    Request& request =
        requests.emplace_back(request_to(tuple[0], tuple[1], py::cast<std::uintptr_t>(tuple[3])));
    if (tuple.size() == 5) {
      select(request, tuple[2]);
    } else {
      reshape(request, tuple[2], py::cast<std::vector<std::uint64_t>>(tuple[5]),
              py::cast<std::vector<std::uint64_t>>(tuple[6]));
    }
    check_nbytes(request, py::cast<std::uint64_t>(tuple[4]));
    if (request.address == 0) throw py::value_error("a request has no address");
  }
  const LoadTarget host;
  const RequestGroup group{host, requests};
  load_requests({&group, 1}, progress_of(progress));
}

void fill_page_cache(py::handle asked, py::handle progress) {
  std::vector<Request> requests;
  std::vector<CachedRead> reads;
  for (const py::handle each : py::list(py::reinterpret_borrow<py::object>(asked))) {
    const auto tuple = py::cast<py::tuple>(each);
    if (tuple.size() < 3) throw py::type_error("a request has at least three parts");
    select(requests.emplace_back(request_to(tuple[0], tuple[1], 0)), tuple[2]);
  }
  reads.reserve(requests.size());
  for (const Request& each : requests) {
    reads.push_back({&each.file->file(), each.info, each.runs});
  }
  const Load::Progress report = progress_of(progress);
  const GilRelease release;
  safetensors::fill_page_cache(reads, python_interrupt(), report);
}

/// Returns bytes of the file, wherever they come from.
py::bytes read_range(const Handle& handle, std::uint64_t offset, std::size_t nbytes, bool verify) {
  const auto open_file = handle.file();
  const std::shared_ptr<const ByteSource> given = open_file->file().source();
  const std::shared_ptr<const ByteSource> source = verify ? given : unchecked(given);
  auto bytes = py::reinterpret_steal<py::bytes>(
      PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(nbytes)));
  if (!bytes) throw py::error_already_set();
  auto* const data = reinterpret_cast<std::byte*>(PyBytes_AS_STRING(bytes.ptr()));
  const GilRelease release;
  source->read_at(offset, {data, nbytes});
  return bytes;
}

}  // namespace

void register_read(py::module_& module) {
  define(module, "_read_request", &read_request, py::arg("handle"), py::arg("name"),
         py::arg("index"), py::arg("address"), py::arg("nbytes"));
  define(
      module, "_read_requests", &read_requests, py::arg("requests"),
      py::arg("progress") = py::none(),
      "_read_requests(requests, progress=None)\n--\n\n"
      "Reads to memory in one load. requests: (handle, name, index or None, address, bytes); or\n"
      "also a shape with as many elements, as which the tensor is read, and the distances in\n"
      "bytes at the destination between neighbours of each axis of the result.");
  define(module, "_fill_page_cache", &fill_page_cache, py::arg("requests"), py::arg("progress"),
         "_fill_page_cache(requests, progress)\n--\n\n"
         "Reads parts of mapped files into the page cache, without what is there already, and "
         "without\n"
         "anything if it does not fit in memory. requests: (handle, name, index or None, ...).");
  define(module, "_read_range", &read_range, py::arg("handle"), py::arg("offset"),
         py::arg("nbytes"), py::arg("verify") = true,
         "_read_range(handle, offset, nbytes, verify=True)\n--\n\n"
         "Returns bytes of the file, compared with its digests if it was opened with some.");
  define(
      module, "_data_begin",
      [](const Handle& opened) { return opened.file()->file().data_offset(); }, py::arg("handle"),
      "_data_begin(handle)\n--\n\nReturns the offset in the file from which `data_offsets` count.");
  define(
      module, "_file_of",
      [](const Handle& opened) { return to_object(opened.file()->file().path()); },
      py::arg("handle"), "_file_of(handle)\n--\n\nReturns the path or URL that errors name.");
  define(
      module, "_read_ahead", [](const Handle& opened) { opened.file()->file().read_ahead(); },
      py::arg("handle"));
}

}  // namespace safetensors::python
