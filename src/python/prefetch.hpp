// PrefetchLoader: tensors that load in the background, each handed out once.
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

class PrefetchLoader {
 public:
  /// Starts to load the requests, which are of one file. `budget_nbytes`: the most that tensors may
  /// take which are made and not handed out; one is always made.
  PrefetchLoader(std::vector<Request> requests, LoadTarget target, unsigned threads,
                 std::optional<std::uint64_t> budget_nbytes);
  PrefetchLoader(const PrefetchLoader&) = delete;
  PrefetchLoader& operator=(const PrefetchLoader&) = delete;
  ~PrefetchLoader();

  [[nodiscard]] py::list names() const;
  [[nodiscard]] std::size_t size() const noexcept { return requests_.size(); }
  /// Raises SafetensorError for a name it does not have or has handed out, and once it is closed.
  [[nodiscard]] py::object take(py::handle name);
  /// The next pair of name and tensor to have landed; nothing when all were handed out.
  [[nodiscard]] std::optional<py::tuple> next();
  void close();

 private:
  struct State {
    std::optional<Load::Index> index;  // once its tensor was made
    void* stream = nullptr;            // that its memory was made on
    bool is_taken = false;
  };

  /// The load, unless it was closed or is that of a process that this one was forked from. Takes no
  /// lock: a forked process may have a copy that stays locked.
  [[nodiscard]] std::shared_ptr<Load> own_load() const noexcept;
  /// Raises SafetensorError when there is none of its own.
  void check_usable() const;
  /// Raises SafetensorError once closed. GilReleasingLock.
  [[nodiscard]] std::shared_ptr<Load> load() const;
  void add(std::size_t first, std::size_t count, bool is_urgent);
  void fill();
  [[nodiscard]] py::object deliver(std::size_t item);

  // Held while the state is looked at and changed, also while torch makes tensors; not while a load
  // is waited for. Who takes it does not hold the GIL meanwhile.
  mutable std::recursive_mutex mutex_;
  std::vector<Request> requests_;
  std::vector<State> states_;
  std::unordered_map<std::string_view, std::size_t> by_name_;
  std::vector<std::size_t> by_index_;  // the request of each of the load's tensors
  const LoadTarget target_;
  const std::optional<std::uint64_t> budget_nbytes_;
  std::uint64_t waiting_nbytes_ = 0;  // of tensors that are made and not handed out
  std::size_t next_ = 0;              // the requests before it were added
  std::shared_ptr<Load> load_;        // none once closed
  std::weak_ptr<Load> made_;          // the same; set once, so that it needs no lock
  std::atomic<bool> is_closed_{false};
};

}  // namespace safetensors::python
