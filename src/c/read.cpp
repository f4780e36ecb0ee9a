// Reading tensors and parts of tensors, as they are stored or converted.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/checked.hpp"
#include "base/text.hpp"
#include "c/file.hpp"
#include "c/guard.hpp"
#include "c/one_or_many.hpp"
#include "c/options.hpp"
#include "c/request.hpp"
#include "safetensors/cast.hpp"
#include "safetensors/device.hpp"
#include "safetensors/mapped_file.hpp"
#include "safetensors/parallel.hpp"

using safetensors::Buffer;
using safetensors::ByteRuns;
using safetensors::Dtype;
using safetensors::ErrorCode;
using safetensors::fail;
using safetensors::Interrupt;
using safetensors::ModelRead;
using safetensors::SafeOpen;
using safetensors::TensorInfo;
using safetensors::c::check_pointer;
using safetensors::c::guarded;
using safetensors::c::LoadList;
using safetensors::c::OneOrMany;
using safetensors::c::Selected;
using safetensors::c::Watch;

namespace {

/// Stored bytes that are read and converted at once.
constexpr std::uint64_t kPieceSize = std::uint64_t{1} << 20;

/// Returns the size of elements of one dtype in another one. Throws: Error kOverflow.
std::uint64_t converted_nbytes(std::uint64_t nbytes, Dtype from, Dtype to) {
  const std::uint64_t from_bits = bit_size(from);
  const std::uint64_t to_bits = bit_size(to);
  if (nbytes > UINT64_MAX / 8 / to_bits) {
    fail(ErrorCode::kOverflow, "the size of the converted tensor does not fit in 64 bits");
  }
  return nbytes * 8 / from_bits * to_bits / 8;
}

/// Calls `take` with parts of `runs`, each of which has at most kPieceSize bytes.
template <typename Take>
void divide(const ByteRuns& runs, const Take& take) {
  if (runs.nbytes() <= kPieceSize) {
    if (runs.nbytes() != 0) take(runs);
    return;
  }
  ByteRuns part = runs;
  if (runs.loops.empty()) {
    for (std::uint64_t at = 0; at < runs.run_nbytes; at += kPieceSize) {
      part.first = runs.first + at;
      part.to_first = runs.to_first + at;
      part.run_nbytes = std::min(kPieceSize, runs.run_nbytes - at);
      take(part);
    }
    return;
  }
  const ByteRuns::Loop outer = runs.loops.front();
  const std::uint64_t each = runs.nbytes() / outer.count;
  const std::uint64_t at_once = std::max<std::uint64_t>(1, kPieceSize / each);
  if (at_once == 1) part.loops.erase(part.loops.begin());
  for (std::uint64_t i = 0; i < outer.count; i += at_once) {
    part.first = runs.first + i * outer.stride;
    part.to_first = runs.to_first + i * outer.to_stride;
    if (at_once != 1) part.loops.front().count = std::min(at_once, outer.count - i);
    divide(part, take);
  }
}

/// Calls `take` with the place of each run at the destination, in order.
template <typename Take>
void for_each_place(std::span<const ByteRuns::Loop> loops, std::uint64_t place, const Take& take) {
  if (loops.empty()) {
    take(place);
    return;
  }
  for (std::uint64_t i = 0; i < loops.front().count; ++i) {
    for_each_place(loops.subspan(1), place + i * loops.front().to_stride, take);
  }
}

/// A part of a tensor that is converted.
struct Piece {
  const SafeOpen* file;
  const TensorInfo* info;
  ByteRuns runs;  ///< their destinations are those of the stored bytes
  std::byte* to;  ///< of the whole part
  Dtype from;
  Dtype dtype;

  void run() const {
    ByteRuns dense = runs;
    dense.concatenate();
    const std::uint64_t nbytes = runs.nbytes();
    if (runs.loops.empty()) {  // then it need not be copied from a mapped file
      TensorInfo part = *info;
      part.begin += runs.first;
      part.end = part.begin + nbytes;
      const safetensors::TensorView view = file->get_tensor(part);
      // Reading the last byte fails if the file has been truncated below it.
      if (file->mapping() && safetensors::is_truncated(view.bytes())) {
        std::byte last{};
        file->read(part, {.first = nbytes - 1, .run_nbytes = 1, .loops = {}, .to_first = 0},
                   {&last, 1});
      }
      convert(view.bytes(), dense);
      return;
    }
    const Buffer stored(static_cast<std::size_t>(nbytes));
    file->read(*info, dense, stored.bytes());
    convert(stored.bytes(), dense);
  }

 private:
  /// Converts the stored bytes of the piece. `dense` are its runs, one after another.
  void convert(std::span<const std::byte> stored, const ByteRuns& dense) const {
    const std::uint64_t nbytes = stored.size();
    const std::uint64_t first = converted_nbytes(runs.to_first, from, dtype);
    const auto size = static_cast<std::size_t>(converted_nbytes(nbytes, from, dtype));
    const bool follow = std::ranges::equal(
        runs.loops, dense.loops,
        [](const auto& one, const auto& other) { return one.to_stride == other.to_stride; });
    if (follow) {
      cast_elements(from, stored, dtype, {to + first, size});
      return;
    }
    const Buffer values(size);
    cast_elements(from, stored, dtype, values.bytes());
    const std::uint64_t run = converted_nbytes(runs.run_nbytes, from, dtype);
    const std::byte* next = values.data();
    for_each_place(runs.loops, runs.to_first, [&](std::uint64_t place) {
      std::memcpy(to + converted_nbytes(place, from, dtype), next, static_cast<std::size_t>(run));
      next += run;
    });
  }
};

/// A request that was checked.
struct Wanted {
  Selected selected{};
  Dtype dtype{};
  std::span<std::byte> to{};
  std::uint64_t nbytes = 0;  ///< stored

  [[nodiscard]] bool is_converted() const noexcept { return dtype != selected.info.dtype; }
  /// Returns whether each read of the file is a request to a server.
  [[nodiscard]] bool is_request() const {
    const SafeOpen& from = *selected.from;
    return from.backend() == safetensors::Backend::kSource && from.source()->cost().is_request;
  }
  /// Reads what is not converted, without the lists of a bulk read, which take longer to make than
  /// a row to copy.
  void read(const Interrupt& interrupt) const {
    const std::span<const ByteRuns> runs = selected.runs.all();
    if (runs.empty()) {
      selected.from->read(selected.info, to, interrupt);
    } else {
      selected.from->read(selected.info, runs, to, interrupt);
    }
  }
};

/// What safetensors_read is asked for.
class Reads {
 public:
  Reads(const safetensors_file& file, std::span<const safetensors_request> requests)
      : file_(file), is_bulk_(requests.size() > 1) {
    wanted_.reserve(requests.size());
    for (const safetensors_request& each : requests) add(each);
  }

  void run(const Watch& watch) {
    const Interrupt interrupt = watch.interrupt();
    if (stored_nbytes_ != 0) read_stored(watch, interrupt);
    if (!pieces_.empty()) convert(watch, interrupt);
    watch.show(total(), total());
  }

 private:
  [[nodiscard]] std::uint64_t total() const noexcept { return stored_nbytes_ + piece_nbytes_; }

  /// Calls `take` with each request that has bytes which are not converted.
  template <typename Take>
  void for_each_stored(const Take& take) const {
    for (const Wanted& each : wanted_.all()) {
      if (each.nbytes != 0 && !each.is_converted()) take(each);
    }
  }

  void add(const safetensors_request& request) {
    Wanted& wanted = wanted_.add();
    Selected& selected = wanted.selected;
    safetensors::c::select(file_, request, is_bulk_, selected);
    const TensorInfo& info = selected.info;
    const std::uint64_t nbytes = wanted.nbytes = selected.nbytes();
    wanted.dtype = request.dtype == SAFETENSORS_AS_STORED ? info.dtype
                                                          : safetensors::c::dtype_of(request.dtype);
    const bool is_converted = wanted.is_converted();
    if (is_converted) {  // throws if it cannot be
      safetensors::cast_elements(info.dtype, {}, wanted.dtype, {});
    }
    const std::uint64_t room =
        is_converted ? converted_nbytes(nbytes, info.dtype, wanted.dtype) : nbytes;
    safetensors::detail::check_size(info, room, request.room, &selected.from->path());
    wanted.to = {static_cast<std::byte*>(request.to), safetensors::memory_size(request.room)};
    if (nbytes == 0) return;
    if (!is_converted) {
      stored_nbytes_ += nbytes;
      is_request_ = is_request_ || wanted.is_request();
      return;
    }
    if (wanted.is_request()) {
      readers_ = std::max(readers_, selected.from->source()->concurrency());
    }
    const auto take = [&](const ByteRuns& part) {
      pieces_.push_back({selected.from, &info, part, wanted.to.data(), info.dtype, wanted.dtype});
    };
    const std::span<const ByteRuns> runs = selected.runs.all();
    if (runs.empty()) divide({.first = 0, .run_nbytes = nbytes, .loops = {}, .to_first = 0}, take);
    for (const ByteRuns& each : runs) divide(each, take);
    piece_nbytes_ += nbytes;
  }

  /// Reads what is not converted.
  void read_stored(const Watch& watch, const Interrupt& interrupt) const {
    if (watch.has_progress() || is_request_) {
      load(watch, interrupt);
    } else if (is_bulk_) {
      std::vector<ModelRead> reads;
      reads.reserve(wanted_.all().size());
      for_each_stored([&](const Wanted& each) {
        const Selected& selected = each.selected;
        reads.push_back({{&selected.info, selected.file}, each.to, selected.runs.all()});
      });
      file_.read(reads, interrupt);
    } else {
      for_each_stored([&](const Wanted& only) { only.read(interrupt); });
    }
  }

  /// Reads what is not converted, with progress.
  void load(const Watch& watch, const Interrupt& interrupt) const {
    LoadList list;
    for_each_stored([&](const Wanted& each) {
      const Selected& selected = each.selected;
      list.add(*selected.from, selected.file, selected.info, selected.runs.all(), each.to.size(),
               reinterpret_cast<std::uintptr_t>(each.to.data()));
    });
    safetensors::Load load({}, list.sources());
    (void)load.add(list.tensors());
    load.finish();
    safetensors::Load::Progress progress;
    if (watch.has_progress()) {
      progress = [&](std::uint64_t done, std::uint64_t) {
        if (done < total()) watch.show(done, total());
      };
    }
    load.wait(interrupt, progress);
  }

  void convert(const Watch& watch, const Interrupt& interrupt) {
    std::atomic<std::uint64_t> done = stored_nbytes_;
    const auto task = [&](std::size_t i) {
      pieces_[i].run();
      done.fetch_add(pieces_[i].runs.nbytes(), std::memory_order_relaxed);
    };
    const Interrupt both = [&] {
      if (interrupt) interrupt();
      watch.show(done.load(std::memory_order_relaxed), total());
    };
    const bool is_watched = interrupt || watch.has_progress();
    // A server answers several small requests at once, too.
    const std::uint64_t nbytes = readers_ > 1 ? UINT64_MAX : piece_nbytes_;
    safetensors::parallel_for(pieces_.size(), nbytes, task, is_watched ? both : Interrupt(),
                              readers_);
  }

  const safetensors_file& file_;
  bool is_bulk_;  // a bulk read asks how many threads are best, which takes longer than a row
  OneOrMany<Wanted> wanted_;   // their addresses stay
  std::vector<Piece> pieces_;  // of what is converted
  std::uint64_t stored_nbytes_ = 0;
  std::uint64_t piece_nbytes_ = 0;
  bool is_request_ = false;  // of what is not converted, some is of a server
  unsigned readers_ = 0;     // at once, of what is converted and is of a server
};

}  // namespace

std::int32_t safetensors_read(const safetensors_file* file, const safetensors_request* requests,
                              std::size_t count, const safetensors_watch* watch,
                              safetensors_error* error) {
  return guarded(error, [&] {
    check_pointer(file, 1, "file");
    check_pointer(requests, count, "requests");
    const Watch watched(watch);
    Reads(*file, {requests, count}).run(watched);
  });
}

std::int32_t safetensors_convert(std::int32_t from_dtype, const void* from, std::uint64_t nbytes,
                                 std::int32_t to_dtype, void* to, std::uint64_t room,
                                 safetensors_error* error) {
  return guarded(error, [&] {
    check_pointer(from, nbytes, "from");
    check_pointer(to, room, "to");
    safetensors::cast_elements(
        safetensors::c::dtype_of(from_dtype),
        {static_cast<const std::byte*>(from), safetensors::memory_size(nbytes)},
        safetensors::c::dtype_of(to_dtype),
        {static_cast<std::byte*>(to), safetensors::memory_size(room)});
  });
}
