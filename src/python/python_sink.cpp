#include "python_sink.hpp"

#include <utility>

#include "errors.hpp"
#include "gil.hpp"

namespace safetensors::python {
namespace {

class PythonSink final : public ByteSink {
 public:
  PythonSink(py::object write, bool can_seek) : write_(std::move(write)), can_seek_(can_seek) {}
  PythonSink(const PythonSink&) = delete;
  PythonSink& operator=(const PythonSink&) = delete;
  ~PythonSink() override {
    const GilAcquire gil;
    write_ = {};
  }

  [[nodiscard]] bool seeks() const noexcept override { return can_seek_; }

  [[nodiscard]] std::size_t write_at(std::uint64_t offset,
                                     std::span<const std::byte> bytes) override {
    const GilAcquire gil;
    const py::memoryview view =
        py::memoryview::from_memory(bytes.data(), static_cast<py::ssize_t>(bytes.size()));
    (void)write_(offset, view);
    // The caller's memory may be gone after this call.
    try {
      view.attr("release")();
    } catch (const py::error_already_set& error) {
      if (!error.matches(PyExc_BufferError)) throw;
      raise_safetensor_error(
          "Error while serializing: the target kept a reference to the memory that it was given; "
          "it must copy what it needs later");
    }
    return bytes.size();
  }

  void commit(std::uint64_t, bool) override {}

 private:
  py::object write_;
  bool can_seek_;
};

}  // namespace

std::unique_ptr<ByteSink> make_python_sink(py::object write, bool seeks) {
  return std::make_unique<PythonSink>(std::move(write), seeks);
}

}  // namespace safetensors::python
