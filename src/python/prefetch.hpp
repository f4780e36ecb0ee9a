// PrefetchLoader: tensors that load in the background, each returned once.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "load_tensors.hpp"

namespace safetensors::python {

/// Thread safety: all functions may be called from many threads at once, with the GIL.
class PrefetchLoader {
 public:
  /// Starts to load the requests, which must be of one file. `budget_nbytes` limits the memory of
  /// tensors that were made and not yet returned; one tensor may always exist.
  PrefetchLoader(std::vector<Request> requests, LoadTarget target, unsigned threads,
                 std::optional<std::uint64_t> budget_nbytes);
  PrefetchLoader(const PrefetchLoader&) = delete;
  PrefetchLoader& operator=(const PrefetchLoader&) = delete;
  ~PrefetchLoader();

  [[nodiscard]] py::list names() const;
  [[nodiscard]] std::size_t size() const noexcept { return requests_.size(); }
  [[nodiscard]] bool is_closed() const noexcept { return is_closed_; }
  /// Blocks until the tensor is loaded, and returns it. Raises SafetensorError for a name that is
  /// not among the requests or was returned before, and after close().
  [[nodiscard]] py::object take(py::handle name);
  /// Blocks until a tensor is loaded that was not returned yet, and returns its name and the
  /// tensor; nothing when all were returned.
  [[nodiscard]] std::optional<py::tuple> next();
  /// Stops loading and releases the tensors that were not returned. With `cancels`, reads of a
  /// RangeReader are cancelled, also those of others; otherwise it waits for them.
  void close(bool cancels = false);

 private:
  struct State {
    std::optional<Load::Index> index;  // of the load's tensor; nothing until that is made
    void* stream = nullptr;            // current when its memory was allocated
    bool is_taken = false;
  };

  /// Returns the load; nullptr if it was closed or belongs to the parent of this forked process.
  /// Takes no lock: the forked process may have inherited mutex_ locked, by a thread that it lacks.
  [[nodiscard]] std::shared_ptr<Load> own_load() const noexcept;
  /// Raises SafetensorError if own_load() is null.
  void check_usable() const;
  /// Raises SafetensorError for a name that is not among the requests.
  [[noreturn]] void fail_unplanned(std::string_view name) const;
  // The functions below require mutex_.

  /// Returns the load. Raises SafetensorError after close().
  [[nodiscard]] std::shared_ptr<Load> load() const;
  /// Makes the tensors of `count` requests and adds them to the load. Readers take urgent ones
  /// first.
  void add(std::size_t first, std::size_t count, bool is_urgent);
  /// Adds requests in the order of the file while the budget allows.
  void fill();
  [[nodiscard]] py::object deliver(std::size_t item);

  // Guards the members below except made_ and is_closed_. Held while torch makes tensors, which may
  // release the GIL, but not while waiting for the load. A thread that waits for it releases the
  // GIL (GilReleasingLock); otherwise the owner, when it needs the GIL again, and the waiter would
  // deadlock. Recursive, because making a tensor can run Python code that uses this loader.
  mutable std::recursive_mutex mutex_;
  std::vector<Request> requests_;
  std::vector<State> states_;
  std::unordered_map<std::string_view, std::size_t> by_name_;
  std::vector<std::size_t> by_index_;  // from the load's index of a tensor to its request
  const LoadTarget target_;
  const std::optional<std::uint64_t> budget_nbytes_;
  std::uint64_t waiting_nbytes_ = 0;  // of tensors that were made and not returned
  std::size_t next_ = 0;              // all requests before it were added
  std::shared_ptr<Load> load_;        // null after close()
  std::weak_ptr<Load> made_;          // the same load, set once in the constructor
  std::atomic<bool> is_closed_{false};
};

}  // namespace safetensors::python
