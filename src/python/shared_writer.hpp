// The FileWriter of a _FileWriter, which any number of threads call at once.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <type_traits>
#include <utility>

#include "safetensors/writer.hpp"

namespace safetensors::python {

/// Lets threads write to a FileWriter while others complete or discard it.
///
/// * read_with() and write_with() are refused while commit() runs, and after it.
/// * commit() is refused while write_with() runs, so that no byte comes after the digests.
/// * abort() waits for no call, since a sink may block. The last call that ends discards the file,
///   and those that write throw.
///
/// A call from within another one of the same thread is refused, since FileWriter calls sinks,
/// progress and interrupts under its locks: see Call.
///
/// Thread safety: all methods but set(), without the GIL; nbytes_written() and is_in_call() with or
///   without it.
class SharedWriter {
 public:
  SharedWriter() = default;
  SharedWriter(const SharedWriter&) = delete;
  SharedWriter& operator=(const SharedWriter&) = delete;
  ~SharedWriter() = default;

  void set(FileWriter file) { file_ = std::make_shared<FileWriter>(std::move(file)); }

  /// Returns what `work(file)` returns, which does not change the file.
  ///
  /// Throws: as write_with(), but nothing if abort() is called meanwhile.
  template <typename Work>
  auto read_with(const Work& work) {
    const Call call(*this, Purpose::kRead);
    return work(call.file());
  }

  /// Returns what `work(file)` returns, which writes.
  ///
  /// Throws: Error kWriterClosed after, or if, abort() was called; kInvalidArgument if this thread
  ///   is within a call.
  template <typename Work>
  auto write_with(const Work& work) {
    const Call call(*this, Purpose::kWrite);
    if constexpr (std::is_void_v<decltype(work(call.file()))>) {
      work(call.file());
      call.check_kept();
    } else {
      auto result = work(call.file());
      call.check_kept();
      return result;
    }
  }

  /// Calls `work(file)`, which commits the file.
  ///
  /// Throws: as write_with(); Error kMissingTensors if that is running.
  template <typename Work>
  void commit(const Work& work) {
    const Call call(*this, Purpose::kCommit);
    work(call.file());
  }

  /// Discards the file, unless it was committed. Returns whether it was the first call.
  bool abort();

  /// Returns 0 after abort().
  [[nodiscard]] std::uint64_t nbytes_written() const noexcept;
  /// Returns whether this thread is within a call: one of its callbacks asks.
  [[nodiscard]] bool is_in_call() const noexcept;

 private:
  enum class Purpose : std::uint8_t { kRead, kWrite, kCommit };

  /// A call that uses the file, which it keeps. The calls of a thread are a list.
  class Call {
   public:
    Call(SharedWriter& shared, Purpose purpose);
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;
    ~Call();

    [[nodiscard]] FileWriter& file() const noexcept { return *file_; }
    /// Throws: Error kWriterClosed if the file was discarded meanwhile.
    void check_kept() const;

   private:
    friend class SharedWriter;

    SharedWriter& shared_;
    const Call* outer_;
    Purpose purpose_;
    std::shared_ptr<FileWriter> file_;
  };

  static constinit thread_local const Call* innermost_;

  mutable std::mutex mutex_;          // guards the following
  std::shared_ptr<FileWriter> file_;  // null after abort()
  std::size_t writing_ = 0;
  bool is_committing_ = false;
  std::atomic<bool> is_aborted_ = false;  // read without the mutex
};

}  // namespace safetensors::python
