// A source whose bytes come from a Python object: a RangeReader.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <vector>

#include "python.hpp"

namespace safetensors::python {

/// Returns whether an argument that may be a path is a RangeReader: an object with `open` and
/// `read` that is no path.
[[nodiscard]] bool is_range_reader(py::handle object);

/// Bytes of a RangeReader, whose `open` is called once: it returns the size and the first bytes,
/// which are kept. So a header of up to kFirstSize bytes costs one request.
///
/// A thread that calls read_at() or read_parts() may hold the GIL, or be inside a GilRelease, or
/// not be known to Python. A thread that joins others which read must not hold the GIL.
///
/// Errors of the reader are thrown as Errors whose cause is the Python exception. In a forked
/// process, and while the interpreter exits, all reads throw.
///
/// Lifetime: the last owner calls the reader's `close`, if it has one; on any thread.
class PythonSource final : public ByteSource {
 public:
  static constexpr std::uint64_t kFirstSize = std::uint64_t{512} << 10;

  /// Requires: the GIL. Raises TypeError for an object that is no RangeReader. Throws: Error if the
  ///   reader raises, or says what cannot be.
  [[nodiscard]] static std::shared_ptr<const PythonSource> open(py::object reader);
  PythonSource(const PythonSource&) = delete;
  PythonSource& operator=(const PythonSource&) = delete;
  ~PythonSource() override;

  /// Returns the reader's name, for errors.
  [[nodiscard]] const std::filesystem::path& name() const noexcept { return name_; }
  [[nodiscard]] std::uint64_t size() const noexcept override { return size_; }
  void read_at(std::uint64_t offset, std::span<std::byte> to) const override;
  void read_parts(std::uint64_t offset, std::uint64_t nbytes,
                  std::span<const ReadPiece> parts) const override;
  [[nodiscard]] ReadCost cost() const noexcept override { return cost_; }
  [[nodiscard]] unsigned concurrency() const noexcept override { return concurrency_; }

  /// Makes the reads that are under way fail, if the reader can, and returns when they have, but
  /// for `own` reads of this thread.
  /// Requires: the GIL, which it releases while it waits.
  void cancel(unsigned own = 0) const;
  /// Visits the Python objects that it owns, for the garbage collector.
  [[nodiscard]] int traverse(visitproc visit, void* argument) const;

 private:
  explicit PythonSource(py::object reader);
  void read_first();
  /// After read_first(): how a server is read best may only be known once it has answered.
  void read_settings();
  void check_process() const;
  /// Reads from the Python object into `to`, if it can: see fill() in _range_reader.py. Otherwise
  /// reads from it, and passes the bytes to `copy` without the GIL.
  template <typename Copy>
  void request(std::uint64_t offset, std::uint64_t nbytes, std::span<std::byte> to,
               const Copy& copy) const;

  // Owned. Not py::objects, because the destructor may have to leak them.
  PyObject* reader_;
  PyObject* read_ = nullptr;
  PyObject* fill_ = nullptr;    // null if the reader has none
  PyObject* cancel_ = nullptr;  // null if the reader has none
  std::filesystem::path name_;
  std::uint64_t size_ = 0;
  Buffer first_;
  ReadCost cost_;
  unsigned concurrency_ = 0;
  std::uint64_t fork_count_;
  mutable std::atomic<unsigned> reads_{0};  // under way
};

/// Cancels the reads of a source, if it is a PythonSource. Requires: the GIL.
void cancel_reads(const ByteSource& source);

/// Returns a callback like python_interrupt(). Before it throws, it cancels the reads of the
/// sources, so that the threads which read can be joined.
[[nodiscard]] Interrupt interrupt_of(std::vector<std::shared_ptr<const ByteSource>> sources);

/// Makes all reads of PythonSources fail, now and later, and waits for those under way. Called when
/// the interpreter exits, before threads of the core are joined. Calling it twice does no harm.
/// Requires: the GIL.
void stop_python_sources();
/// Has Python call it at exit. Call before threads of the core may call Python.
void stop_python_sources_at_exit();

}  // namespace safetensors::python
