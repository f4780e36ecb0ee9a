#include "safetensors/fill_page_cache.hpp"

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "io/io_policy.hpp"
#include "io/parallel.hpp"
#include "io/read_ahead.hpp"
#include "io/run_cursor.hpp"
#include "io/system.hpp"
#include "open/strided_read.hpp"

namespace safetensors {
namespace {

/// A range of a file that one task reads.
struct Stretch {
  std::uint64_t begin;
  std::uint64_t end;
  std::uint64_t wanted;  ///< its bytes without the gaps between short runs
};

/// What is read of one file.
struct FileStretches {
  const SafeOpen* file;
  std::shared_ptr<const MappedFile> mapping;  ///< null: nothing is read
  std::vector<Stretch> stretches;

  [[nodiscard]] std::uint64_t nbytes() const noexcept {
    std::uint64_t sum = 0;
    for (const Stretch& each : stretches) sum += each.end - each.begin;
    return sum;
  }
  [[nodiscard]] std::uint64_t wanted() const noexcept {
    std::uint64_t sum = 0;
    for (const Stretch& each : stretches) sum += each.wanted;
    return sum;
  }
};

/// Appends a range, divided into tasks. A short one joins the task before it if that ends where it
/// begins.
void add(std::vector<Stretch>& all, std::uint64_t begin, std::uint64_t end) {
  while (begin < end) {
    if (all.empty() || all.back().end != begin || end - all.back().begin > io::kTaskSize) {
      all.push_back({begin, begin, 0});
    }
    const std::uint64_t nbytes = std::min<std::uint64_t>(end - begin, io::kTaskSize);
    begin += nbytes;
    all.back().end = begin;
    all.back().wanted += nbytes;
  }
}

/// Appends runs of a tensor that begins at `position`. Short gaps between them are read, too.
void add_runs(std::vector<Stretch>& all, std::uint64_t position, const ByteRuns& runs) {
  if (runs.nbytes() == 0) return;
  io::RunCursor cursor(runs, 0);
  for (std::uint64_t left = runs.run_count(); left > 0;) {
    const io::Stretch found = io::next_stretch(cursor, left, ReadCost{}.gap_nbytes, io::kTaskSize);
    left -= found.run_count;
    if (found.run_count == 1) {
      add(all, position + found.begin, position + found.end);
    } else {
      all.push_back(
          {position + found.begin, position + found.end, found.run_count * runs.run_nbytes});
    }
  }
}

std::vector<FileStretches> stretches_of(std::span<const CachedRead> reads) {
  std::vector<FileStretches> files;
  for (const auto& [file, info, runs] : reads) {
    if (files.empty() || files.back().file != file) files.push_back({file, file->mapping(), {}});
    std::vector<Stretch>& all = files.back().stretches;
    const std::uint64_t position = file->position(*info);
    if (runs.empty()) add(all, position, position + info->nbytes());
    check_runs(runs, info->nbytes(), UINT64_MAX);
    for (const ByteRuns& each : runs) add_runs(all, position, each);
  }
  return files;
}

/// Reads a mapped file, and adds to `done` what has been read.
void fill(const FileStretches& wanted, std::atomic<std::uint64_t>& done, const Interrupt& report) {
  const std::span<const std::byte> bytes = wanted.mapping->bytes();
  const std::shared_ptr<const ByteSource> source = wanted.file->source();
  const std::shared_ptr<const ByteSource> opened = source->keep_open();
  const ByteSource& from = opened ? *opened : *source;
  const std::uint64_t nbytes = wanted.nbytes();
  const auto read = [&](std::size_t i) {
    const Stretch& each = wanted.stretches[i];
    const auto begin = static_cast<std::size_t>(each.begin);
    const auto end = static_cast<std::size_t>(each.end);
    if (!io::is_resident(bytes.subspan(begin, end - begin))) io::discard(from, begin, end);
    done += each.wanted;
  };
  parallel_for(wanted.stretches.size(), nbytes, read, report, io::readers_of(from, nbytes));
}

}  // namespace

void fill_page_cache(std::span<const CachedRead> reads, const Interrupt& interrupt,
                     const std::function<void(std::uint64_t, std::uint64_t)>& progress) {
  const std::vector<FileStretches> files = stretches_of(reads);
  std::uint64_t total = 0;
  std::uint64_t nbytes = 0;
  for (const FileStretches& each : files) {
    total += each.wanted();
    if (each.mapping) nbytes += each.nbytes();
  }
  const bool fits = nbytes <= io::room_in(io::memory_available());
  std::atomic<std::uint64_t> done{0};
  const Interrupt report = [&] {
    if (interrupt) interrupt();
    if (progress && done < total) progress(done, total);
  };
  io::InterruptTimer between_files(report);
  for (const FileStretches& each : files) {
    between_files.poll();
    if (fits && each.mapping) {
      fill(each, done, report);
    } else {
      done += each.wanted();
    }
  }
  if (progress) progress(total, total);
}

}  // namespace safetensors
