#include "safetensors/writer.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>

#include "base/text.hpp"
#include "io/run_reader.hpp"
#include "io/sink_writer.hpp"
#include "safetensors/error.hpp"
#include "safetensors/header.hpp"
#include "strided_read.hpp"

namespace safetensors {
namespace {

constexpr std::size_t kNamesInError = 5;

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
        plan_(checked(std::move(plan))),
        options_(std::move(options)),
        out_(*sink_, plan_.total_nbytes, options_.interrupt, options_.progress),
        written_(plan_.places.size()),
        is_begun_(plan_.places.size()) {
    sink_->start(plan_.total_nbytes);
    // The header's length is written last: see FileWriter.
    if (sink_->seeks()) std::fill_n(plan_.prologue.begin(), kLengthSize, '\0');
    put(0, as_bytes_of(plan_.prologue));
  }

  /// For a file whose tensors are added later. Its header goes to the room before them.
  State(std::unique_ptr<ByteSink> sink, const Metadata* metadata, WriterOptions options)
      : sink_(checked(std::move(sink))),
        options_(std::move(options)),
        added_(std::in_place),
        out_(*sink_, 0, options_.interrupt, options_.progress) {
    if (!sink_->seeks()) {
      fail(ErrorCode::kInvalidArgument,
           "the sink does not seek, so it needs the specs of all tensors before the first one");
    }
    if (metadata != nullptr) added_->metadata = *metadata;
    added_->room = room_for(std::max<std::uint64_t>(options_.header_room, 1));
    plan_.total_nbytes = added_->room;
    sink_->start(0);
  }

  std::size_t add(const TensorSpec& spec) {
    const std::lock_guard lock(mutex_);
    check_open();
    if (!added_) fail(ErrorCode::kInvalidArgument, "the plan of this file is complete");
    const std::uint64_t nbytes = plan_file({&spec, 1}).places.front().nbytes;  // checks it
    if (nbytes > std::numeric_limits<std::uint64_t>::max() - plan_.total_nbytes) {
      fail(ErrorCode::kOverflow, "the tensors together exceed 2^64 bytes");
    }
    const auto [at, is_new] = added_->names.emplace(spec.name);
    if (!is_new) {
      fail(ErrorCode::kWrittenTwice, named(*at) + " was added before", {.subject = *at});
    }
    guarded([&] {
      added_->tensors.push_back(
          {*at, std::vector<std::uint64_t>(spec.shape.begin(), spec.shape.end()), spec.dtype});
      plan_.places.push_back({plan_.total_nbytes, nbytes});
      plan_.order.push_back(plan_.order.size());
      written_.push_back(0);
      is_begun_.push_back(false);
    });
    plan_.total_nbytes += nbytes;
    out_.set_total(plan_.total_nbytes);
    return plan_.order.back();
  }

  void write(std::size_t tensor, std::span<const std::byte> bytes) {
    std::unique_lock lock(mutex_);
    check_open();
    const TensorPlace place = place_of(tensor);
    if (bytes.size() != place.nbytes) {
      const std::string name = name_of(tensor);
      fail(ErrorCode::kInvalidTensorInfo,
           named(name) + " takes " + counted(place.nbytes, "byte") + ", " + grouped(bytes.size()) +
               " are given",
           {.subject = name});
    }
    write_part(lock, tensor, place.begin, bytes, true);
  }

  void write_at(std::size_t tensor, std::uint64_t begin, std::span<const std::byte> bytes) {
    std::unique_lock lock(mutex_);
    check_open();
    const TensorPlace place = place_of(tensor);
    if (begin > place.nbytes || bytes.size() > place.nbytes - begin) {
      const std::string name = name_of(tensor);
      fail(ErrorCode::kInvalidArgument,
           named(name) + " has " + counted(place.nbytes, "byte") + ", the part of " +
               counted(bytes.size(), "byte") + " at " + grouped(begin) + " reaches past its end",
           {.subject = name});
    }
    write_part(lock, tensor, place.begin + begin, bytes, false);
  }

  void write_runs(std::size_t tensor, const ByteRuns& runs, std::span<const std::byte> bytes) {
    std::unique_lock lock(mutex_);
    check_open();
    const TensorPlace place = place_of(tensor);
    const std::string name = name_of(tensor);
    try {
      check_runs(runs, place.nbytes);
    } catch (const Error& error) {
      throw error.with_context(named(name) + ": ", {}, name);
    }
    if (bytes.size() != runs.nbytes()) {
      fail(ErrorCode::kInvalidTensorInfo,
           "the part of " + named(name) + " takes " + counted(runs.nbytes(), "byte") + ", " +
               grouped(bytes.size()) + " are given",
           {.subject = name});
    }
    if (bytes.empty()) return;
    const auto nbytes = static_cast<std::size_t>(runs.run_nbytes);
    io::RunCursor cursor(runs, 0);
    check_free(tensor, bytes.size(), false);
    const bool is_next = nbytes == bytes.size() && place.begin + cursor.position() == next_;
    if (!sink_->seeks() && !is_next) check_budget(tensor, bytes.size());
    mark(tensor, bytes.size());
    for (; !bytes.empty(); cursor.next()) {
      put_part(lock, place.begin + cursor.position(), bytes.first(nbytes));
      bytes = bytes.subspan(nbytes);
    }
  }

  void copy(const ByteSource& source, std::span<const TensorCopy> tensors) {
    std::unique_lock lock(mutex_);
    check_open();
    for (const TensorCopy& each : tensors) check_copy(source, each);
    if (!sink_->seeks()) {
      copy_in_order(source, tensors);
      return;
    }
    const std::vector<Run> runs = runs_of(tensors);
    mark_all(tensors);
    lock.unlock();
    guarded([&] {
      for (const Run& run : runs) out_.copy(source, run.from, run.nbytes, run.to);
    });
  }

  [[nodiscard]] std::vector<std::size_t> missing() const {
    const std::lock_guard lock(mutex_);
    std::vector<std::size_t> result;
    for (const std::size_t i : plan_.order) {
      if (written_[i] != plan_.places[i].nbytes) result.push_back(i);
    }
    return result;
  }

  [[nodiscard]] std::uint64_t nbytes_written() const noexcept { return nbytes_written_.load(); }

  void commit() {
    const std::vector<std::size_t> left = missing();
    const std::lock_guard lock(mutex_);
    check_open();
    if (!left.empty()) fail_missing(left);
    if (!sink_->seeks() && next_ != plan_.total_nbytes) fail_overlap();
    guarded([&] {
      if (added_) {
        write_late_header();
      } else if (sink_->seeks()) {
        set_length(plan_.prologue);
        out_.patch(0, as_bytes_of(plan_.prologue).first(kLengthSize));
      }
      out_.flush();
      sink_->commit(plan_.total_nbytes, options_.fsync);
    });
    condition_ = Condition::kClosed;
    sink_.reset();
  }

 private:
  enum class Condition : std::uint8_t { kOpen, kFailed, kClosed };

  static std::unique_ptr<ByteSink> checked(std::unique_ptr<ByteSink> sink) {
    if (!sink) fail(ErrorCode::kInvalidArgument, "the sink is null");
    return sink;
  }

  static LayoutPlan checked(LayoutPlan plan) {
    if (plan.prologue.size() < kLengthSize || plan.order.size() != plan.places.size()) {
      fail(ErrorCode::kInvalidArgument, "the plan was not made by plan_file()");
    }
    return plan;
  }

  /// Returns the room for a header of this size, with its length: whole blocks.
  static std::uint64_t room_for(std::uint64_t nbytes) {
    if (nbytes <= kMaxHeaderSize) {
      const std::uint64_t room = (nbytes + kBlockSize - 1) / kBlockSize * kBlockSize;
      if (room - kLengthSize <= kMaxHeaderSize) return room;
    }
    fail(ErrorCode::kHeaderTooLarge, "room for a header of " + counted(nbytes, "byte") +
                                         ", in whole blocks, exceeds the limit of " +
                                         grouped(kMaxHeaderSize));
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

  [[nodiscard]] const TensorPlace& place_of(std::size_t tensor) const {
    if (tensor < plan_.places.size()) return plan_.places[tensor];
    fail(ErrorCode::kInvalidArgument, "there is no tensor " + std::to_string(tensor) + " of " +
                                          std::to_string(plan_.places.size()));
  }

  /// Sets the length field of a prologue.
  static void set_length(std::string& prologue) {
    const std::uint64_t nbytes = prologue.size() - kLengthSize;
    for (std::size_t i = 0; i < kLengthSize; ++i) {
      prologue[i] = static_cast<char>(nbytes >> (8 * i) & 0xFF);
    }
  }

  /// Writes the header of tensors that were added, padded with spaces to the room before them.
  void write_late_header() {
    std::vector<TensorSpec> specs;
    specs.reserve(added_->tensors.size());
    for (const Added::Tensor& each : added_->tensors) {
      specs.push_back({each.name, each.shape, each.dtype});
    }
    const Metadata* const metadata = added_->metadata ? &*added_->metadata : nullptr;
    std::string prologue = plan_file(specs, metadata, Layout::kGiven).prologue;
    out_.flush();
    if (prologue.size() > added_->room) {
      const std::uint64_t more = room_for(prologue.size()) - added_->room;
      const bool has_data = plan_.total_nbytes != added_->room;
      if (has_data && !sink_->shift(plan_.total_nbytes, more)) {
        fail(ErrorCode::kInvalidArgument, "the header takes " + counted(prologue.size(), "byte") +
                                              ", the room for it has " + grouped(added_->room) +
                                              " and cannot grow");
      }
      added_->room += more;
      plan_.total_nbytes += more;
    }
    prologue.resize(static_cast<std::size_t>(added_->room), ' ');
    set_length(prologue);
    out_.write_now(0, as_bytes_of(prologue));
  }

  /// Returns the name of a tensor, for errors: only the header has it.
  [[nodiscard]] std::string name_of(std::size_t tensor) const {
    if (added_) return added_->tensors[tensor].name;
    const auto place = std::ranges::find(plan_.order, tensor);
    const Header header = Header::parse(as_bytes_of(plan_.prologue).subspan(kLengthSize),
                                        plan_.total_nbytes - plan_.prologue.size());
    const auto at = static_cast<std::size_t>(place - plan_.order.begin());
    return std::string(header.tensors()[at].name);
  }

  static std::string named(const std::string& name) { return "tensor `" + clipped(name) + "`"; }

  /// Throws Error kWrittenTwice unless so many bytes of the tensor may be written.
  void check_free(std::size_t tensor, std::uint64_t nbytes, bool is_whole) const {
    if ((is_whole && is_begun_[tensor]) ||
        nbytes > plan_.places[tensor].nbytes - written_[tensor]) {
      const std::string name = name_of(tensor);
      fail(ErrorCode::kWrittenTwice,
           is_whole ? named(name) + " was written before"
                    : "the parts written of " + named(name) + " have more bytes than it",
           {.subject = name});
    }
  }

  /// Requires: check_free().
  void mark(std::size_t tensor, std::uint64_t nbytes) {
    // Also after an empty tensor was written whole, but not after an empty part of another one.
    if (nbytes != 0 || plan_.places[tensor].nbytes == 0) is_begun_[tensor] = true;
    written_[tensor] += nbytes;
    nbytes_written_ += nbytes;
  }

  /// Marks all of these tensors, or none if one of them may not be written.
  void mark_all(std::span<const TensorCopy> tensors) {
    std::size_t count = 0;
    try {
      for (; count < tensors.size(); ++count) {
        const std::size_t tensor = tensors[count].tensor;
        check_free(tensor, plan_.places[tensor].nbytes, true);
        mark(tensor, plan_.places[tensor].nbytes);
      }
    } catch (...) {
      for (const TensorCopy& each : tensors.first(count)) {
        nbytes_written_ -= written_[each.tensor];
        written_[each.tensor] = 0;
        is_begun_[each.tensor] = false;
      }
      throw;
    }
  }

  /// Requires: the lock, which is released while a large piece is written.
  void write_part(std::unique_lock<std::mutex>& lock, std::size_t tensor, std::uint64_t offset,
                  std::span<const std::byte> bytes, bool is_whole) {
    check_free(tensor, bytes.size(), is_whole);
    if (!sink_->seeks() && offset != next_ && !bytes.empty()) check_budget(tensor, bytes.size());
    mark(tensor, bytes.size());
    if (!bytes.empty()) put_part(lock, offset, bytes);
  }

  /// Writes a part that was marked. Requires: as write_part().
  void put_part(std::unique_lock<std::mutex>& lock, std::uint64_t offset,
                std::span<const std::byte> bytes) {
    guarded([&] {
      if (sink_->seeks() && !io::SinkWriter::is_small(bytes.size())) {
        lock.unlock();
        out_.write_now(offset, bytes);
        lock.lock();
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

  /// Returns the tensor that has the byte which the sink needs next.
  /// Requires: next_ is not the end.
  [[nodiscard]] std::size_t next_tensor() const {
    return *std::ranges::find_if(plan_.order, [&](std::size_t i) {
      return plan_.places[i].begin + plan_.places[i].nbytes > next_;
    });
  }

  /// Throws Error kOutOfOrder if a part of this size cannot be held back.
  void check_budget(std::size_t tensor, std::uint64_t nbytes) const {
    if (nbytes <= options_.budget_nbytes && held_nbytes_ <= options_.budget_nbytes - nbytes) return;
    const std::string name = name_of(tensor);
    fail(ErrorCode::kOutOfOrder,
         named(name) + " was written, but the sink does not seek and needs " +
             named(name_of(next_tensor())) + " next; " + counted(held_nbytes_, "byte") +
             " are held back, and the budget is " + grouped(options_.budget_nbytes),
         {.subject = name});
  }

  void check_copy(const ByteSource& source, const TensorCopy& each) const {
    const TensorPlace& place = place_of(each.tensor);
    if (each.begin <= source.size() && place.nbytes <= source.size() - each.begin) return;
    const std::string name = name_of(each.tensor);
    fail(ErrorCode::kInvalidArgument,
         named(name) + ": the source has " + counted(source.size(), "byte") + ", the " +
             grouped(place.nbytes) + " at " + grouped(each.begin) + " reach past its end",
         {.subject = name});
  }

  /// Adjacent tensors of a source that are adjacent in the file, too.
  struct Run {
    std::uint64_t from;
    std::uint64_t nbytes;
    std::uint64_t to;
  };

  [[nodiscard]] std::vector<Run> runs_of(std::span<const TensorCopy> tensors) const {
    std::vector<Run> runs;
    for (const TensorCopy& each : tensors) {
      const TensorPlace& place = plan_.places[each.tensor];
      if (!runs.empty() && runs.back().from + runs.back().nbytes == each.begin &&
          runs.back().to + runs.back().nbytes == place.begin) {
        runs.back().nbytes += place.nbytes;
      } else if (place.nbytes != 0) {
        runs.push_back({each.begin, place.nbytes, place.begin});
      }
    }
    return runs;
  }

  /// Copies to a sink that does not seek. Requires: the lock.
  void copy_in_order(const ByteSource& source, std::span<const TensorCopy> tensors) {
    std::vector<TensorCopy> ordered(tensors.begin(), tensors.end());
    std::ranges::sort(ordered, {},
                      [&](const TensorCopy& each) { return plan_.places[each.tensor].begin; });
    for (const TensorCopy& each : ordered) {
      const TensorPlace& place = plan_.places[each.tensor];
      const bool is_next = place.begin == next_;
      check_free(each.tensor, place.nbytes, true);
      if (!is_next) check_budget(each.tensor, place.nbytes);
      mark(each.tensor, place.nbytes);
      guarded([&] {
        if (!is_next) {
          Buffer bytes(static_cast<std::size_t>(place.nbytes));
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

  [[noreturn]] void fail_missing(std::span<const std::size_t> left) const {
    std::string text = std::to_string(left.size()) + " of " +
                       counted(plan_.places.size(), "tensor") +
                       (left.size() == 1 ? " was not written: " : " were not written: ");
    for (std::size_t i = 0; i < std::min(left.size(), kNamesInError); ++i) {
      const std::uint64_t written = written_[left[i]];
      text += (i == 0 ? "`" : ", `") + clipped(name_of(left[i])) + "`";
      if (written == 0) continue;
      text +=
          " (" + grouped(written) + " of " + counted(plan_.places[left[i]].nbytes, "byte") + ")";
    }
    if (left.size() > kNamesInError) text += ", ...";
    fail(ErrorCode::kMissingTensors, text, {.subject = name_of(left.front())});
  }

  [[noreturn]] void fail_overlap() const {
    const std::size_t tensor = next_tensor();
    const std::string name = name_of(tensor);
    fail(ErrorCode::kMissingTensors,
         "the parts written of " + named(name) + " overlap: its byte " +
             grouped(next_ - plan_.places[tensor].begin) + " is missing",
         {.subject = name});
  }

  /// What a file without a plan holds so far.
  struct Added {
    struct Tensor {
      std::string name;
      std::vector<std::uint64_t> shape;
      Dtype dtype;
    };
    std::optional<Metadata> metadata;
    std::uint64_t room = 0;  ///< bytes before the first tensor
    std::vector<Tensor> tensors;
    std::unordered_set<std::string> names;
  };

  std::unique_ptr<ByteSink> sink_;
  LayoutPlan plan_;
  WriterOptions options_;
  std::optional<Added> added_;
  io::SinkWriter out_;
  mutable std::mutex mutex_;  // guards what follows, and out_.gather()
  std::atomic<Condition> condition_ = Condition::kOpen;
  std::vector<std::uint64_t> written_;  // bytes of each tensor
  std::vector<bool> is_begun_;
  std::atomic<std::uint64_t> nbytes_written_ = 0;
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

FileWriter::State& FileWriter::open_state() const {
  if (!state_) fail(ErrorCode::kWriterClosed, "the writer is closed");
  return *state_;
}

std::size_t FileWriter::add(const TensorSpec& spec) { return open_state().add(spec); }

void FileWriter::write(std::size_t tensor, std::span<const std::byte> bytes) {
  open_state().write(tensor, bytes);
}

void FileWriter::write_at(std::size_t tensor, std::uint64_t begin,
                          std::span<const std::byte> bytes) {
  open_state().write_at(tensor, begin, bytes);
}

void FileWriter::write_runs(std::size_t tensor, const ByteRuns& runs,
                            std::span<const std::byte> bytes) {
  open_state().write_runs(tensor, runs, bytes);
}

void FileWriter::copy(const ByteSource& source, std::span<const TensorCopy> tensors) {
  open_state().copy(source, tensors);
}

std::vector<std::size_t> FileWriter::missing() const { return open_state().missing(); }

std::uint64_t FileWriter::nbytes_written() const noexcept {
  return state_ ? state_->nbytes_written() : 0;
}

void FileWriter::commit() { open_state().commit(); }

void FileWriter::abort() noexcept { state_.reset(); }

}  // namespace safetensors
