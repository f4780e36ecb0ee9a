#include "python_source.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <limits>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "any_thread_gil.hpp"
#include "errors.hpp"
#include "gil.hpp"
#include "lazy_value.hpp"
#include "loan.hpp"
#include "python_exception.hpp"

namespace safetensors::python {
namespace {

constexpr std::uint64_t kMaxSize = std::numeric_limits<std::int64_t>::max();  // 2^63 - 1
constexpr std::uint64_t kDefaultConcurrency = 16;
constexpr std::uint64_t kDefaultGap = std::uint64_t{1} << 20;
constexpr std::uint64_t kDefaultChunk = std::uint64_t{8} << 20;

/// The sources that can cancel their reads. A thread that holds `mutex` also holds the GIL, and
/// does not release it meanwhile: so a forked process never inherits it locked.
struct SourceRegistry {
  std::mutex mutex;
  std::vector<std::weak_ptr<const PythonSource>> sources;
};

SourceRegistry& source_registry() {
  static constinit LazyValue<SourceRegistry> all;
  return all.get([] { return SourceRegistry(); });
}

/// Returns the attribute; empty if there is none.
py::object attribute_of(py::handle object, const char* name) {
  return py::getattr(object, name, py::object());
}

/// Returns a number that the reader gave. Throws Error kInvalidArgument that names it.
std::uint64_t number_of(py::handle value, const char* what, std::uint64_t least, std::uint64_t most,
                        const std::filesystem::path& name) {
  const auto refuse = [&](const std::string& found) {
    fail(ErrorCode::kInvalidArgument, std::string("the reader's ") + what + " is " + found,
         {.path = name});
  };
  // A bool is an int to Python, but never a size.
  if (PyBool_Check(value.ptr()) || PyIndex_Check(value.ptr()) == 0) {
    refuse("no integer but a " + type_name(value));
  }
  const auto number = py::reinterpret_steal<py::object>(PyNumber_Index(value.ptr()));
  if (!number) throw take_python_error(std::string("the reader's ") + what + ": ", name);
  const unsigned long long found = PyLong_AsUnsignedLongLong(number.ptr());
  const bool is_beyond = PyErr_Occurred() != nullptr;
  PyErr_Clear();
  if (is_beyond || found < least || found > most) {
    refuse((is_beyond ? std::string("negative or above 2^64") : std::to_string(found)) +
           ", not from " + std::to_string(least) + " to " + std::to_string(most));
  }
  return found;
}

/// Exports the bytes of an object while it lives.
class Exported {
 public:
  Exported(py::handle object, const std::string& call, const std::filesystem::path& name) {
    if (!PyObject_CheckBuffer(object.ptr())) {
      fail(ErrorCode::kInvalidArgument, call + " returned a " + type_name(object) + ", no bytes",
           {.path = name});
    }
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_SIMPLE) != 0) {
      throw take_python_error(call + " returned a buffer that cannot be read: ", name);
    }
  }
  Exported(const Exported&) = delete;
  Exported& operator=(const Exported&) = delete;
  ~Exported() { PyBuffer_Release(&view_); }
  [[nodiscard]] std::span<const std::byte> bytes() const noexcept {
    return {static_cast<const std::byte*>(view_.buf), static_cast<std::size_t>(view_.len)};
  }

 private:
  Py_buffer view_{};
};

/// Calls a function. Python before 3.14 ends a thread that needs the GIL while the interpreter
/// exits, by unwinding: that can happen only if Ctrl-C ended the wait of stop_python_sources().
py::object call(PyObject* function, std::span<PyObject* const> arguments) noexcept {
  try {
    return py::reinterpret_steal<py::object>(
        PyObject_Vectorcall(function, arguments.data(), arguments.size(), nullptr));
  } catch (...) {
    wait_for_the_end();
  }
}

std::string call_text(std::uint64_t offset, std::uint64_t nbytes) {
  return "read(" + std::to_string(offset) + ", " + std::to_string(nbytes) + ")";
}

}  // namespace

bool is_range_reader(py::handle object) {
  if (PyUnicode_Check(object.ptr()) || PyBytes_Check(object.ptr())) return false;
  return !py::hasattr(object, "__fspath__") && py::hasattr(object, "open") &&
         py::hasattr(object, "read");
}

std::shared_ptr<const PythonSource> PythonSource::open(py::object reader) {
  stop_python_sources_at_exit();
  const std::shared_ptr<PythonSource> source(new PythonSource(std::move(reader)));
  source->read_first();
  source->read_settings();
  if (source->cancel_ != nullptr) {
    SourceRegistry& all = source_registry();
    const std::lock_guard lock(all.mutex);
    std::erase_if(all.sources, [](const auto& each) { return each.expired(); });
    all.sources.push_back(source);
  }
  return source;
}

PythonSource::PythonSource(py::object reader) : reader_(reader.ptr()), fork_count_(fork_count()) {
  const py::object name = reader.attr("name");
  if (!PyUnicode_Check(name.ptr())) raise_wrong_type(name, "name", "str");
  name_ = path_of(name, "name");
  py::object read = reader.attr("read");
  py::object fill = attribute_of(reader, "_safetensors_fill");
  py::object cancel = attribute_of(reader, "cancel");
  fill_ = fill.release().ptr();
  read_ = read.release().ptr();
  cancel_ = cancel.release().ptr();
  (void)reader.release();
}

PythonSource::~PythonSource() {
  const AnyThreadGil gil;
  if (!gil) return;  // the interpreter is exiting
  const py::error_scope pending;
  const auto reader = py::reinterpret_steal<py::object>(reader_);
  Py_XDECREF(read_);
  Py_XDECREF(fill_);
  Py_XDECREF(cancel_);
  if (fork_count_ != fork_count()) return;  // what it would close may be the parent's, too
  try {
    const py::object close = attribute_of(reader, "close");
    if (close) (void)close();
  } catch (py::error_already_set& error) {
    error.discard_as_unraisable(reader);
  }
}

void PythonSource::read_first() {
  const py::object wanted = to_int(kFirstSize);
  const py::object open = py::handle(reader_).attr("open");
  PyObject* const argument = wanted.ptr();
  const py::object answer = call(open.ptr(), {&argument, 1});
  if (!answer) throw take_python_error("open failed: ", name_);
  const std::string text = "open(" + std::to_string(kFirstSize) + ")";
  if (!PyTuple_Check(answer.ptr()) || PyTuple_GET_SIZE(answer.ptr()) != 2) {
    fail(ErrorCode::kInvalidArgument,
         text + " returned a " + type_name(answer) + ", not a tuple of the size and first bytes",
         {.path = name_});
  }
  size_ = number_of(PyTuple_GET_ITEM(answer.ptr(), 0), "size", 0, kMaxSize, name_);
  const Exported first(PyTuple_GET_ITEM(answer.ptr(), 1), text, name_);
  const std::span<const std::byte> bytes = first.bytes();
  if (bytes.size() > std::min(size_, kFirstSize)) {
    fail(ErrorCode::kInvalidArgument,
         text + " returned " + std::to_string(bytes.size()) + " bytes of " + std::to_string(size_),
         {.path = name_});
  }
  first_ = Buffer(bytes.size());
  if (!bytes.empty()) std::memcpy(first_.data(), bytes.data(), bytes.size());
}

void PythonSource::read_settings() {
  const py::handle reader(reader_);
  const auto setting = [&](const char* attribute, std::uint64_t least, std::uint64_t most,
                           std::uint64_t otherwise) {
    const py::object value = attribute_of(reader, attribute);
    return value ? number_of(value, attribute, least, most, name_) : otherwise;
  };
  concurrency_ = static_cast<unsigned>(
      setting("concurrency", 1, LoadConfig::kMaxThreads, kDefaultConcurrency));
  cost_ = {.gap_nbytes = setting("gap_bytes", 0, kMaxSize, kDefaultGap),
           .chunk_nbytes = setting("chunk_bytes", 1, kMaxSize, kDefaultChunk),
           .alignment = 1,
           .first_nbytes = kFirstSize,
           .is_request = true};
}

void PythonSource::check_process() const {
  if (fork_count_ == fork_count()) return;
  fail(ErrorCode::kIo, "opened before this process was forked: open it again in this process",
       {.path = name_});
}

template <typename Copy>
void PythonSource::request(std::uint64_t offset, std::uint64_t nbytes, std::span<std::byte> to,
                           const Copy& copy) const {
  check_process();
  struct Under {
    explicit Under(std::atomic<unsigned>& reads) : count(reads) { ++count; }
    Under(const Under&) = delete;
    Under& operator=(const Under&) = delete;
    ~Under() { --count; }
    std::atomic<unsigned>& count;
  } const under_way(reads_);
  const AnyThreadGil gil;
  if (!gil) {
    fail(ErrorCode::kIo, call_text(offset, nbytes) + ": the interpreter is exiting",
         {.path = name_});
  }
  const auto taken_error = [&] {
    const bool is_interrupt = PyErr_ExceptionMatches(PyExc_Exception) == 0;
    Error error = take_python_error(call_text(offset, nbytes) + " failed: ", name_);
    if (is_interrupt) cancel(1);  // Ctrl-C during this thread's own read: the others are joined
    return error;
  };
  const py::object begin = to_int(offset);
  if (fill_ != nullptr && !to.empty()) {
    Loan loan(to);
    const std::array<PyObject*, 2> arguments = {begin.ptr(), loan.view().ptr()};
    const py::object is_filled = call(fill_, arguments);
    if (!is_filled) {
      const Error error = taken_error();
      loan.revoke();
      throw error;
    }
    if (is_filled.ptr() == Py_True) return;
  }
  const py::object wanted = to_int(nbytes);
  const std::array<PyObject*, 2> arguments = {begin.ptr(), wanted.ptr()};
  const py::object answer = call(read_, arguments);
  if (!answer) throw taken_error();
  const Exported exported(answer, call_text(offset, nbytes), name_);
  if (exported.bytes().size() != nbytes) {
    fail(ErrorCode::kIo,
         call_text(offset, nbytes) + " returned " + std::to_string(exported.bytes().size()) +
             " bytes",
         {.path = name_});
  }
  const GilRelease release;
  copy(exported.bytes());
}

void PythonSource::read_at(std::uint64_t offset, std::span<std::byte> to) const {
  const ReadPiece only{offset, to};
  read_parts(offset, to.size(), {&only, 1});
}

void PythonSource::read_parts(std::uint64_t offset, std::uint64_t nbytes,
                              std::span<const ReadPiece> parts) const {
  if (offset > size_ || nbytes > size_ - offset) {
    fail(ErrorCode::kInvalidArgument, call_text(offset, nbytes) + " reaches past the end",
         {.path = name_});
  }
  //     first_   [--------------)
  //     range         [------------------)
  //                   [ kept    )[ asked )
  const std::uint64_t kept = first_.size();
  const std::uint64_t begin = std::max(offset, std::min(kept, offset + nbytes));
  const auto copy = [&](std::span<const std::byte> from, std::uint64_t from_offset) {
    const std::uint64_t from_end = from_offset + from.size();
    for (const ReadPiece& part : parts) {
      const std::uint64_t first = std::max(part.offset, from_offset);
      const std::uint64_t last = std::min(part.offset + part.to.size(), from_end);
      if (first >= last) continue;
      std::memcpy(part.to.data() + (first - part.offset), from.data() + (first - from_offset),
                  static_cast<std::size_t>(last - first));
    }
  };
  copy(first_.bytes(), 0);
  if (begin == offset + nbytes) return;
  const std::uint64_t missing = offset + nbytes - begin;
  std::span<std::byte> to;  // of what is missing, if one part takes it all
  if (parts.size() == 1 && parts[0].to.size() >= missing &&
      parts[0].offset + parts[0].to.size() == offset + nbytes) {
    to = parts[0].to.last(static_cast<std::size_t>(missing));
  }
  request(begin, missing, to, [&](std::span<const std::byte> bytes) { copy(bytes, begin); });
}

void PythonSource::cancel(unsigned own) const {
  if (cancel_ == nullptr || fork_count_ != fork_count()) return;
  // A read may begin just now, and reach what can be cancelled later. Reads of other loads may
  // begin for ever.
  constexpr int kMaxRounds = 100;
  for (int round = 0; round < kMaxRounds && reads_ > own; ++round) {
    if (!call(cancel_, {})) {
      PyErr_WriteUnraisable(cancel_);
      return;
    }
    const GilRelease release;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

int PythonSource::traverse(visitproc visit, void* argument) const {
  for (PyObject* const owned : {reader_, read_, fill_, cancel_}) {
    if (owned == nullptr) continue;
    if (const int result = visit(owned, argument)) return result;
  }
  return 0;
}

void cancel_reads(const ByteSource& source) {
  if (const auto* const found = dynamic_cast<const PythonSource*>(&source)) found->cancel();
}

Interrupt interrupt_of(std::vector<std::shared_ptr<const ByteSource>> sources) {
  if (sources.empty()) return python_interrupt();
  return [sources = std::move(sources)] {
    const GilAcquire gil;
    if (PyErr_CheckSignals() == 0) return;
    py::error_already_set error;
    for (const auto& source : sources) cancel_reads(*source);
    throw std::move(error);
  };
}

void stop_python_sources_at_exit() {
  // Two threads may both register it. Running it twice does no harm.
  static constinit std::atomic<bool> is_registered{false};
  if (is_registered) return;
  py::module_::import("atexit").attr("register")(py::cpp_function(&stop_python_sources));
  is_registered = true;
}

void stop_python_sources() {
  close_python_gate();
  std::vector<std::shared_ptr<const PythonSource>> sources;
  {
    SourceRegistry& all = source_registry();
    const std::lock_guard lock(all.mutex);
    for (const auto& each : all.sources) {
      if (auto source = each.lock()) sources.push_back(std::move(source));
    }
  }
  for (const auto& source : sources) source->cancel();
  while (threads_in_python() != 0) {
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    const GilRelease release;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace safetensors::python
