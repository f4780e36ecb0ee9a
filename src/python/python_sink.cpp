#include "python_sink.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>

#include "gil.hpp"
#include "loan.hpp"

namespace safetensors::python {
namespace {

constexpr std::size_t kLeastCopy = std::size_t{1} << 20;

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

  /// Lends the bytes themselves if their owner is known. Others, such as those of small tensors
  /// that the writer has gathered, are copied: nothing keeps them after this call.
  [[nodiscard]] std::size_t write_at(std::uint64_t offset,
                                     std::span<const std::byte> bytes) override {
    if (const py::handle owner = MemoryOwner::of(bytes)) {
      const GilAcquire gil;
      Loan loan(owner, bytes);
      (void)lend(offset, loan);
      return bytes.size();
    }
    Buffer copy = take_spare(bytes.size());
    std::memcpy(copy.data(), bytes.data(), bytes.size());
    const GilAcquire gil;
    Loan loan(std::move(copy), bytes.size(), true);
    keep_spare(lend(offset, loan));
    return bytes.size();
  }

  void commit(std::uint64_t, bool) override {}

 private:
  Buffer lend(std::uint64_t offset, Loan& loan) {
    {
      const py::object at = to_int(offset);
      const std::array<PyObject*, 2> arguments{at.ptr(), loan.view().ptr()};
      const auto result = py::reinterpret_steal<py::object>(
          PyObject_Vectorcall(write_.ptr(), arguments.data(), arguments.size(), nullptr));
      if (!result) throw py::error_already_set();
    }
    return loan.take_back("the target");
  }

  /// Returns a buffer of this size or more. Several threads may write at once.
  [[nodiscard]] Buffer take_spare(std::size_t nbytes) {
    {
      const std::lock_guard lock(mutex_);
      if (spare_.size() >= nbytes) return std::move(spare_);
    }
    return Buffer(std::max(nbytes, kLeastCopy));
  }
  void keep_spare(Buffer buffer) {
    const std::lock_guard lock(mutex_);
    spare_ = std::move(buffer);
  }

  py::object write_;
  bool can_seek_;
  std::mutex mutex_;  // held for no call
  Buffer spare_;
};

}  // namespace

std::unique_ptr<ByteSink> make_python_sink(py::object write, bool seeks) {
  return std::make_unique<PythonSink>(std::move(write), seeks);
}

}  // namespace safetensors::python
