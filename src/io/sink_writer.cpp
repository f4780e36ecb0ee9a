#include "io/sink_writer.hpp"

#include <algorithm>
#include <cstring>
#include <string>

#include "safetensors/error.hpp"

namespace safetensors::io {
namespace {

// Copying a piece of up to this size costs less than another system call.
constexpr std::size_t kSmallPiece = std::size_t{64} << 10;
constexpr std::size_t kGatherSize = std::size_t{1} << 20;
// Bytes of one system call. The interrupt is polled between calls.
constexpr std::size_t kMaxPerWrite = std::size_t{16} << 20;

/// Returns what a sink says that it has written, checked: programs have sinks of their own.
std::uint64_t checked_done(std::uint64_t done, std::uint64_t wanted) {
  if (done <= wanted) return done;
  fail(ErrorCode::kInvalidArgument, "the sink was given " + std::to_string(wanted) +
                                        " bytes, and says that it has written " +
                                        std::to_string(done));
}

}  // namespace

SinkWriter::SinkWriter(ByteSink& sink, std::uint64_t total_nbytes, const Interrupt& interrupt,
                       const WriteProgress& progress)
    : sink_(sink),
      total_(total_nbytes),
      progress_(progress),
      timer_(interrupt),
      gathered_(total_nbytes == 0 ? kGatherSize
                                  : static_cast<std::size_t>(
                                        std::min<std::uint64_t>(kGatherSize, total_nbytes))) {}

bool SinkWriter::is_small(std::size_t nbytes) noexcept { return nbytes <= kSmallPiece; }

void SinkWriter::gather(std::uint64_t offset, std::span<const std::byte> piece) {
  if (piece.empty()) return;
  if (offset != begin_ + used_ || piece.size() > gathered_.size() - used_) flush();
  if (piece.size() > gathered_.size()) {
    write_now(offset, piece);
    return;
  }
  if (used_ == 0) begin_ = offset;
  std::memcpy(gathered_.data() + used_, piece.data(), piece.size());
  used_ += piece.size();
}

void SinkWriter::write_now(std::uint64_t offset, std::span<const std::byte> piece) {
  write_all(offset, piece, true);
}

void SinkWriter::write_all(std::uint64_t offset, std::span<const std::byte> piece, bool reports) {
  while (!piece.empty()) {
    timer_.poll();
    const std::size_t wanted = std::min(piece.size(), kMaxPerWrite);
    const auto done =
        static_cast<std::size_t>(checked_done(sink_.write_at(offset, piece.first(wanted)), wanted));
    if (done < wanted) timer_.poll_now();  // most likely a signal interrupted it
    piece = piece.subspan(done);
    offset += done;
    if (reports) report(done);
  }
}

void SinkWriter::copy(const ByteSource& source, std::uint64_t begin, std::uint64_t nbytes,
                      std::uint64_t offset) {
  const std::shared_ptr<const ByteSource> kept = source.keep_open();
  const ByteSource& from = kept ? *kept : source;
  while (nbytes != 0 && sink_.seeks()) {
    timer_.poll();
    const std::uint64_t done = checked_done(sink_.copy_from(from, begin, nbytes, offset), nbytes);
    if (done == 0) break;
    begin += done;
    offset += done;
    nbytes -= done;
    report(done);
  }
  if (nbytes == 0) return;
  const std::span<const std::byte> memory = from.memory();
  if (!memory.empty()) {
    write_now(offset,
              memory.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(nbytes)));
    return;
  }
  const Buffer buffer(static_cast<std::size_t>(std::min<std::uint64_t>(nbytes, kTaskSize)));
  while (nbytes != 0) {
    const std::span<std::byte> chunk = buffer.bytes().first(
        static_cast<std::size_t>(std::min<std::uint64_t>(nbytes, buffer.size())));
    from.read_at(begin, chunk);
    write_now(offset, chunk);
    begin += chunk.size();
    offset += chunk.size();
    nbytes -= chunk.size();
  }
}

void SinkWriter::flush() {
  const std::size_t used = used_;
  used_ = 0;
  write_now(begin_, gathered_.bytes().first(used));
}

void SinkWriter::patch(std::uint64_t offset, std::span<const std::byte> bytes) {
  if (offset >= begin_ && offset - begin_ <= used_ && bytes.size() <= used_ - (offset - begin_)) {
    std::memcpy(gathered_.data() + (offset - begin_), bytes.data(), bytes.size());
    return;
  }
  flush();
  write_all(offset, bytes, false);
}

void SinkWriter::report(std::uint64_t nbytes) {
  if (!progress_ || nbytes == 0) return;
  const std::lock_guard lock(progress_mutex_);
  done_ += nbytes;
  progress_(done_, total_);
}

}  // namespace safetensors::io
