#include "prefetch.hpp"

#include <algorithm>
#include <utility>

#include "errors.hpp"
#include "gil.hpp"
#include "lazy_value.hpp"
#include "python_source.hpp"

namespace safetensors::python {
namespace {

/// Locks a mutex. Releases the GIL while it waits, because the owner of the mutex may need the GIL
/// before it can unlock.
class GilReleasingLock {
 public:
  explicit GilReleasingLock(std::recursive_mutex& mutex) : mutex_(mutex) {
    if (mutex_.try_lock()) return;
    const GilRelease release;
    mutex_.lock();
  }
  GilReleasingLock(const GilReleasingLock&) = delete;
  GilReleasingLock& operator=(const GilReleasingLock&) = delete;
  ~GilReleasingLock() { mutex_.unlock(); }

 private:
  std::recursive_mutex& mutex_;
};

/// The loads that may have running threads, which must be stopped before the interpreter ends.
///
/// A thread that holds `mutex` also holds the GIL, and does not release it meanwhile. os.fork()
/// needs the GIL (without one, it stops all threads that are attached to the interpreter), so a
/// forked process never inherits the mutex locked.
struct LoadRegistry {
  std::mutex mutex;
  std::vector<std::weak_ptr<Load>> loads;
};

LoadRegistry& load_registry() {
  static constinit LazyValue<LoadRegistry> all;
  return all.get([] { return LoadRegistry(); });
}

std::shared_ptr<Load> make_load(const Request* first, const LoadTarget& target, unsigned threads) {
  std::shared_ptr<Load> load;
  {
    const GilRelease release;
    std::vector<std::shared_ptr<const ByteSource>> sources;
    if (first != nullptr) sources.push_back(first->file->file().source());
    load = std::make_shared<Load>(engine_device(target), std::move(sources),
                                  LoadOptions{.threads = threads});
  }
  LoadRegistry& all = load_registry();
  const std::lock_guard lock(all.mutex);
  std::erase_if(all.loads, [](const std::weak_ptr<Load>& each) { return each.expired(); });
  all.loads.push_back(load);
  return load;
}

/// Stops all loads of this process. Registered with atexit.
void stop_loads() {
  stop_python_sources();
  std::vector<std::weak_ptr<Load>> loads;
  {
    LoadRegistry& all = load_registry();
    const std::lock_guard lock(all.mutex);
    loads.swap(all.loads);
  }
  const GilRelease release;
  for (const std::weak_ptr<Load>& each : loads) {
    const std::shared_ptr<Load> load = each.lock();
    if (load && load->is_own()) load->stop();
  }
}

void stop_loads_at_exit() {
  // Two threads may both register it. Running it twice does no harm.
  static constinit std::atomic<bool> is_registered{false};
  if (is_registered) return;
  py::module_::import("atexit").attr("register")(py::cpp_function(&stop_loads));
  is_registered = true;
}

[[noreturn]] void fail_closed() {
  raise_safetensor_error(ErrorCode::kInvalidArgument, "prefetch loader closed");
}

}  // namespace

PrefetchLoader::PrefetchLoader(std::vector<Request> requests, LoadTarget target, unsigned threads,
                               std::optional<std::uint64_t> budget_nbytes)
    : requests_(std::move(requests)),
      states_(requests_.size()),
      target_(std::move(target)),
      budget_nbytes_(budget_nbytes) {
  for (std::size_t i = 0; i < requests_.size(); ++i) by_name_.emplace(requests_[i].info->name, i);
  // torch must use the device before the core does: it raises a clear error in a forked process.
  const std::size_t first = std::min<std::size_t>(1, requests_.size());
  make_tensors(std::span(requests_).first(budget_nbytes_ ? first : requests_.size()), target_);
  stop_loads_at_exit();
  load_ = make_load(requests_.empty() ? nullptr : requests_.data(), target_, threads);
  made_ = load_;
  fill();
  load_->start();
}

PrefetchLoader::~PrefetchLoader() {
  const std::shared_ptr<Load> load = std::move(load_);
  if (!load || !load->is_own()) return;
  const GilRelease release;
  load->stop();  // before the tensors, and the memory that is being written, are released
}

std::shared_ptr<Load> PrefetchLoader::own_load() const noexcept {
  if (is_closed_) return nullptr;
  std::shared_ptr<Load> load = made_.lock();
  return load && load->is_own() ? load : nullptr;
}

void PrefetchLoader::check_usable() const {
  if (own_load()) return;
  if (is_closed_) fail_closed();
  raise_safetensor_error(
      ErrorCode::kInvalidArgument,
      "this prefetch loader belongs to the process that this one was forked from");
}

std::shared_ptr<Load> PrefetchLoader::load() const {
  if (!load_) fail_closed();
  return load_;
}

void PrefetchLoader::add(std::size_t first, std::size_t count, bool is_urgent) {
  const std::span<Request> requests = std::span(requests_).subspan(first, count);
  make_tensors(requests, target_);
  std::vector<LoadTensor> tensors;
  tensors.reserve(count);
  for (const Request& request : requests) tensors.push_back(load_tensor_of(request, 0));
  void* const stream = current_stream(target_);
  const Load::Index index = load_->add(tensors, stream, is_urgent);
  for (std::size_t i = first; i < first + count; ++i) {
    states_[i].index = index + static_cast<Load::Index>(i - first);
    states_[i].stream = stream;
    by_index_.push_back(i);
    waiting_nbytes_ += requests_[i].nbytes;
  }
  if (by_index_.size() == requests_.size()) load_->finish();
}

void PrefetchLoader::fill() {
  // At exit: do not let torch allocate on a thread that Python may end inside that call.
  if (load_->is_stopped()) return;
  if (requests_.empty()) load_->finish();
  // Wait until half of the budget is free, because each addition costs an event and its own chunks.
  if (budget_nbytes_ && waiting_nbytes_ > *budget_nbytes_ / 2) return;
  while (next_ < requests_.size()) {
    if (states_[next_].index) {
      ++next_;
      continue;
    }
    std::uint64_t nbytes = waiting_nbytes_;
    std::size_t last = next_;
    while (last < requests_.size() && !states_[last].index) {
      const bool fits = !budget_nbytes_ || (requests_[last].nbytes <= *budget_nbytes_ &&
                                            nbytes <= *budget_nbytes_ - requests_[last].nbytes);
      if (!fits && nbytes != 0) break;
      nbytes += requests_[last].nbytes;
      ++last;
    }
    if (last == next_) return;
    add(next_, last - next_, false);
    next_ = last;
  }
}

py::list PrefetchLoader::names() const {
  py::list list(requests_.size());
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    PyList_SET_ITEM(list.ptr(), static_cast<Py_ssize_t>(i),
                    to_unicode(requests_[i].info->name).release().ptr());
  }
  return list;
}

py::object PrefetchLoader::deliver(std::size_t item) {
  // When the tensor is dropped, torch reuses its memory on the stream that it was allocated on. If
  // the caller uses another stream, torch must first wait for the caller's work there.
  if (current_stream(target_) != states_[item].stream) {
    torch_hooks().attr("record_stream")(requests_[item].tensor, target_.index());
  }
  waiting_nbytes_ -= requests_[item].nbytes;
  return std::exchange(requests_[item].tensor, py::object());
}

void PrefetchLoader::fail_unplanned(std::string_view name) const {
  const py::object suggestions = py::module_::import("safetensors._near_names").attr("suggestions");
  const auto near = py::cast<std::string>(suggestions(to_unicode(name), names()));
  const std::string tensor(name);
  fail(ErrorCode::kTensorNotFound, tensor + " is not in the prefetch plan" + near,
       {.path = requests_.empty() ? std::filesystem::path() : requests_[0].file->file().path(),
        .subject = tensor});
}

py::object PrefetchLoader::take(py::handle name) {
  const std::string_view text = text_of(name, "name");
  std::shared_ptr<Load> load;
  check_usable();
  const auto found = by_name_.find(text);
  if (found == by_name_.end()) fail_unplanned(text);
  const std::size_t item = found->second;
  {
    const GilReleasingLock lock(mutex_);
    load = this->load();
    if (states_[item].is_taken) {
      raise_safetensor_error(
          ErrorCode::kInvalidArgument,
          "tensor already delivered (prefetch hands each tensor out once, via take or "
          "iteration): " +
              std::string(text),
          text);
    }
    if (!states_[item].index) add(item, 1, true);
    fill();
    states_[item].is_taken = true;  // before waiting: of several threads, only one gets it
  }
  bool is_there = false;
  try {
    const GilRelease release;
    is_there = load->wait_for(*states_[item].index, python_interrupt());
  } catch (...) {
    const GilReleasingLock lock(mutex_);
    states_[item].is_taken = false;
    throw;
  }
  const GilReleasingLock lock(mutex_);
  if (!is_there || !load_) fail_closed();
  return deliver(item);
}

std::optional<py::tuple> PrefetchLoader::next() {
  while (true) {
    std::shared_ptr<Load> load;
    check_usable();
    {
      const GilReleasingLock lock(mutex_);
      load = this->load();
      fill();
    }
    std::optional<Load::Index> index;
    {
      const GilRelease release;
      index = load->next_ready(python_interrupt());
    }
    const GilReleasingLock lock(mutex_);
    if (!load_) fail_closed();
    if (!index) {
      if (load->is_stopped()) fail_closed();
      if (by_index_.size() == requests_.size()) return std::nullopt;
      // All tensors that were made are being returned to other threads: make the next one
      // regardless of the budget.
      while (states_[next_].index) ++next_;
      add(next_, 1, false);
      continue;
    }
    const std::size_t item = by_index_[*index];
    if (states_[item].is_taken) continue;
    states_[item].is_taken = true;
    return py::make_tuple(to_unicode(requests_[item].info->name), deliver(item));
  }
}

void PrefetchLoader::close(bool cancels) {
  const std::shared_ptr<Load> load = own_load();
  if (!load) return;
  std::vector<py::object> dropped;
  {
    const GilReleasingLock lock(mutex_);
    if (is_closed_.exchange(true)) return;
    load_.reset();
    for (Request& request : requests_) dropped.push_back(std::move(request.tensor));
  }
  if (cancels && !requests_.empty()) cancel_reads(*unchecked(requests_[0].file->file().source()));
  const GilRelease release;
  load->stop();  // before the tensors, and the memory that is being written, are released
}

}  // namespace safetensors::python
