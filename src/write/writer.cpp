#include "safetensors/writer.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "base/checked.hpp"
#include "base/text.hpp"
#include "io/run_cursor.hpp"
#include "io/sink_writer.hpp"
#include "open/strided_read.hpp"
#include "safetensors/error.hpp"
#include "safetensors/header.hpp"
#include "write/write_ledger.hpp"

namespace safetensors {
namespace {

std::span<const std::byte> as_bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

}  // namespace

// A writer goes from kOpen to kFailed, if a call failed half way, or to kClosed.
//
//   write(), write_at(): check and mark under the lock -> large pieces go to the sink at once,
//   small ones to the gathering buffer. For a sink that does not seek, everything happens under the
//   lock: a piece that is not next is held back.
class FileWriter::State {
 public:
  State(std::unique_ptr<ByteSink> sink, LayoutPlan plan, WriterOptions options)
      : sink_(checked(std::move(sink))),
        label_(sink_->label()),
        ledger_(std::move(plan)),
        options_(std::move(options)),
        out_(*sink_, ledger_.plan().total_nbytes, options_.interrupt, options_.progress) {
    sink_->start(ledger_.plan().total_nbytes);
    const std::string& prologue = ledger_.plan().prologue;
    if (!sink_->seeks()) {
      put(0, as_bytes_of(prologue));
      return;
    }
    // The header's length is written last: see FileWriter. So is a large header: the first write
    // reserves disk space for the whole file, which blocks that copy() shares do not need.
    std::string first = prologue.substr(0, is_late(prologue) ? kLengthSize : std::string::npos);
    std::fill_n(first.begin(), kLengthSize, '\0');
    put(0, as_bytes_of(first));
  }

  /// For a file whose tensors are added later. Its header goes to the room before them.
  State(std::unique_ptr<ByteSink> sink, const Metadata* metadata, WriterOptions options)
      : sink_(checked(std::move(sink))),
        label_(sink_->label()),
        room_(header_room(options.header_room)),
        ledger_(metadata, room_),
        options_(std::move(options)),
        out_(*sink_, 0, options_.interrupt, options_.progress) {
    if (!sink_->seeks()) {
      fail(ErrorCode::kInvalidArgument,
           "the sink does not seek, so it needs the specs of all tensors before the first one");
    }
    sink_->start(0);
  }

  /// Returns the path that names the file in errors; it may be empty.
  [[nodiscard]] const std::filesystem::path& label() const noexcept { return label_; }

  std::size_t add(const TensorSpec& spec) {
    const std::lock_guard lock(mutex_);
    check_open();
    const std::uint64_t nbytes = ledger_.check_add(spec);
    std::size_t tensor = 0;
    guarded([&] { tensor = ledger_.add(spec, nbytes); });
    out_.set_total(ledger_.plan().total_nbytes);
    return tensor;
  }

  void write(std::size_t tensor, std::span<const std::byte> bytes) {
    std::unique_lock lock(mutex_);
    check_open();
    const TensorPlace place = ledger_.place(tensor);
    if (bytes.size() != place.nbytes) {
      const std::string name = ledger_.name(tensor);
      fail(ErrorCode::kInvalidTensorInfo,
           quoted_tensor(name) + " takes " + counted(place.nbytes, "byte") + ", " +
               grouped(bytes.size()) + " are given",
           {.subject = name});
    }
    write_part(lock, tensor, place.begin, bytes, true);
  }

  void write_at(std::size_t tensor, std::uint64_t begin, std::span<const std::byte> bytes) {
    std::unique_lock lock(mutex_);
    check_open();
    const TensorPlace place = ledger_.place(tensor);
    if (begin > place.nbytes || bytes.size() > place.nbytes - begin) {
      const std::string name = ledger_.name(tensor);
      fail(ErrorCode::kInvalidArgument,
           quoted_tensor(name) + " has " + counted(place.nbytes, "byte") + ", the part of " +
               counted(bytes.size(), "byte") + " at " + grouped(begin) + " reaches past its end",
           {.subject = name});
    }
    write_part(lock, tensor, place.begin + begin, bytes, false);
  }

  void write_runs(std::size_t tensor, const ByteRuns& runs, std::span<const std::byte> bytes) {
    std::unique_lock lock(mutex_);
    check_open();
    const TensorPlace place = ledger_.place(tensor);
    try {
      check_runs({&runs, 1}, place.nbytes, UINT64_MAX);
    } catch (const Error& error) {
      const std::string name = ledger_.name(tensor);
      throw error.with_context(quoted_tensor(name) + ": ", {}, name);
    }
    if (bytes.size() != runs.nbytes()) {
      const std::string name = ledger_.name(tensor);
      fail(ErrorCode::kInvalidTensorInfo,
           "the part of " + quoted_tensor(name) + " takes " + counted(runs.nbytes(), "byte") +
               ", " + grouped(bytes.size()) + " are given",
           {.subject = name});
    }
    if (bytes.empty()) return;
    const auto nbytes = static_cast<std::size_t>(runs.run_nbytes);
    io::RunCursor cursor(runs, 0);
    ledger_.check_free(tensor, bytes.size(), false);
    const bool is_next = nbytes == bytes.size() && place.begin + cursor.position() == next_;
    if (!sink_->seeks() && !is_next) check_budget(tensor, bytes.size());
    ledger_.mark(tensor, bytes.size());
    for (; !bytes.empty(); cursor.next()) {
      put_part(lock, place.begin + cursor.position(), bytes.first(nbytes));
      bytes = bytes.subspan(nbytes);
    }
  }

  void copy(const ByteSource& source, std::span<const TensorCopy> tensors) {
    std::unique_lock lock(mutex_);
    check_open();
    for (const TensorCopy& each : tensors) {
      ledger_.check_source(each.tensor, each.begin, source.size());
    }
    if (!sink_->seeks()) {
      copy_in_order(source, tensors);
      return;
    }
    const std::vector<WriteLedger::Run> runs = ledger_.runs_of(tensors);
    std::vector<std::size_t> indices;
    for (const TensorCopy& each : tensors) indices.push_back(each.tensor);
    ledger_.mark_all(indices);
    guarded([&] {
      const Unlocked unlocked(*this, lock);
      for (const WriteLedger::Run& run : runs) out_.copy(source, run.from, run.nbytes, run.to);
    });
  }

  [[nodiscard]] std::vector<std::size_t> missing() const {
    const std::lock_guard lock(mutex_);
    return ledger_.missing();
  }

  [[nodiscard]] std::uint64_t nbytes_written() const noexcept { return ledger_.nbytes_written(); }

  void commit() {
    const std::lock_guard lock(mutex_);
    check_open();
    if (writing_ != 0) {
      fail(ErrorCode::kMissingTensors,
           "another thread is still writing a tensor: wait for it before the file is completed");
    }
    const std::vector<std::size_t> missing = ledger_.missing();
    if (!missing.empty()) ledger_.fail_missing(missing);
    const LayoutPlan& plan = ledger_.plan();
    if (!sink_->seeks() && next_ != plan.total_nbytes) ledger_.fail_overlap(next_);
    guarded([&] {
      std::uint64_t nbytes = plan.total_nbytes;
      if (ledger_.is_added()) {
        nbytes += write_late_header();
      } else if (sink_->seeks()) {
        const std::span<const std::byte> prologue = as_bytes_of(plan.prologue);
        if (is_late(plan.prologue)) out_.write_now(kLengthSize, prologue.subspan(kLengthSize));
        out_.patch(0, prologue.first(kLengthSize));
      }
      out_.flush();
      sink_->commit(nbytes, options_.fsync);
    });
    condition_ = Condition::kClosed;
    sink_.reset();
  }

 private:
  enum class Condition : std::uint8_t { kOpen, kFailed, kClosed };

  /// Releases the lock while bytes that are marked as written go to the sink.
  class Unlocked {
   public:
    Unlocked(State& state, std::unique_lock<std::mutex>& lock) : state_(state), lock_(lock) {
      ++state_.writing_;
      lock_.unlock();
    }
    Unlocked(const Unlocked&) = delete;
    Unlocked& operator=(const Unlocked&) = delete;
    ~Unlocked() {
      lock_.lock();
      --state_.writing_;
    }

   private:
    State& state_;
    std::unique_lock<std::mutex>& lock_;
  };

  static std::unique_ptr<ByteSink> checked(std::unique_ptr<ByteSink> sink) {
    if (!sink) fail(ErrorCode::kInvalidArgument, "the sink is null");
    return sink;
  }

  [[nodiscard]] bool is_late(const std::string& prologue) const noexcept {
    return sink_->seeks() && !io::SinkWriter::is_small(prologue.size());
  }

  void check_open() const {
    if (condition_ == Condition::kOpen) return;
    fail(ErrorCode::kWriterClosed, condition_ == Condition::kFailed
                                       ? "the writer has failed: what it wrote is discarded"
                                       : "the writer is closed");
  }

  /// Marks the writer as failed if `work` throws.
  template <typename Work>
  void guarded(const Work& work) {
    try {
      work();
    } catch (...) {
      condition_ = Condition::kFailed;
      throw;
    }
  }

  /// Writes the header of tensors that were added, padded with spaces to the room before them.
  /// Returns by how many bytes the room, and with it the file, had to grow.
  std::uint64_t write_late_header() {
    const std::string prologue = ledger_.prologue_of_added(room_);
    const std::uint64_t nbytes = ledger_.plan().total_nbytes;
    const std::uint64_t more = prologue.size() - room_;
    out_.flush();
    if (more != 0 && nbytes != room_ && !sink_->shift(nbytes, more)) {
      fail(ErrorCode::kInvalidArgument, "the header takes " + counted(prologue.size(), "byte") +
                                            ", the room for it has " + grouped(room_) +
                                            " and cannot grow");
    }
    out_.write_now(0, as_bytes_of(prologue));
    return more;
  }

  /// Requires: the lock, which is released while a large piece is written.
  void write_part(std::unique_lock<std::mutex>& lock, std::size_t tensor, std::uint64_t offset,
                  std::span<const std::byte> bytes, bool is_whole) {
    ledger_.check_free(tensor, bytes.size(), is_whole);
    if (!sink_->seeks() && offset != next_ && !bytes.empty()) check_budget(tensor, bytes.size());
    ledger_.mark(tensor, bytes.size());
    if (!bytes.empty()) put_part(lock, offset, bytes);
  }

  /// Writes a part that was marked. Requires: as write_part().
  void put_part(std::unique_lock<std::mutex>& lock, std::uint64_t offset,
                std::span<const std::byte> bytes) {
    guarded([&] {
      if (sink_->seeks() && !io::SinkWriter::is_small(bytes.size())) {
        const Unlocked unlocked(*this, lock);
        out_.write_now(offset, bytes);
      } else if (sink_->seeks()) {
        out_.gather(offset, bytes);
      } else if (offset == next_) {
        put(offset, bytes);
        put_held_back();
      } else {
        Buffer copy(bytes.size());
        std::memcpy(copy.data(), bytes.data(), bytes.size());
        hold_back(offset, std::move(copy));
      }
    });
  }

  /// Writes bytes in file order. Requires: the lock, unless in the constructor.
  void put(std::uint64_t offset, std::span<const std::byte> bytes) {
    if (io::SinkWriter::is_small(bytes.size())) {
      out_.gather(offset, bytes);
    } else {
      out_.flush();
      out_.write_now(offset, bytes);
    }
    next_ = offset + bytes.size();
  }

  void put_held_back() {
    for (auto held = held_.find(next_); held != held_.end(); held = held_.find(next_)) {
      put(held->first, held->second.bytes());
      held_nbytes_ -= held->second.size();
      held_.erase(held);
    }
  }

  void hold_back(std::uint64_t offset, Buffer bytes) {
    if (bytes.size() == 0) return;
    held_nbytes_ += bytes.size();
    held_.emplace(offset, std::move(bytes));
  }

  /// Throws Error kOutOfOrder if a part of this size cannot be held back.
  void check_budget(std::size_t tensor, std::uint64_t nbytes) const {
    if (nbytes <= options_.budget_nbytes && held_nbytes_ <= options_.budget_nbytes - nbytes) return;
    const std::string name = ledger_.name(tensor);
    fail(ErrorCode::kOutOfOrder,
         quoted_tensor(name) + " was written, but the sink does not seek and needs " +
             quoted_tensor(ledger_.name(ledger_.tensor_at(next_))) + " next; " +
             counted(held_nbytes_, "byte") + " are held back, and the budget is " +
             grouped(options_.budget_nbytes),
         {.subject = name});
  }

  /// Copies to a sink that does not seek. Requires: the lock.
  void copy_in_order(const ByteSource& source, std::span<const TensorCopy> tensors) {
    std::vector<TensorCopy> ordered(tensors.begin(), tensors.end());
    std::ranges::sort(ordered, {},
                      [&](const TensorCopy& each) { return ledger_.place(each.tensor).begin; });
    for (const TensorCopy& each : ordered) {
      const TensorPlace& place = ledger_.place(each.tensor);
      const bool is_next = place.begin == next_;
      ledger_.check_free(each.tensor, place.nbytes, true);
      if (!is_next) check_budget(each.tensor, place.nbytes);
      ledger_.mark(each.tensor, place.nbytes);
      guarded([&] {
        if (!is_next) {
          Buffer bytes(memory_size(place.nbytes));
          source.read_at(each.begin, bytes.bytes());
          hold_back(place.begin, std::move(bytes));
          return;
        }
        out_.flush();
        out_.copy(source, each.begin, place.nbytes, place.begin);
        next_ = place.begin + place.nbytes;
        put_held_back();
      });
    }
  }

  std::unique_ptr<ByteSink> sink_;
  std::filesystem::path label_;
  std::uint64_t room_ = 0;  // bytes before the first tensor that is added
  WriteLedger ledger_;
  WriterOptions options_;
  io::SinkWriter out_;
  mutable std::mutex mutex_;  // guards ledger_, out_.gather() and what follows
  std::atomic<Condition> condition_ = Condition::kOpen;
  std::size_t writing_ = 0;  // see Unlocked
  // For a sink that does not seek: the offset that it needs next, and what comes later.
  std::uint64_t next_ = 0;
  std::map<std::uint64_t, Buffer> held_;
  std::uint64_t held_nbytes_ = 0;
};

FileWriter::FileWriter(std::unique_ptr<ByteSink> sink, LayoutPlan plan, WriterOptions options)
    : state_(std::make_unique<State>(std::move(sink), std::move(plan), std::move(options))) {}
FileWriter::FileWriter(std::unique_ptr<ByteSink> sink, const Metadata* metadata,
                       WriterOptions options)
    : state_(std::make_unique<State>(std::move(sink), metadata, std::move(options))) {}
FileWriter::FileWriter(FileWriter&&) noexcept = default;
FileWriter& FileWriter::operator=(FileWriter&&) noexcept = default;
FileWriter::~FileWriter() = default;

template <typename Call>
decltype(auto) FileWriter::with_state(const Call& call) const {
  if (!state_) fail(ErrorCode::kWriterClosed, "the writer is closed");
  try {
    return call(*state_);
  } catch (const Error& error) {
    if (state_->label().empty() || !error.path().empty()) throw;
    throw error.with_context({}, state_->label());
  }
}

std::size_t FileWriter::add(const TensorSpec& spec) {
  return with_state([&](State& state) { return state.add(spec); });
}

void FileWriter::write(std::size_t tensor, std::span<const std::byte> bytes) {
  with_state([&](State& state) { state.write(tensor, bytes); });
}

void FileWriter::write_at(std::size_t tensor, std::uint64_t begin,
                          std::span<const std::byte> bytes) {
  with_state([&](State& state) { state.write_at(tensor, begin, bytes); });
}

void FileWriter::write_runs(std::size_t tensor, const ByteRuns& runs,
                            std::span<const std::byte> bytes) {
  with_state([&](State& state) { state.write_runs(tensor, runs, bytes); });
}

void FileWriter::copy(const ByteSource& source, std::span<const TensorCopy> tensors) {
  with_state([&](State& state) { state.copy(source, tensors); });
}

std::vector<std::size_t> FileWriter::missing() const {
  return with_state([](const State& state) { return state.missing(); });
}

std::uint64_t FileWriter::nbytes_written() const noexcept {
  return state_ ? state_->nbytes_written() : 0;
}

void FileWriter::commit() {
  with_state([](State& state) { state.commit(); });
}

void FileWriter::abort() noexcept { state_.reset(); }

}  // namespace safetensors
