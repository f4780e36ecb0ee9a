#include "safetensors/staged_save.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "safetensors/byte_sink.hpp"
#include "safetensors/detail/serializing.hpp"
#include "safetensors/detail/write_sums.hpp"
#include "safetensors/device.hpp"
#include "safetensors/error.hpp"
#include "safetensors/parallel.hpp"
#include "safetensors/writer.hpp"
#include "write/save_memory.hpp"

namespace safetensors {
namespace {

constexpr std::size_t kChunk = SaveMemory::kChunkSize;
constexpr auto kPollInterval = std::chrono::milliseconds(50);

}  // namespace

/// The data section of the file is cut into chunks; the last one is shorter.
///
///     tensors --stage()--> chunks --write()--> file
///
/// write() returns each chunk to the memory, which is what stage() waits for if the budget is used
/// up.
class StagedSave::State {
 public:
  State(std::span<const TensorData> tensors, std::filesystem::path path, const Metadata* metadata,
        const SaveOptions& options, std::unique_ptr<detail::WriteSums> sums)
      : count_(tensors.size()),
        path_(std::move(path)),
        fsync_(options.fsync),
        interrupt_(options.interrupt),
        sums_(std::move(sums)) {
    LayoutPlan plan = detail::serializing([&] { return plan_layout(tensors, metadata); });
    const std::uint64_t begin = plan.prologue.size();
    for (const TensorData& each : tensors) sums_->add(each.name, each.dtype, each.shape);
    for (const std::size_t i : plan.order) {
      if (plan.places[i].nbytes == 0) continue;
      pieces_.push_back({i, plan.places[i].begin - begin, tensors[i].bytes});
    }
    nbytes_ = plan.total_nbytes - begin;
    plan_ = plan_data(std::move(plan.prologue), nbytes_);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    // In a forked process, threads of its parent had the mutex.
    if (&memory_ == &SaveMemory::get()) end();
  }

  void stage(std::span<const StagedPlace> places, std::optional<std::uint64_t> budget,
             const Interrupt& interrupt) {
    const Staging staging = staging_of(places, budget, interrupt);
    try {
      while (stage_some(staging)) {
      }
    } catch (...) {
      stop();
      throw;
    }
  }

  void write_here(std::span<const StagedPlace> places, std::optional<std::uint64_t> budget,
                  const Interrupt& interrupt) {
    const Staging staging = staging_of(places, budget, interrupt);
    interrupt_ = interrupt;
    stage_next_ = [&] { (void)stage_some(staging); };
    write();
  }

  void write() {
    try {
      detail::serializing([&] { write_chunks(); });
    } catch (...) {
      end();
      throw;
    }
  }

  void stop() {
    is_stopped_ = true;
    end();
  }

  [[nodiscard]] std::uint64_t nbytes_done() const noexcept { return done_; }

 private:
  struct Piece {
    std::size_t tensor;
    std::uint64_t begin;               // in the data section
    std::span<const std::byte> bytes;  // of memory, or the address on a device
  };

  /// The arguments of stage().
  struct Staging {
    std::span<const StagedPlace> places;
    std::uint64_t budget;
    const Interrupt& interrupt;
  };

  [[nodiscard]] Staging staging_of(std::span<const StagedPlace> places,
                                   std::optional<std::uint64_t> budget,
                                   const Interrupt& interrupt) const {
    if (!places.empty() && places.size() != count_) {
      fail(ErrorCode::kInvalidArgument,
           std::to_string(places.size()) + " places for " + std::to_string(count_) + " tensors",
           {.path = path_});
    }
    return {places, budget ? *budget : memory_.default_budget(), interrupt};
  }

  /// Copies to as many chunks as there is room for. Returns false if all tensors were copied, or
  /// the save has ended.
  bool stage_some(const Staging& staging) {
    if (staged_ == count()) return false;
    const std::size_t reserved = wait_for_room(staging);
    if (reserved == 0) return false;
    std::vector<Buffer> chunks;
    try {
      while (chunks.size() < reserved) chunks.push_back(memory_.take());
      fill(chunks, staging);
    } catch (...) {
      memory_.unreserve(reserved - chunks.size());
      for (Buffer& chunk : chunks) memory_.give_back(std::move(chunk));
      throw;
    }
    hand_over(std::move(chunks));
    return true;
  }

  [[nodiscard]] std::size_t count() const noexcept {
    return static_cast<std::size_t>((nbytes_ + kChunk - 1) / kChunk);
  }

  /// Waits until chunks may be taken, and reserves them. Returns how many; 0 if the save has ended.
  std::size_t wait_for_room(const Staging& staging) {
    std::unique_lock lock(memory_.mutex);
    while (!has_ended_) {
      const std::size_t reserved = memory_.reserve(staging.budget, count() - staged_);
      if (reserved != 0) return reserved;
      memory_.changed.wait_for(lock, kPollInterval);
      lock.unlock();
      if (staging.interrupt) staging.interrupt();
      lock.lock();
    }
    return 0;
  }

  /// Copies the next bytes of the data section.
  void fill(std::span<const Buffer> chunks, const Staging& staging) {
    std::vector<CopyPiece> copies;
    std::map<CudaStream, std::vector<HostCopy>> device_copies;
    std::vector<std::function<void()>> reads;
    std::uint64_t begin = std::uint64_t{staged_} * kChunk;
    for (const Buffer& chunk : chunks) {
      const std::uint64_t end = std::min<std::uint64_t>(begin + kChunk, nbytes_);
      for (; next_ < pieces_.size(); ++next_) {
        const Piece& piece = pieces_[next_];
        const std::uint64_t from = std::max(begin, piece.begin);
        const std::uint64_t to = std::min(end, piece.begin + piece.bytes.size());
        if (from < to) {
          const std::uint64_t at = from - piece.begin;
          const std::span<std::byte> target(chunk.data() + (from - begin),
                                            static_cast<std::size_t>(to - from));
          static const StagedPlace in_memory;
          const StagedPlace& place =
              staging.places.empty() ? in_memory : staging.places[piece.tensor];
          if (place.device) {
            const auto address = reinterpret_cast<std::uintptr_t>(piece.bytes.data());
            device_copies[*place.device].push_back({address + at, target});
          } else if (place.read) {
            reads.emplace_back([&read = place.read, at, target] { read(at, target); });
          } else {
            copies.push_back({target.data(), piece.bytes.data() + at, target.size()});
          }
        }
        if (piece.begin + piece.bytes.size() > end) break;  // goes on in the next chunk
      }
      begin = end;
    }
    copy_all(copies, staging.interrupt);
    for (const auto& [where, from_device] : device_copies) {
      copy_to_host(Device::cuda(where.device), where.stream, from_device, staging.interrupt);
    }
    for (const auto& read : reads) read();
  }

  void hand_over(std::vector<Buffer> chunks) {
    {
      const std::lock_guard lock(memory_.mutex);
      staged_ += chunks.size();
      if (!has_ended_) {
        for (Buffer& chunk : chunks) staged_chunks_.push_back(std::move(chunk));
        chunks.clear();
      }
      memory_.changed.notify_all();
    }
    for (Buffer& chunk : chunks) memory_.give_back(std::move(chunk));
  }

  /// Requires: not the mutex, which other threads of the interrupt may wait for.
  void check_running() const {
    if (interrupt_) interrupt_();
    refuse_stopped();
  }

  void refuse_stopped() const {
    if (is_stopped_) fail(ErrorCode::kWriterClosed, "the save was stopped");
  }

  [[nodiscard]] Buffer next_chunk() {
    if (stage_next_ && !has_staged()) stage_next_();
    check_running();
    std::unique_lock lock(memory_.mutex);
    memory_.changed.wait(lock, [&] { return is_stopped_ || !staged_chunks_.empty(); });
    refuse_stopped();
    Buffer chunk = std::move(staged_chunks_.front());
    staged_chunks_.pop_front();
    return chunk;
  }

  [[nodiscard]] bool has_staged() {
    const std::lock_guard lock(memory_.mutex);
    return !staged_chunks_.empty();
  }

  /// Returns the parts of tensors in a chunk that begins at `begin`.
  [[nodiscard]] std::vector<detail::WriteSums::Part> parts_of(std::uint64_t begin,
                                                              std::span<const std::byte> chunk) {
    std::vector<detail::WriteSums::Part> parts;
    const std::uint64_t end = begin + chunk.size();
    for (; next_written_ < pieces_.size(); ++next_written_) {
      const Piece& piece = pieces_[next_written_];
      const std::uint64_t from = std::max(begin, piece.begin);
      const std::uint64_t to = std::min(end, piece.begin + piece.bytes.size());
      if (from < to) {
        parts.push_back({piece.tensor, from - piece.begin,
                         chunk.subspan(static_cast<std::size_t>(from - begin),
                                       static_cast<std::size_t>(to - from))});
      }
      if (piece.begin + piece.bytes.size() > end) break;  // goes on in the next chunk
    }
    return parts;
  }

  void write_chunks() {
    // The sink is made after the first chunk came, so that this thread does not slow down stage().
    Buffer chunk = nbytes_ == 0 ? Buffer() : next_chunk();
    const auto give_back = [&] {
      if (chunk.size() != 0) memory_.give_back(std::move(chunk));
    };
    try {
      const Interrupt interrupt = [this] { check_running(); };
      FileWriter writer(make_file_sink(path_, {}, interrupt, sums_->before_rename(path_)),
                        std::move(plan_), {.fsync = fsync_, .interrupt = interrupt});
      for (std::uint64_t at = 0; at < nbytes_; at += kChunk) {
        if (at != 0) chunk = next_chunk();
        const auto size = static_cast<std::size_t>(std::min<std::uint64_t>(kChunk, nbytes_ - at));
        const std::span<const std::byte> bytes = chunk.bytes().first(size);
        sums_->write_beside(parts_of(at, bytes), [&] { writer.write_at(0, at, bytes); });
        give_back();
        done_ += size;
      }
      check_running();
      writer.commit();
      sums_->commit(fsync_);
    } catch (...) {
      give_back();
      throw;
    }
  }

  /// Ends the save: no chunk is staged or written any more.
  void end() {
    std::deque<Buffer> chunks;
    {
      const std::lock_guard lock(memory_.mutex);
      has_ended_ = true;
      chunks.swap(staged_chunks_);
      memory_.changed.notify_all();
    }
    for (Buffer& chunk : chunks) memory_.give_back(std::move(chunk));
  }

  SaveMemory& memory_ = SaveMemory::get();
  std::size_t count_;  // of tensors
  std::filesystem::path path_;
  bool fsync_;
  Interrupt interrupt_;        // of write()
  std::vector<Piece> pieces_;  // in file order, without empty ones
  std::uint64_t nbytes_ = 0;   // of the data section
  LayoutPlan plan_;
  std::unique_ptr<detail::WriteSums> sums_;
  std::size_t next_ = 0;          // the first piece that is not staged completely
  std::size_t next_written_ = 0;  // the first piece that is not written completely
  std::atomic<std::uint64_t> done_ = 0;
  std::atomic<bool> is_stopped_ = false;
  std::function<void()> stage_next_;  // of write_here()
  // Guarded by the mutex of the memory:
  std::size_t staged_ = 0;  // chunks
  std::deque<Buffer> staged_chunks_;
  bool has_ended_ = false;
};

StagedSave::StagedSave(std::span<const TensorData> tensors, const std::filesystem::path& path,
                       const Metadata* metadata, const SaveOptions& options)
    : StagedSave(tensors, path, metadata, options, detail::sums_of_save(path, options)) {}

StagedSave::StagedSave(std::span<const TensorData> tensors, const std::filesystem::path& path,
                       const Metadata* metadata, const SaveOptions& options,
                       std::unique_ptr<detail::WriteSums> sums)
    : state_(std::make_unique<State>(tensors, path, metadata, options, std::move(sums))) {}

StagedSave::~StagedSave() = default;

void StagedSave::stage(std::span<const StagedPlace> places, std::optional<std::uint64_t> budget,
                       const Interrupt& interrupt) {
  state_->stage(places, budget, interrupt);
}

void StagedSave::write() { state_->write(); }

void StagedSave::write_here(std::span<const StagedPlace> places,
                            std::optional<std::uint64_t> budget, const Interrupt& interrupt) {
  state_->write_here(places, budget, interrupt);
}

void StagedSave::stop() { state_->stop(); }

std::uint64_t StagedSave::nbytes_done() const noexcept { return state_->nbytes_done(); }

SaveMemoryUse save_memory_use() { return SaveMemory::get().use(); }

std::size_t release_save_memory() { return SaveMemory::get().release(); }

}  // namespace safetensors
