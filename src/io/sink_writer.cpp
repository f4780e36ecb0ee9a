#include "io/gather.hpp"

#include <algorithm>
#include <cstring>

#include "io/parallel.hpp"

namespace safetensors::io {
namespace {

// Copying a piece of up to this size costs less than another system call.
constexpr std::size_t kSmallPiece = std::size_t{64} << 10;
constexpr std::size_t kGatherSize = std::size_t{1} << 20;
// Bytes of one system call. The interrupt is polled between calls.
constexpr std::size_t kMaxPerWrite = std::size_t{16} << 20;

class PieceWriter {
 public:
  PieceWriter(std::uint64_t total, const WriteOptions& options, const WriteSome& write_some)
      : total_(total),
        options_(options),
        write_some_(write_some),
        timer_(options.interrupt),
        gathered_(kGatherSize) {}

  void write(std::span<const std::byte> piece) {
    if (piece.empty()) return;
    if (piece.size() > kSmallPiece) {
      flush_gathered();
      write_now(piece);
      return;
    }
    if (piece.size() > gathered_.size() - used_) flush_gathered();
    std::memcpy(gathered_.data() + used_, piece.data(), piece.size());
    used_ += piece.size();
  }

  void flush_gathered() {
    write_now(gathered_.bytes().first(used_));
    used_ = 0;
  }

 private:
  void write_now(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      timer_.poll();
      const std::size_t wanted = std::min(bytes.size(), kMaxPerWrite);
      const std::size_t done = write_some_(bytes.first(wanted));
      if (done < wanted) timer_.poll_now();  // most likely a signal interrupted it
      bytes = bytes.subspan(done);
      done_ += done;
      if (options_.progress && done != 0) options_.progress(done_, total_);
    }
  }

  std::uint64_t total_;
  std::uint64_t done_ = 0;
  const WriteOptions& options_;
  const WriteSome& write_some_;
  InterruptTimer timer_;
  Buffer gathered_;
  std::size_t used_ = 0;
};

}  // namespace

void write_gathered(const FileContent& content, const WriteOptions& options,
                    const WriteSome& write_some) {
  PieceWriter writer(content.total_nbytes, options, write_some);
  for (const std::span<const std::byte> piece : content.pieces) writer.write(piece);
  writer.flush_gathered();
}

}  // namespace safetensors::io
