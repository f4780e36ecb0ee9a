// _StagedSave, a save in the background, and the memory of such saves.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "errors.hpp"
#include "fast_def.hpp"
#include "gil.hpp"
#include "loan.hpp"
#include "register.hpp"
#include "safetensors/device.hpp"
#include "staging_arena.hpp"
#include "tensor_spec.hpp"
#include "typed_path.hpp"
#include "write_plan.hpp"
#include "write_sums.hpp"

namespace safetensors::python {
namespace {

constexpr std::size_t kChunk = StagingArena::kChunkSize;
constexpr auto kPollInterval = std::chrono::milliseconds(50);

/// A save whose tensors one thread copies to chunks, and another one writes to the file:
///
///     tensors --stage()--> chunks --write()--> file
///
/// The data section of the file is cut into chunks; the last one is shorter. write() returns each
/// chunk to the arena, which is what stage() waits for if the budget is used up. Where no thread
/// can be started, write_here() does both by turns.
class StagedSave {
 public:
  StagedSave(py::handle tensors, py::handle metadata, py::handle path, bool fsync, py::handle sums)
      : path_(path_to_save(path, "filename")), fsync_(fsync), sums_(to_write_sums(sums)) {
    std::vector<std::string_view> names;
    std::vector<TensorData> data;
    for (const auto& [key, value] : py::reinterpret_borrow<py::dict>(tensors)) {
      data.push_back(py::cast<const TensorSpec&>(value).data(text_of_key(key, "tensors")));
    }
    const std::optional<Metadata> given = metadata_of(metadata);
    LayoutPlan plan = saving({}, [&] {
      return with_save_prefix([&] { return plan_layout(data, given ? &*given : nullptr); });
    });
    const std::uint64_t begin = plan.prologue.size();
    for (const TensorData& each : data) sums_.add(each.name, each.dtype, each.shape);
    for (const std::size_t i : plan.order) {
      if (plan.places[i].nbytes == 0) continue;
      pieces_.push_back(
          {std::string(data[i].name), i, plan.places[i].begin - begin, data[i].bytes});
    }
    nbytes_ = plan.total_nbytes - begin;
    plan_ = plan_of_one(std::move(plan.prologue), nbytes_);
  }
  StagedSave(const StagedSave&) = delete;
  StagedSave& operator=(const StagedSave&) = delete;
  ~StagedSave() {
    // In a forked process, threads of its parent had the arena's mutex.
    if (&arena_ == &StagingArena::get()) end();
  }

  /// Copies the tensors. Returns when all are copied, or the save has ended. `readers` maps names
  /// of tensors that are not in memory to functions `f(begin, memoryview)`, which copy a part;
  /// those of tensors on CUDA devices to the index of the device and its current stream.
  void stage(const py::dict& readers, py::handle budget_bytes) {
    const std::vector<Place> places = places_of(readers);  // destroyed with the GIL
    const std::uint64_t budget = budget_of(budget_bytes);
    const Interrupt interrupt = python_interrupt();
    const GilRelease release;
    while (stage_some(budget, places, interrupt)) {
    }
  }

  /// Copies the tensors and writes the file, on the calling thread. Arguments as of stage().
  void write_here(const py::dict& readers, py::handle budget_bytes) {
    const std::vector<Place> places = places_of(readers);
    const std::uint64_t budget = budget_of(budget_bytes);
    interrupt_ = python_interrupt();
    stage_next_ = [&] { return stage_some(budget, places, interrupt_); };
    write();
  }

  /// Writes the file, as the chunks come.
  void write() {
    saving(path_, [&] {
      const GilRelease release;
      try {
        with_save_prefix([&] { write_chunks(); });
      } catch (...) {
        end();
        throw;
      }
    });
  }

  /// Makes write() throw, or never begin, and stage() return.
  void stop() {
    const GilRelease release;
    is_stopped_ = true;
    end();
  }

  [[nodiscard]] std::uint64_t nbytes_done() const noexcept { return done_; }

 private:
  struct Piece {
    std::string name;
    std::size_t tensor;
    std::uint64_t begin;               ///< in the data section
    std::span<const std::byte> bytes;  ///< of memory, or the address on a device
  };

  /// A CUDA device, and the stream whose work comes before the copies.
  using DeviceStream = std::pair<int, std::uintptr_t>;

  /// Where a tensor is: in memory, or on a device, or where a function of Python reads it.
  struct Place {
    py::object reader;
    std::optional<DeviceStream> device;
  };

  static Place place_of(const py::object& reader) {
    if (!py::isinstance<py::tuple>(reader)) return {reader, {}};
    return {{}, py::cast<DeviceStream>(reader)};
  }

  [[nodiscard]] std::vector<Place> places_of(const py::dict& readers) const {
    std::vector<Place> places;
    for (const Piece& piece : pieces_) {
      const py::str name = to_str(piece.name);
      places.push_back(readers.contains(name) ? place_of(readers[name]) : Place{});
    }
    return places;
  }

  [[nodiscard]] std::uint64_t budget_of(py::handle given) const {
    return given.is_none() ? arena_.default_budget() : size_of(given, "budget_bytes");
  }

  /// Copies to as many chunks as there is room for. Returns false if all tensors were copied, or
  /// the save has ended.
  bool stage_some(std::uint64_t budget, std::span<const Place> places, const Interrupt& interrupt) {
    if (staged_ == count()) return false;
    const std::size_t wanted = wait_for_room(budget, interrupt);
    if (wanted == 0) return false;
    std::vector<Buffer> chunks;
    try {
      while (chunks.size() < wanted) chunks.push_back(arena_.take());
      fill(chunks, places, interrupt);
    } catch (...) {
      for (Buffer& chunk : chunks) arena_.give_back(std::move(chunk));
      throw;
    }
    hand_over(std::move(chunks));
    return true;
  }

  [[nodiscard]] std::size_t count() const noexcept {
    return static_cast<std::size_t>((nbytes_ + kChunk - 1) / kChunk);
  }

  /// Waits until chunks may be taken. Returns how many; 0 if the save has ended.
  std::size_t wait_for_room(std::uint64_t budget, const Interrupt& interrupt) {
    std::unique_lock lock(arena_.mutex);
    while (!has_ended_) {
      const std::size_t allowed = arena_.allowed(budget);
      if (allowed != 0) return std::min(allowed, count() - staged_);
      arena_.changed.wait_for(lock, kPollInterval);
      lock.unlock();
      interrupt();
      lock.lock();
    }
    return 0;
  }

  /// Copies the next bytes of the data section.
  void fill(std::span<const Buffer> chunks, std::span<const Place> places,
            const Interrupt& interrupt) {
    struct Read {
      py::handle reader;
      std::uint64_t begin;
      std::span<std::byte> to;
    };
    std::vector<CopyPiece> copies;
    std::vector<Read> reads;
    std::map<DeviceStream, std::vector<HostCopy>> device_copies;
    std::uint64_t begin = std::uint64_t{staged_} * kChunk;
    for (const Buffer& chunk : chunks) {
      const std::uint64_t end = std::min<std::uint64_t>(begin + kChunk, nbytes_);
      for (; next_ < pieces_.size(); ++next_) {
        const Piece& piece = pieces_[next_];
        const std::uint64_t from = std::max(begin, piece.begin);
        const std::uint64_t to = std::min(end, piece.begin + piece.bytes.size());
        if (from < to) {
          const auto nbytes = static_cast<std::size_t>(to - from);
          const auto at = static_cast<std::size_t>(from - piece.begin);
          std::byte* const target = chunk.data() + (from - begin);
          if (const Place& place = places[next_]; place.device) {
            const auto address = reinterpret_cast<std::uintptr_t>(piece.bytes.data());
            device_copies[*place.device].push_back({address + at, {target, nbytes}});
          } else if (place.reader) {
            reads.push_back({place.reader, at, {target, nbytes}});
          } else {
            copies.push_back({target, piece.bytes.data() + at, nbytes});
          }
        }
        if (piece.begin + piece.bytes.size() > end) break;  // goes on in the next chunk
      }
      begin = end;
    }
    copy_all(copies, interrupt);
    for (const auto& [where, from_device] : device_copies) {
      const auto [index, stream] = where;
      copy_to_host(Device::cuda(index), reinterpret_cast<void*>(stream), from_device, interrupt);
    }
    // Not to the chunks themselves, which the next save uses again.
    Buffer lent;
    for (const Read& read : reads) {
      if (lent.size() < read.to.size()) lent = Buffer(read.to.size());
      const GilAcquire gil;
      Loan loan(std::move(lent), read.to.size(), false);
      (void)read.reader(read.begin, loan.view());
      lent = loan.take_back("the reader of a tensor");
      std::memcpy(read.to.data(), lent.data(), read.to.size());
    }
  }

  void hand_over(std::vector<Buffer> chunks) {
    {
      const std::lock_guard lock(arena_.mutex);
      staged_ += chunks.size();
      if (!has_ended_) {
        for (Buffer& chunk : chunks) staged_chunks_.push_back(std::move(chunk));
        chunks.clear();
      }
      arena_.changed.notify_all();
    }
    for (Buffer& chunk : chunks) arena_.give_back(std::move(chunk));
  }

  void check_running() const {
    if (interrupt_) interrupt_();
    if (is_stopped_) fail(ErrorCode::kWriterClosed, "the save was stopped");
  }

  [[nodiscard]] Buffer next_chunk() {
    if (stage_next_ && !has_staged()) (void)stage_next_();
    std::unique_lock lock(arena_.mutex);
    arena_.changed.wait(lock, [&] { return is_stopped_ || !staged_chunks_.empty(); });
    check_running();
    Buffer chunk = std::move(staged_chunks_.front());
    staged_chunks_.pop_front();
    return chunk;
  }

  [[nodiscard]] bool has_staged() {
    const std::lock_guard lock(arena_.mutex);
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
      if (chunk.size() != 0) arena_.give_back(std::move(chunk));
    };
    try {
      const Interrupt interrupt = [this] { check_running(); };
      FileWriter writer(make_file_sink(path_, {}, interrupt, sums_.before_rename(path_)),
                        std::move(plan_), {.fsync = fsync_, .interrupt = interrupt});
      for (std::uint64_t at = 0; at < nbytes_; at += kChunk) {
        if (at != 0) chunk = next_chunk();
        const auto size = static_cast<std::size_t>(std::min<std::uint64_t>(kChunk, nbytes_ - at));
        const std::span<const std::byte> bytes = chunk.bytes().first(size);
        sums_.write_beside(parts_of(at, bytes), [&] { writer.write_at(0, at, bytes); });
        give_back();
        done_ += size;
      }
      check_running();
      writer.commit();
      sums_.commit(fsync_);
    } catch (...) {
      give_back();
      throw;
    }
  }

  /// Ends the save: no chunk is staged or written any more.
  void end() {
    std::deque<Buffer> chunks;
    {
      const std::lock_guard lock(arena_.mutex);
      has_ended_ = true;
      chunks.swap(staged_chunks_);
      arena_.changed.notify_all();
    }
    for (Buffer& chunk : chunks) arena_.give_back(std::move(chunk));
  }

  StagingArena& arena_ = StagingArena::get();
  std::filesystem::path path_;
  bool fsync_;
  std::vector<Piece> pieces_;  // in file order, without empty ones
  std::uint64_t nbytes_ = 0;   // of the data section
  LayoutPlan plan_;
  detail::WriteSums sums_;
  std::size_t next_ = 0;          // the first piece that is not staged completely
  std::size_t next_written_ = 0;  // the first piece that is not written completely
  std::atomic<std::uint64_t> done_ = 0;
  std::atomic<bool> is_stopped_ = false;
  // Of write_here():
  Interrupt interrupt_;
  std::function<bool()> stage_next_;
  // Guarded by the arena's mutex:
  std::size_t staged_ = 0;  // chunks
  std::deque<Buffer> staged_chunks_;
  bool has_ended_ = false;
};

}  // namespace

void register_staged_save(py::module_& module) {
  Class<StagedSave>(module, "_StagedSave")
      .constructor(
          [](py::handle tensors, py::handle metadata, py::handle filename, bool fsync,
             py::handle sums) {
            return std::make_unique<StagedSave>(tensors, metadata, filename, fsync, sums);
          },
          py::arg("tensors"), py::arg("metadata"), py::arg("filename"), py::arg("fsync"),
          py::arg("sums") = py::none())
      .method("stage", &StagedSave::stage, py::arg("readers"), py::arg("budget_bytes"))
      .method("write", &StagedSave::write)
      .method("write_here", &StagedSave::write_here, py::arg("readers"), py::arg("budget_bytes"))
      .method("stop", &StagedSave::stop)
      .property("nbytes_done", &StagedSave::nbytes_done);
  define(module, "_renew_staging", &StagingArena::renew);
  define(module, "_staging_state", [] {
    const auto [used, kept] = StagingArena::get().state();
    return py::make_tuple(used, kept);
  });
}

}  // namespace safetensors::python
