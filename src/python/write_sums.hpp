// The sums of a file that is being written.
#pragma once

#include <atomic>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "python.hpp"

namespace safetensors::python {

/// Computes the digests of a file's tensors as they are written, and writes the sums when the file
/// takes its name:
///
///     write_beside(): hashes, and writes at the same time
///     the sink's before_rename: Python's `make` is called, a temporary file of sums written
///     the sink removes the old sums and renames the file; commit() renames the new sums
///
/// For a file that is overwritten, commit() writes the temporary file, too, which overwrites() has
/// made before the first byte of the file is lost.
///
/// Digests are of tensors whose bytes come in order. Python reads the others from the file.
///
/// Thread safety: several threads may call write_beside() at once.
class WriteSums {
 public:
  /// `given` is None, for no sums, or a tuple (path, make). `make(temporary, digests)` gets the
  /// path of the complete file, and a dict of name to (XXH3-128 in hexadecimal digits, bytes of the
  /// blocks), or to None if the tensor was not hashed; or None if no tensor was added. It returns
  /// the content of the sums, which are written to `path`, or None.
  explicit WriteSums(py::handle given);
  WriteSums(const WriteSums&) = delete;
  WriteSums& operator=(const WriteSums&) = delete;
  ~WriteSums() = default;

  /// Returns whether there are to be sums. If not, nothing is hashed.
  [[nodiscard]] bool is_wanted() const noexcept { return !make_.is_none(); }
  /// Adds the next tensor.
  void add(std::string_view name, Dtype dtype, std::span<const std::uint64_t> shape);
  /// Returns the callback of the sink of a file, whose rights the sums get. It acquires the GIL.
  [[nodiscard]] std::function<void(const std::filesystem::path&)> before_rename(
      const std::filesystem::path& file);
  /// Is called before a file that cannot be replaced is overwritten, and forgets all tensors.
  /// Throws: Error kIo if there cannot be sums.
  void overwrites(const std::filesystem::path& file);
  /// Gives the sums their name, once the file has its own, or is complete.
  void commit(bool fsync);
  /// Removes the temporary file of sums, if there is one.
  void abort() noexcept { sink_.reset(); }

  /// A part of a tensor.
  struct Part {
    std::size_t tensor;
    std::uint64_t begin;
    std::span<const std::byte> bytes;
  };

  /// Calls `write`, which writes these parts, while a thread hashes them, and returns its result.
  template <typename Write>
  void write_beside(std::span<const Part> parts, const Write& write) {
    std::uint64_t nbytes = 0;
    for (const Part& part : parts) nbytes += part.bytes.size();
    const Hashing hashing(*this, is_wanted() ? parts : std::span<const Part>(), nbytes);
    write();
    hashing.finish();
  }

 private:
  struct Entry {
    std::string name;
    std::vector<std::uint64_t> shape;
    Dtype dtype = Dtype::kU8;
    std::uint64_t nbytes = 0;
    // Guarded by the mutex of the entry:
    std::mutex mutex;
    std::optional<TensorHasher> hasher;
    std::uint64_t next = 0;  // the bytes that were hashed
    bool is_in_order = true;
    std::string digest;  // of the complete tensor
    std::string blocks;
  };

  /// Hashes parts on a thread of its own, unless they are short. The destructor ends the thread.
  class Hashing {
   public:
    Hashing(WriteSums& sums, std::span<const Part> parts, std::uint64_t nbytes);
    Hashing(const Hashing&) = delete;
    Hashing& operator=(const Hashing&) = delete;
    ~Hashing();
    /// Waits for the end. Throws: what hashing threw.
    void finish() const;

   private:
    struct State {
      std::atomic<bool> is_stopped = false;
      std::exception_ptr error;
      std::thread thread;
    };
    std::unique_ptr<State> state_;  // null if the parts are hashed
  };

  [[nodiscard]] Entry& entry(std::size_t tensor);
  void hash(const Part& part, const std::atomic<bool>& is_stopped);
  static void complete(Entry& entry);
  [[nodiscard]] py::dict digests();
  /// Makes the temporary file of sums. They get their name if `now`, the file, is then at `path`.
  void open_sink(const std::filesystem::path& now, const std::filesystem::path& path);
  /// Writes the sums of the complete file that is, or will be, at `path`.
  void write_content(const std::filesystem::path& complete, const std::filesystem::path& path);

  std::mutex mutex_;  // guards entries_, but not what is in an entry
  std::deque<Entry> entries_;
  std::filesystem::path path_;
  py::object make_;
  std::unique_ptr<ByteSink> sink_;  // of the sums
  std::filesystem::path overwritten_;
  std::uint64_t nbytes_ = 0;  // of the sums
};

}  // namespace safetensors::python
