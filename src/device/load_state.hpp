// What a load's readers and those who wait for it share.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "device/context.hpp"
#include "device/read_plan.hpp"
#include "safetensors/device.hpp"

namespace safetensors::device {

/// Tensors that were added together: copies to them begin after `ready`.
struct Batch {
  std::uint64_t number = 0;
  Load::Index first = 0;  // tensor; the pieces count from it
  std::vector<Piece> pieces;
  std::vector<RunPiece> run_pieces;
  std::vector<Chunk> chunks;
  std::vector<RunChunk> run_chunks;
  Event ready = nullptr;  // none for the host

  [[nodiscard]] std::size_t chunk_count() const noexcept {
    return chunks.size() + run_chunks.size();
  }
};

/// One chunk that a reader has taken.
class Claim {
 public:
  Claim(const Batch& batch, std::size_t number) : batch_(&batch), number_(number) {}
  [[nodiscard]] std::size_t number() const noexcept { return number_; }

  [[nodiscard]] const Batch& batch() const noexcept { return *batch_; }
  /// One of these is not nullptr.
  [[nodiscard]] const Chunk* chunk() const noexcept {
    return number_ < batch_->chunks.size() ? &batch_->chunks[number_] : nullptr;
  }
  [[nodiscard]] const RunChunk* run_chunk() const noexcept {
    return chunk() == nullptr ? &batch_->run_chunks[number_ - batch_->chunks.size()] : nullptr;
  }
  [[nodiscard]] const RunPiece& run_piece() const noexcept {
    return batch_->run_pieces[run_chunk()->piece];
  }
  /// Calls `work(part, tensor)` for each part of a piece in it, in order.
  template <typename Work>
  void for_each_part(const Work& work) const {
    if (const Chunk* const dense = chunk()) {
      for (std::size_t i = dense->first_piece; i < dense->last_piece; ++i) {
        const Part part = part_of(batch_->pieces[i], *dense);
        if (part.nbytes != 0) work(part, batch_->first + batch_->pieces[i].tensor);
      }
      return;
    }
    const RunPiece& piece = run_piece();
    const std::uint64_t run_nbytes = piece.runs.run_nbytes;
    work(Part{0, run_chunk()->count * run_nbytes, piece.to + run_chunk()->first_run * run_nbytes},
         batch_->first + piece.tensor);
  }

 private:
  const Batch* batch_;  // of the load, which outlives its readers
  std::size_t number_;
};

class LoadState {
 public:
  LoadState(Context* context, std::vector<std::shared_ptr<const ByteSource>> sources,
            const LoadOptions& options);
  LoadState(const LoadState&) = delete;
  LoadState& operator=(const LoadState&) = delete;
  /// No reader is left.
  ~LoadState();

  // What Load's functions of these names do.
  Load::Index add(std::span<const LoadTensor> tensors, Stream stream, bool is_first);
  void finish();
  void start();
  void wait(const Interrupt& interrupt, const Load::Progress& progress);
  [[nodiscard]] bool wait_for(Load::Index tensor, const Interrupt& interrupt);
  [[nodiscard]] std::optional<Load::Index> next_ready(const Interrupt& interrupt);
  void stop() noexcept;
  [[nodiscard]] std::uint64_t done_nbytes() const noexcept { return done_nbytes_; }
  [[nodiscard]] std::uint64_t total_nbytes() const;
  [[nodiscard]] unsigned thread_count() const noexcept { return thread_count_; }
  /// `loads` run at once, this one included: it starts with its share of the readers.
  void share_readers(unsigned loads);
  /// Whether the load is this process's, and not that of one it was forked from.
  [[nodiscard]] bool is_own() const noexcept;
  /// Throws Error kInvalidArgument when it is not: after callbacks, which may have forked.
  void check_own() const;

  // For readers.
  [[nodiscard]] Context* context() const noexcept { return context_; }
  [[nodiscard]] const LoadConfig& config() const noexcept { return config_; }
  /// A source, with its file open. Throws Error: kIo, or kFileChanged.
  [[nodiscard]] std::shared_ptr<const ByteSource> source(std::uint32_t number) const;
  /// Whether reading it means waiting, and not copying memory.
  [[nodiscard]] bool is_slow(std::uint32_t source) const { return is_slow_[source]; }
  [[nodiscard]] bool is_stopping() const noexcept { return is_stopping_; }
  /// The next chunk, if there is one at once and the load is not to stop.
  [[nodiscard]] std::optional<Claim> try_claim();
  /// Waits until there may be a chunk. False when none will come: then the reader has left.
  [[nodiscard]] bool wait_for_work();
  /// The chunk's bytes are where they belong.
  void landed(const Claim& claim);
  /// The first error counts, and stops the load. With the names of the tensors it was about.
  void fail_with(std::exception_ptr error, const Claim* claim) noexcept;
  /// For a reader that found no staging memory: when others are at work, they get its chunk, and it
  /// has left.
  [[nodiscard]] bool may_retire(const Claim& claim);

 private:
  struct Plan;
  [[nodiscard]] Plan plan(std::span<const LoadTensor> tensors) const;
  void check(const LoadTensor& tensor) const;
  [[nodiscard]] Event record(Stream stream) const;
  /// The batch is the load's from now on. Returns its first tensor.
  Load::Index take_on(Plan& made, std::span<const LoadTensor> tensors, bool is_first);
  [[nodiscard]] unsigned readers_wanted() const;
  [[nodiscard]] bool is_small() const;
  /// A reader's whole life, on whichever thread.
  void read(unsigned number, const std::function<void()>& between) noexcept;
  /// False when there is none to be had.
  bool start_threads();
  /// The same, for who cannot go on without. Throws Error kIo.
  void need_threads();
  void join() noexcept;
  /// Waits until `is_so`, and lets `interrupt` look after signals meanwhile. It is so as long as
  /// the lock on `mutex_` is held.
  [[nodiscard]] std::unique_lock<std::mutex> wait_until(std::condition_variable& change,
                                                        const std::function<bool()>& is_so,
                                                        const Interrupt& interrupt);
  /// Whoever waits looks again.
  void notify_all() noexcept;
  /// Returns the error with the names of the claim's tensors; its subject is the tensor if there is
  /// one only.
  [[nodiscard]] Error named(const Error& error, const Claim& claim) const;
  [[nodiscard]] bool is_all_landed() const noexcept { return is_finished_ && chunks_left_ == 0; }

  Context* const context_;
  const std::vector<std::shared_ptr<const ByteSource>> sources_;
  const std::vector<bool> is_slow_;
  const LoadConfig config_;
  const unsigned threads_wanted_;
  const std::uint64_t generation_;

  /// Files that were read last, kept open: chunks of a source mostly follow each other.
  struct OpenFile {
    std::uint32_t source = 0;
    std::shared_ptr<const ByteSource> file;
  };
  mutable std::mutex files_mutex_;
  mutable std::array<OpenFile, 8> open_files_;
  mutable std::size_t next_file_ = 0;

  mutable std::mutex mutex_;
  std::condition_variable work_;                // readers wait for chunks
  std::condition_variable change_;              // others wait for tensors
  std::condition_variable end_;                 // and for all of them
  std::deque<std::unique_ptr<Batch>> batches_;  // all of them, until the load is gone
  struct Queued {
    const Batch* batch;
    std::size_t next;
    std::size_t end;
  };
  std::deque<Queued> queue_;  // with chunks that nobody has taken
  std::vector<std::string_view> names_;
  std::vector<std::uint32_t> parts_left_;  // of each tensor
  std::deque<Load::Index> ready_;          // not handed out by next_ready
  std::size_t handed_out_ = 0;             // by next_ready
  std::size_t chunks_left_ = 0;            // that have not landed
  std::exception_ptr error_;
  unsigned readers_ = 0;  // that will look at the queue again
  unsigned loads_at_once_ = 1;
  bool is_finished_ = false;
  bool is_started_ = false;
  std::atomic<bool> is_stopping_{false};
  std::atomic<std::uint64_t> done_nbytes_{0};
  std::uint64_t total_nbytes_ = 0;
  std::atomic<unsigned> thread_count_{0};

  std::mutex join_mutex_;  // held while threads are joined; taken before mutex_
  std::vector<std::thread> threads_;
};

}  // namespace safetensors::device
