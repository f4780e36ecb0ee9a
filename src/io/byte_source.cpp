#include "safetensors/byte_source.hpp"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "io/parallel.hpp"
#include "safetensors/buffer.hpp"
#include "safetensors/error.hpp"

namespace safetensors {
namespace {

// Smaller pieces are read together into a scratch buffer, which stays in the processor's cache.
constexpr std::size_t kSmallPiece = std::size_t{256} << 10;
constexpr std::size_t kScratchSize = std::size_t{1} << 20;

/// A stretch of the source that one task reads: a part of a long piece, or several short pieces
/// that are adjacent in the source.
///
///     pieces    [ long piece               ][ a ][b][  c  ]    [ d ]
///     stretches [  4 MiB   ][  4 MiB  ][    ][ one read    ]    [   ]
struct Stretch {
  std::size_t first_piece;
  std::size_t last_piece;  // inclusive
  std::size_t skip;        // bytes of the first piece before the stretch
  std::size_t nbytes;
};

std::vector<Stretch> stretches_of(std::span<const ReadPiece> pieces) {
  std::vector<Stretch> stretches;
  for (std::size_t i = 0; i < pieces.size();) {
    const std::size_t nbytes = pieces[i].to.size();
    if (nbytes >= kSmallPiece) {
      for (std::size_t skip = 0; skip < nbytes; skip += io::kTaskSize) {
        stretches.push_back({i, i, skip, std::min(io::kTaskSize, nbytes - skip)});
      }
      ++i;
      continue;
    }
    Stretch together{i, i, 0, nbytes};
    for (++i; i < pieces.size(); ++i) {
      const std::size_t more = pieces[i].to.size();
      const bool adjoins =
          pieces[i].offset == pieces[together.first_piece].offset + together.nbytes;
      if (!adjoins || more >= kSmallPiece || together.nbytes + more > kScratchSize) break;
      together.last_piece = i;
      together.nbytes += more;
    }
    if (together.nbytes != 0) stretches.push_back(together);
  }
  return stretches;
}

void read_stretch(const ByteSource& source, std::span<const ReadPiece> pieces,
                  const Stretch& stretch) {
  const ReadPiece& first = pieces[stretch.first_piece];
  if (stretch.first_piece == stretch.last_piece) {
    source.read_at(first.offset + stretch.skip, first.to.subspan(stretch.skip, stretch.nbytes));
    return;
  }
  const Buffer scratch(stretch.nbytes);
  source.read_at(first.offset, scratch.bytes());
  const std::byte* from = scratch.data();
  for (std::size_t i = stretch.first_piece; i <= stretch.last_piece; ++i) {
    const std::span<std::byte> to = pieces[i].to;
    if (!to.empty()) std::memcpy(to.data(), from, to.size());
    from += to.size();
  }
}

}  // namespace

ByteSource::~ByteSource() = default;

unsigned ByteSource::concurrency() const noexcept { return 0; }

ReadCost ByteSource::cost() const noexcept { return {}; }

void ByteSource::read_parts(std::uint64_t /*offset*/, std::uint64_t nbytes,
                            std::span<const ReadPiece> parts) const {
  Buffer scratch;
  for (std::size_t i = 0; i < parts.size();) {
    // A long part, or as many short ones as fit in the scratch memory.
    const std::uint64_t begin = parts[i].offset;
    std::uint64_t end = begin + parts[i].to.size();
    std::size_t last = i + 1;
    if (parts[i].to.size() < kSmallPiece) {
      for (; last < parts.size() && parts[last].to.size() < kSmallPiece; ++last) {
        const std::uint64_t next = std::max(end, parts[last].offset + parts[last].to.size());
        if (next - begin > kScratchSize) break;
        end = next;
      }
    }
    if (last == i + 1) {
      read_at(begin, parts[i].to);
    } else {
      if (scratch.size() == 0) {
        scratch = Buffer(static_cast<std::size_t>(std::min<std::uint64_t>(kScratchSize, nbytes)));
      }
      read_at(begin, scratch.bytes().first(static_cast<std::size_t>(end - begin)));
      for (const ReadPiece& part : parts.subspan(i, last - i)) {
        if (part.to.empty()) continue;
        std::memcpy(part.to.data(), scratch.data() + (part.offset - begin), part.to.size());
      }
    }
    i = last;
  }
}

std::span<const std::byte> ByteSource::memory() const noexcept { return {}; }

std::shared_ptr<const ByteSource> ByteSource::keep_open() const { return nullptr; }

int ByteSource::descriptor() const { return -1; }

MemorySource::MemorySource(std::span<const std::byte> bytes,
                           std::shared_ptr<const void> owner) noexcept
    : bytes_(bytes), owner_(std::move(owner)) {}

MemorySource::~MemorySource() = default;

void MemorySource::read_at(std::uint64_t offset, std::span<std::byte> to) const {
  if (offset > size() || to.size() > size() - offset) {
    fail(ErrorCode::kInvalidArgument, "read past the end of a source in memory");
  }
  if (to.empty()) return;
  std::memcpy(to.data(), bytes_.data() + static_cast<std::size_t>(offset), to.size());
}

void read_all(const ByteSource& source, std::span<const ReadPiece> pieces,
              const Interrupt& interrupt) {
  const std::shared_ptr<const ByteSource> kept = source.keep_open();
  const ByteSource& open = kept ? *kept : source;
  const std::vector<Stretch> stretches = stretches_of(pieces);
  std::uint64_t nbytes = 0;
  for (const Stretch& stretch : stretches) nbytes += stretch.nbytes;
  parallel_for(
      stretches.size(), nbytes, [&](std::size_t i) { read_stretch(open, pieces, stretches[i]); },
      interrupt, io::readers_of(open, nbytes));
}

}  // namespace safetensors
