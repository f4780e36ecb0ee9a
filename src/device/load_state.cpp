#include "device/load_state.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

#include "base/per_process.hpp"
#include "device/reader.hpp"
#include "io/environment.hpp"
#include "io/parallel.hpp"
#include "io/system.hpp"
#include "io/thread_budget.hpp"
#include "safetensors/error.hpp"

namespace safetensors::device {
namespace {

// How often those who wait look after signals.
constexpr std::chrono::milliseconds kLookAfter{50};
// More than this gain nothing from memory, and lose the processor's cache.
constexpr unsigned kMostReaders = 12;
// Of a slow source, for which readers wait.
constexpr unsigned kFewestSlowReaders = 8;
constexpr unsigned kFewestOnNode = 4;
constexpr unsigned kMostSlowReaders = 16;

/// Asked once for a load: the system may have to count the pages that it has in memory.
std::vector<bool> which_are_slow(std::span<const std::shared_ptr<const ByteSource>> sources) {
  std::vector<bool> are_slow;
  are_slow.reserve(sources.size());
  for (const auto& source : sources) are_slow.push_back(source->concurrency() != 0);
  return are_slow;
}

}  // namespace

LoadState::LoadState(Context* context, std::vector<std::shared_ptr<const ByteSource>> sources,
                     const LoadOptions& options)
    : context_(context),
      sources_(std::move(sources)),
      is_slow_(which_are_slow(sources_)),
      config_(load_config()),
      threads_wanted_(options.threads),
      generation_(fork_generation()) {}

LoadState::~LoadState() {
  if (context_ == nullptr) return;
  try {
    const ScopedContext current(context_->driver(), context_->handle());
    for (const auto& batch : batches_) {
      if (batch->ready != nullptr) context_->driver().destroy(batch->ready);
    }
  } catch (const Error&) {  // a device that died has taken its events along
    return;
  }
}

std::shared_ptr<const ByteSource> LoadState::source(std::uint32_t number) const {
  {
    const std::lock_guard lock(files_mutex_);
    for (const OpenFile& each : open_files_) {
      if (each.file && each.source == number) return each.file;
    }
  }
  std::shared_ptr<const ByteSource> opened = sources_[number]->keep_open();
  if (!opened) return sources_[number];
  const std::lock_guard lock(files_mutex_);
  open_files_[next_file_++ % open_files_.size()] = {number, opened};
  return opened;
}

bool LoadState::is_own() const noexcept { return generation_ == fork_generation(); }

void LoadState::check_own() const {
  if (is_own()) return;
  fail(ErrorCode::kInvalidArgument,
       "this load belongs to the process that this one was forked from");
}

std::uint64_t LoadState::total_nbytes() const {
  const std::lock_guard lock(mutex_);
  return total_nbytes_;
}

void LoadState::share_readers(unsigned loads) {
  const std::lock_guard lock(mutex_);
  loads_at_once_ = loads;
}

void LoadState::finish() {
  const std::lock_guard lock(mutex_);
  is_finished_ = true;
  notify_all();
}

void LoadState::notify_all() noexcept {
  work_.notify_all();
  change_.notify_all();
  end_.notify_all();
}

std::optional<Claim> LoadState::try_claim() {
  const std::lock_guard lock(mutex_);
  if (is_stopping_ || queue_.empty()) return std::nullopt;
  Queued& queued = queue_.front();
  const Claim claim(*queued.batch, queued.next);
  if (++queued.next == queued.end) queue_.pop_front();
  return claim;
}

bool LoadState::wait_for_work() {
  std::unique_lock lock(mutex_);
  work_.wait(lock, [&] { return is_stopping_ || is_finished_ || !queue_.empty(); });
  if (!is_stopping_ && !queue_.empty()) return true;
  --readers_;
  return false;
}

bool LoadState::may_retire(const Claim& claim) {
  const std::lock_guard lock(mutex_);
  if (readers_ < 2) return false;
  --readers_;
  queue_.push_front({&claim.batch(), claim.number(), claim.number() + 1});
  work_.notify_one();
  return true;
}

void LoadState::landed(const Claim& claim) {
  std::uint64_t nbytes = 0;
  const std::lock_guard lock(mutex_);
  claim.for_each_part([&](const Part& part, std::uint32_t tensor) {
    nbytes += part.nbytes;
    if (--parts_left_[tensor] == 0) ready_.push_back(tensor);
  });
  --chunks_left_;
  done_nbytes_ += nbytes;
  change_.notify_all();
  if (chunks_left_ == 0) end_.notify_all();
}

Error LoadState::named(const Error& error, const Claim& claim) const {
  std::optional<std::uint32_t> first;
  std::uint32_t last = 0;
  claim.for_each_part([&](const Part&, std::uint32_t tensor) {
    if (!first) first = tensor;
    last = tensor;
  });
  if (!first) return error;
  const std::lock_guard lock(mutex_);
  const std::string name(names_[*first]);
  if (last == *first)
    return error.with_context("Error while loading tensor `" + name + "`: ", {}, name);
  return error.with_context("Error while loading tensor `" + name + "` or one of those up to `" +
                            std::string(names_[last]) + "`: ");
}

void LoadState::fail_with(std::exception_ptr error, const Claim* claim) noexcept {
  if (claim != nullptr) {
    try {
      std::rethrow_exception(error);
    } catch (const Error& plain) {
      try {
        error = std::make_exception_ptr(named(plain, *claim));
      } catch (const std::bad_alloc&) {  // then without the name
        error = std::current_exception();
      }
    } catch (...) {  // another's error: as it is
      error = std::current_exception();
    }
  }
  const std::lock_guard lock(mutex_);
  if (!error_) error_ = std::move(error);
  is_stopping_ = true;
  notify_all();
}

unsigned LoadState::readers_wanted() const {
  std::size_t chunks = 0;
  for (const Queued& queued : queue_) chunks += queued.end - queued.next;
  unsigned wanted = threads_wanted_ != 0 ? threads_wanted_ : config_.threads;
  if (wanted == 0) {
    const bool is_slow = std::find(is_slow_.begin(), is_slow_.end(), true) != is_slow_.end();
    const unsigned cores = io::processor_count();
    wanted = is_slow ? std::clamp(cores, kFewestSlowReaders, kMostSlowReaders)
                     : std::min(cores, kMostReaders);
    wanted = (wanted + loads_at_once_ - 1) / loads_at_once_;
  }
  if (!is_finished_) return wanted;  // more may come
  return static_cast<unsigned>(std::clamp<std::size_t>(chunks, 1, wanted));
}

void LoadState::read(unsigned number, const std::function<void()>& between) noexcept {
  try {
    if (context_ == nullptr) {
      read_for_host(*this, between);
    } else {
      context_->check_process();
      read_for_device(*this, number, between);
    }
  } catch (...) {
    fail_with(std::current_exception(), nullptr);  // unless it was noted before, with a name
    const std::lock_guard lock(mutex_);
    --readers_;
  }
}

bool LoadState::start_threads() {
  const bool stays_on_node = context_ != nullptr && io::env_flag("SAFETENSORS_NUMA").value_or(true);
  const std::lock_guard join_lock(join_mutex_);
  unsigned wanted = 0;
  {
    const std::lock_guard lock(mutex_);
    if (is_started_ || is_stopping_) return true;
    is_started_ = true;
    wanted = readers_wanted();
  }
  const unsigned count = io::acquire_threads(wanted);
  unsigned started = 0;
  try {
    threads_.reserve(count);
    for (; started < count; ++started) {
      {
        const std::lock_guard lock(mutex_);
        ++readers_;
      }
      threads_.emplace_back([this, started, count, stays_on_node] {
        // Memory is then near the processors and the device; not if that leaves them too few.
        if (stays_on_node) {
          (void)io::stay_on_node(context_->properties().numa_node, std::min(kFewestOnNode, count));
        }
        read(started, [] {});
        io::release_threads(1);
      });
      ++thread_count_;
    }
  } catch (...) {
    io::release_threads(count - started);
    const std::lock_guard lock(mutex_);
    if (readers_ > started) --readers_;
    if (started == 0) is_started_ = false;  // with fewer threads it goes on
  }
  return started != 0;
}

void LoadState::start() { (void)start_threads(); }

void LoadState::need_threads() {
  if (!start_threads()) fail(ErrorCode::kIo, "no thread can be started", EAGAIN);
}

void LoadState::join() noexcept {
  const std::lock_guard join_lock(join_mutex_);
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void LoadState::stop() noexcept {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
    notify_all();
  }
  join();
}

std::unique_lock<std::mutex> LoadState::wait_until(std::condition_variable& change,
                                                   const std::function<bool()>& is_so,
                                                   const Interrupt& interrupt) {
  using Clock = std::chrono::steady_clock;
  std::unique_lock lock(mutex_);
  // By the clock and not by how a wait ended: a busy load notifies all the time.
  if (!interrupt) change.wait(lock, is_so);
  Clock::time_point next = Clock::now() + kLookAfter;
  while (!is_so()) {
    change.wait_until(lock, next);
    if (Clock::now() < next) continue;
    lock.unlock();
    interrupt();
    check_own();  // the lock may be held by a thread that a forked process does not have
    lock.lock();
    next = Clock::now() + kLookAfter;
  }
  return lock;
}

bool LoadState::is_small() const {
  const std::lock_guard lock(mutex_);
  return !is_started_ && is_finished_ && readers_wanted() == 1;
}

void LoadState::wait(const Interrupt& interrupt, const Load::Progress& progress) {
  const Interrupt report = [&] {
    if (interrupt) interrupt();
    if (!progress) return;
    const std::uint64_t total = total_nbytes();
    progress(done_nbytes_, total);
  };
  try {
    if (is_small() || !start_threads()) {
      {
        const std::lock_guard lock(mutex_);
        is_started_ = true;
        ++readers_;
      }
      io::InterruptTimer timer(report);
      read(0, [&] {
        timer.poll();
        check_own();
      });
    } else {
      (void)wait_until(end_, [&] { return is_all_landed() || is_stopping_; }, report);
    }
  } catch (...) {
    if (is_own()) stop();
    throw;
  }
  join();
  {
    const std::lock_guard lock(mutex_);
    if (error_) std::rethrow_exception(error_);
  }
  report();
}

bool LoadState::wait_for(Load::Index tensor, const Interrupt& interrupt) {
  {
    const std::lock_guard lock(mutex_);
    if (tensor >= names_.size()) {
      fail(ErrorCode::kInvalidArgument, "tensor " + std::to_string(tensor) + " was not added");
    }
  }
  need_threads();
  const auto lock =
      wait_until(change_, [&] { return parts_left_[tensor] == 0 || is_stopping_; }, interrupt);
  if (parts_left_[tensor] == 0) return true;
  if (error_) std::rethrow_exception(error_);
  return false;
}

std::optional<Load::Index> LoadState::next_ready(const Interrupt& interrupt) {
  need_threads();
  const auto lock = wait_until(
      change_, [&] { return !ready_.empty() || is_stopping_ || handed_out_ == names_.size(); },
      interrupt);
  if (!ready_.empty()) {
    const Load::Index tensor = ready_.front();
    ready_.pop_front();
    ++handed_out_;
    return tensor;
  }
  if (error_) std::rethrow_exception(error_);
  return std::nullopt;
}

}  // namespace safetensors::device
