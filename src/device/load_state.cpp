#include "device/load_state.hpp"

#include <algorithm>
#include <chrono>
#include <limits>
#include <system_error>
#include <utility>

#include "device/reader.hpp"
#include "io/process.hpp"
#include "io/run_reader.hpp"
#include "io/thread_tokens.hpp"
#include "io/workers.hpp"

namespace safetensors::device {
namespace {

// How often those who wait look after signals.
constexpr std::chrono::milliseconds kLookAfter{50};
// More than this gain nothing from memory, and lose the processor's cache.
constexpr unsigned kMostReaders = 12;
// Of a slow source, for which readers wait.
constexpr unsigned kFewestSlowReaders = 8;
constexpr unsigned kMostSlowReaders = 16;

bool fits(std::uint64_t begin, std::uint64_t nbytes, std::uint64_t end) noexcept {
  return begin <= end && nbytes <= end - begin;
}

}  // namespace

LoadState::LoadState(Context* context, std::vector<std::shared_ptr<const ByteSource>> sources,
                     const LoadOptions& options)
    : context_(context),
      sources_(std::move(sources)),
      config_(load_config()),
      threads_wanted_(options.threads),
      generation_(io::fork_generation()) {}

LoadState::~LoadState() {
  if (context_ == nullptr) return;
  try {
    const Entered entered(context_->driver(), context_->handle());
    for (const auto& batch : batches_) {
      if (batch->ready != nullptr) context_->driver().destroy(batch->ready);
    }
  } catch (const Error&) {  // a device that died has taken its events along
    return;
  }
}

bool LoadState::is_own() const noexcept { return generation_ == io::fork_generation(); }

void LoadState::check(const LoadTensor& tensor) const {
  const auto refuse = [&](const std::string& why) {
    fail(ErrorCode::kInvalidArgument, "tensor `" + std::string(tensor.name) + "` " + why);
  };
  if (tensor.source >= sources_.size()) refuse("is of a source that the load has not");
  if (tensor.nbytes == 0) return;
  const std::uint64_t end = sources_[tensor.source]->size();
  if (!tensor.runs && !fits(tensor.offset, tensor.nbytes, end)) {
    refuse("reaches past the end of its source");
  }
  if (tensor.runs && (tensor.offset > end || tensor.runs->nbytes() != tensor.nbytes)) {
    refuse("has another size than its runs");
  }
  if (tensor.to == 0) refuse("has no destination");
  if (!fits(tensor.to, tensor.nbytes, std::numeric_limits<std::uint64_t>::max())) {
    refuse("has a destination that cannot be");
  }
}

/// A batch, and how many chunks have bytes of each tensor.
struct LoadState::Plan {
  std::unique_ptr<Batch> batch = std::make_unique<Batch>();
  std::vector<std::uint32_t> parts;
  std::uint64_t nbytes = 0;
};

LoadState::Plan LoadState::plan(std::span<const LoadTensor> tensors) const {
  Plan made;
  made.parts.resize(tensors.size());
  Batch& batch = *made.batch;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const LoadTensor& tensor = tensors[i];
    if (tensor.nbytes == 0) continue;
    made.nbytes += tensor.nbytes;
    const auto index = static_cast<Load::Index>(i);
    if (!tensor.runs) {
      batch.pieces.push_back({tensor.source, index, tensor.offset, tensor.nbytes, tensor.to});
    } else if (io::are_pieces(*tensor.runs, config_.chunk_nbytes)) {
      io::RunCursor cursor(*tensor.runs, 0);
      const std::uint64_t run_nbytes = tensor.runs->run_nbytes;
      for (std::uint64_t at = 0; at < tensor.nbytes; at += run_nbytes, cursor.next()) {
        batch.pieces.push_back(
            {tensor.source, index, tensor.offset + cursor.position(), run_nbytes, tensor.to + at});
      }
    } else {
      batch.run_pieces.push_back({tensor.source, index, tensor.offset, tensor.to, *tensor.runs});
    }
  }
  std::vector<std::uint64_t> sizes;
  sizes.reserve(sources_.size());
  for (const auto& source : sources_) sizes.push_back(source->size());
  batch.chunks = io::plan_chunks(batch.pieces, sizes, config_.chunk_nbytes);
  for (std::size_t i = 0; i < batch.run_pieces.size(); ++i) {
    io::plan_run_chunks(batch.run_pieces[i], i, config_.chunk_nbytes, batch.run_chunks);
  }
  for (std::size_t i = 0; i < batch.chunk_count(); ++i) {
    Claim(batch, i).for_each_part(
        [&](const io::Part&, std::uint32_t tensor) { ++made.parts[tensor]; });
  }
  return made;
}

Event LoadState::record(Stream stream) const {
  const Driver& driver = context_->driver();
  context_->check_process();
  const Entered entered(driver, context_->handle());
  const CaptureRelaxed relaxed(driver);
  if (driver.is_capturing(stream)) {
    fail(ErrorCode::kInvalidArgument,
         "nothing can be loaded while the current stream is being captured into a graph");
  }
  const Event event = driver.make_event();
  try {
    driver.record(event, stream);
  } catch (...) {
    driver.destroy(event);
    throw;
  }
  return event;
}

Load::Index LoadState::take_on(Plan& made, std::span<const LoadTensor> tensors, bool is_first) {
  Batch& batch = *made.batch;
  const std::lock_guard lock(mutex_);
  if (is_finished_) fail(ErrorCode::kInvalidArgument, "the load was said to be finished");
  batch.first = static_cast<Load::Index>(names_.size());
  batch.number = batches_.size() + 1;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    names_.push_back(tensors[i].name);
    parts_left_.push_back(made.parts[i]);
    if (made.parts[i] == 0) ready_.push_back(batch.first + static_cast<Load::Index>(i));
  }
  batches_.push_back(std::move(made.batch));
  total_nbytes_ += made.nbytes;
  chunks_left_ += batch.chunk_count();
  const Queued queued{&batch, 0, batch.chunk_count()};
  if (queued.end != 0 && is_first) queue_.push_front(queued);
  if (queued.end != 0 && !is_first) queue_.push_back(queued);
  work_.notify_all();
  change_.notify_all();
  return batch.first;
}

Load::Index LoadState::add(std::span<const LoadTensor> tensors, Stream stream, bool is_first) {
  for (const LoadTensor& tensor : tensors) check(tensor);
  Plan made = plan(tensors);
  const bool has_chunks = made.batch->chunk_count() != 0;
  if (context_ != nullptr && has_chunks) made.batch->ready = record(stream);
  try {
    return take_on(made, tensors, is_first);
  } catch (...) {
    if (made.batch && made.batch->ready != nullptr) {
      const Entered entered(context_->driver(), context_->handle());
      context_->driver().destroy(made.batch->ready);
    }
    throw;
  }
}

void LoadState::finish() {
  const std::lock_guard lock(mutex_);
  is_finished_ = true;
  work_.notify_all();
  change_.notify_all();
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
  claim.for_each_part([&](const io::Part& part, std::uint32_t tensor) {
    nbytes += part.nbytes;
    if (--parts_left_[tensor] == 0) ready_.push_back(tensor);
  });
  --chunks_left_;
  done_nbytes_ += nbytes;
  change_.notify_all();
}

std::string LoadState::names_of(const Claim& claim) const {
  std::optional<std::uint32_t> first;
  std::uint32_t last = 0;
  claim.for_each_part([&](const io::Part&, std::uint32_t tensor) {
    if (!first) first = tensor;
    last = tensor;
  });
  if (!first) return {};
  const std::lock_guard lock(mutex_);
  const std::string name = "tensor `" + std::string(names_[*first]) + "`";
  if (last == *first) return name;
  return name + " or one of those up to `" + std::string(names_[last]) + "`";
}

void LoadState::fail_with(std::exception_ptr error, const Claim* claim) noexcept {
  if (claim != nullptr) {
    try {
      std::rethrow_exception(error);
    } catch (const Error& plain) {
      try {
        error = std::make_exception_ptr(
            Error(plain.code(), "Error while loading " + names_of(*claim) + ": " + plain.what(),
                  plain.os_error()));
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
  work_.notify_all();
  change_.notify_all();
}

unsigned LoadState::readers_wanted() const {
  std::size_t chunks = 0;
  for (const Queued& queued : queue_) chunks += queued.end - queued.next;
  unsigned wanted = threads_wanted_ != 0 ? threads_wanted_ : config_.threads;
  if (wanted == 0) {
    const bool is_slow = std::any_of(sources_.begin(), sources_.end(),
                                     [](const auto& source) { return source->concurrency() != 0; });
    const unsigned cores = io::processor_count();
    wanted = is_slow ? std::clamp(cores, kFewestSlowReaders, kMostSlowReaders)
                     : std::min(cores, kMostReaders);
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

void LoadState::start_threads() {
  const std::lock_guard join_lock(join_mutex_);
  unsigned wanted = 0;
  {
    const std::lock_guard lock(mutex_);
    if (is_started_ || is_stopping_) return;
    is_started_ = true;
    wanted = readers_wanted();
  }
  const unsigned count = io::take_threads(wanted);
  unsigned started = 0;
  try {
    threads_.reserve(count);
    for (; started < count; ++started) {
      {
        const std::lock_guard lock(mutex_);
        ++readers_;
      }
      threads_.emplace_back([this, started] {
        read(started, [] {});
        io::give_threads(1);
      });
      ++thread_count_;
    }
  } catch (...) {
    io::give_threads(count - started);
    const std::lock_guard lock(mutex_);
    if (readers_ > started) --readers_;
    if (started == 0) throw;  // no thread to be had: with fewer it goes on
  }
}

void LoadState::start() { start_threads(); }

void LoadState::join() noexcept {
  const std::lock_guard join_lock(join_mutex_);
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void LoadState::stop() noexcept {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
    work_.notify_all();
    change_.notify_all();
  }
  join();
}

std::unique_lock<std::mutex> LoadState::wait_until(const std::function<bool()>& is_so,
                                                   const Interrupt& interrupt) {
  using Clock = std::chrono::steady_clock;
  std::unique_lock lock(mutex_);
  // By the clock and not by how a wait ended: a busy load notifies all the time.
  for (Clock::time_point next = Clock::now() + kLookAfter; !is_so();) {
    if (!interrupt) {
      change_.wait(lock);
      continue;
    }
    change_.wait_until(lock, next);
    if (Clock::now() < next) continue;
    lock.unlock();
    interrupt();
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
    std::uint64_t total = 0;
    {
      const std::lock_guard lock(mutex_);
      total = total_nbytes_;
    }
    progress(done_nbytes_, total);
  };
  try {
    if (is_small()) {
      {
        const std::lock_guard lock(mutex_);
        is_started_ = true;
        ++readers_;
      }
      io::InterruptTimer timer(report);
      read(0, [&] { timer.poll(); });
    } else {
      start_threads();
      (void)wait_until([&] { return is_all_landed() || is_stopping_; }, report);
    }
  } catch (...) {
    stop();
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
  start_threads();
  const auto lock = wait_until([&] { return parts_left_[tensor] == 0 || is_stopping_; }, interrupt);
  if (parts_left_[tensor] == 0) return true;
  if (error_) std::rethrow_exception(error_);
  return false;
}

std::optional<Load::Index> LoadState::next_ready(const Interrupt& interrupt) {
  start_threads();
  const auto lock = wait_until(
      [&] { return !ready_.empty() || is_stopping_ || handed_out_ == names_.size(); }, interrupt);
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
