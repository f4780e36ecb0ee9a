#include "device/chunk_queue.hpp"

#include <chrono>
#include <new>
#include <utility>

#include "safetensors/error.hpp"

namespace safetensors::device {
namespace {

constexpr std::chrono::milliseconds kPollInterval{50};

}  // namespace

Load::Index ChunkQueue::add(std::unique_ptr<Batch> batch, std::span<const LoadTensor> tensors,
                            bool is_first) {
  const std::lock_guard lock(mutex_);
  if (is_finished_) fail(ErrorCode::kInvalidArgument, "tensors cannot be added after finish()");
  batch->first = static_cast<Load::Index>(names_.size());
  batch->number = batches_.size() + 1;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    names_.push_back(tensors[i].name);
    parts_left_.push_back(batch->parts_per_tensor[i]);
    if (parts_left_.back() == 0) ready_.push_back(batch->first + static_cast<Load::Index>(i));
  }
  batches_.push_back(std::move(batch));
  const Batch& added = *batches_.back();
  total_nbytes_ += added.nbytes;
  incomplete_chunks_ += added.plan.chunk_count();
  const Unclaimed chunks{&added, 0, added.plan.chunk_count()};
  if (chunks.end != 0 && is_first) queue_.push_front(chunks);
  if (chunks.end != 0 && !is_first) queue_.push_back(chunks);
  notify_all();
  return added.first;
}

void ChunkQueue::finish() {
  const std::lock_guard lock(mutex_);
  is_finished_ = true;
  notify_all();
}

void ChunkQueue::stop() noexcept {
  const std::lock_guard lock(mutex_);
  is_stopping_ = true;
  notify_all();
}

void ChunkQueue::notify_all() noexcept {
  work_changed_.notify_all();
  ready_changed_.notify_all();
  all_ready_.notify_all();
}

/// Blocks until `predicate()` holds, and returns the lock that keeps it so.
std::unique_lock<std::mutex> ChunkQueue::wait_until(std::condition_variable& change,
                                                    const std::function<bool()>& predicate,
                                                    const Interrupt& poll, const Help& help) {
  using Clock = std::chrono::steady_clock;
  std::unique_lock lock(mutex_);
  if (!poll && !help) change.wait(lock, predicate);
  // The clock decides when to poll, not a wait that timed out: in a busy load every wait ends
  // early.
  Clock::time_point next = Clock::now() + kPollInterval;
  const auto is_enough = [&] {
    const std::lock_guard again(mutex_);
    return predicate();
  };
  while (!predicate()) {
    if (help && !queue_.empty()) {
      lock.unlock();
      help(is_enough);
      lock.lock();
    } else {
      (void)change.wait_until(lock, next, predicate);
    }
    if (Clock::now() < next) continue;
    lock.unlock();
    if (poll) poll();
    lock.lock();
    next = Clock::now() + kPollInterval;
  }
  return lock;
}

void ChunkQueue::wait_for_all(const Interrupt& poll) {
  const auto is_over = [&] { return is_stopping_ || (is_finished_ && incomplete_chunks_ == 0); };
  (void)wait_until(all_ready_, is_over, poll, {});
}

bool ChunkQueue::wait_for(Load::Index tensor, const Interrupt& poll, const Help& help) {
  const auto is_over = [&] { return is_stopping_ || parts_left_[tensor] == 0; };
  const auto lock = wait_until(ready_changed_, is_over, poll, help);
  if (parts_left_[tensor] == 0) return true;
  if (error_) std::rethrow_exception(error_);
  return false;
}

std::optional<Load::Index> ChunkQueue::next_ready(const Interrupt& poll, const Help& help) {
  const auto is_over = [&] {
    return is_stopping_ || !ready_.empty() || returned_ == names_.size();
  };
  const auto lock = wait_until(ready_changed_, is_over, poll, help);
  if (!ready_.empty()) {
    const Load::Index tensor = ready_.front();
    ready_.pop_front();
    ++returned_;
    return tensor;
  }
  if (error_) std::rethrow_exception(error_);
  return std::nullopt;
}

void ChunkQueue::rethrow_error() const {
  const std::lock_guard lock(mutex_);
  if (error_) std::rethrow_exception(error_);
}

void ChunkQueue::check_added(Load::Index tensor) const {
  const std::lock_guard lock(mutex_);
  if (tensor < names_.size()) return;
  fail(ErrorCode::kInvalidArgument, "tensor " + std::to_string(tensor) + " was not added");
}

std::optional<std::size_t> ChunkQueue::final_chunk_count() const {
  const std::lock_guard lock(mutex_);
  if (!is_finished_) return std::nullopt;
  std::size_t count = 0;
  for (const Unclaimed& chunks : queue_) count += chunks.end - chunks.next;
  return count;
}

std::uint64_t ChunkQueue::total_nbytes() const {
  const std::lock_guard lock(mutex_);
  return total_nbytes_;
}

void ChunkQueue::add_reader() {
  const std::lock_guard lock(mutex_);
  ++readers_;
}

void ChunkQueue::remove_reader() {
  const std::lock_guard lock(mutex_);
  --readers_;
}

std::optional<ChunkTask> ChunkQueue::try_claim() {
  const std::lock_guard lock(mutex_);
  if (is_stopping_ || queue_.empty()) return std::nullopt;
  Unclaimed& chunks = queue_.front();
  const ChunkTask task(*chunks.batch, chunks.next);
  if (++chunks.next == chunks.end) queue_.pop_front();
  return task;
}

bool ChunkQueue::wait_for_work() {
  std::unique_lock lock(mutex_);
  work_changed_.wait(lock, [&] { return is_stopping_ || is_finished_ || !queue_.empty(); });
  if (!is_stopping_ && !queue_.empty()) return true;
  --readers_;
  return false;
}

void ChunkQueue::complete(const ChunkTask& task) {
  std::uint64_t nbytes = 0;
  const std::lock_guard lock(mutex_);
  task.for_each_tensor([&](std::uint64_t loaded, std::uint32_t tensor) {
    nbytes += loaded;
    if (--parts_left_[tensor] == 0) ready_.push_back(tensor);
  });
  --incomplete_chunks_;
  done_nbytes_ += nbytes;
  ready_changed_.notify_all();
  if (incomplete_chunks_ == 0) all_ready_.notify_all();
}

bool ChunkQueue::try_retire(const ChunkTask& task) {
  const std::lock_guard lock(mutex_);
  if (readers_ < 2) return false;
  --readers_;
  queue_.push_front({&task.batch(), task.number(), task.number() + 1});
  work_changed_.notify_one();
  return true;
}

void ChunkQueue::fail_with(std::exception_ptr error, const ChunkTask* task) noexcept {
  if (task != nullptr) error = with_names(error, *task);
  const std::lock_guard lock(mutex_);
  if (!error_) error_ = std::move(error);
  is_stopping_ = true;
  notify_all();
}

std::exception_ptr ChunkQueue::with_names(const std::exception_ptr& error,
                                          const ChunkTask& task) const noexcept {
  try {
    std::rethrow_exception(error);
  } catch (const Error& plain) {
    if (plain.code() == ErrorCode::kDamaged) return error;  // names the one tensor
    try {
      return std::make_exception_ptr(with_names(plain, task));
    } catch (const std::bad_alloc&) {  // report the error without the names
      return error;
    }
  } catch (...) {  // a source of the caller's may throw any type
    return error;
  }
}

Error ChunkQueue::with_names(const Error& error, const ChunkTask& task) const {
  std::optional<std::uint32_t> first;
  std::uint32_t last = 0;
  task.for_each_tensor([&](std::uint64_t, std::uint32_t tensor) {
    if (!first) first = tensor;
    last = tensor;
  });
  if (!first) return error;
  const std::lock_guard lock(mutex_);
  const std::string name(names_[*first]);
  const std::string text = "Error while loading tensor `" + name + "`";
  if (last == *first) return error.with_context(text + ": ", {}, name);
  return error.with_context(text + " or one of those up to `" + std::string(names_[last]) + "`: ");
}

}  // namespace safetensors::device
