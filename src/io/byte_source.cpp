#include "safetensors/byte_source.hpp"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "io/chunk_reader.hpp"
#include "io/new_memory.hpp"
#include "io/parallel.hpp"
#include "io/read_plan.hpp"
#include "safetensors/buffer.hpp"
#include "safetensors/error.hpp"

namespace safetensors {
namespace {

// Where reads do not wait, a system call takes as long as a copy of so many bytes, and new scratch
// memory takes longer.
constexpr std::uint64_t kShortReadyPiece = std::uint64_t{16} << 10;

std::uint64_t short_piece(const ReadCost& cost) noexcept {
  return cost.is_request || cost.min_nbytes != 0 ? io::kShortPiece : kShortReadyPiece;
}

}  // namespace

ByteSource::~ByteSource() = default;

unsigned ByteSource::concurrency() const noexcept { return 0; }

ReadCost ByteSource::cost() const noexcept { return {}; }

std::uint64_t ByteSource::divide(std::uint64_t /*begin*/, std::uint64_t limit) const noexcept {
  return limit;
}

void ByteSource::read_parts(std::uint64_t offset, std::uint64_t nbytes,
                            std::span<const ReadPiece> parts) const {
  const ReadCost reads = cost();
  if (reads.is_request && parts.size() > 1) {
    const Buffer answer(static_cast<std::size_t>(nbytes));
    read_at(offset, answer.bytes());
    return io::copy_parts(offset, answer.bytes(), parts);
  }
  const std::uint64_t short_nbytes = short_piece(reads);
  Buffer scratch;
  for (std::size_t i = 0; i < parts.size();) {
    // A long part, or as many short ones as fit in the scratch memory.
    const std::uint64_t begin = parts[i].offset;
    std::uint64_t end = begin + parts[i].to.size();
    std::size_t last = i + 1;
    if (parts[i].to.size() < short_nbytes) {
      for (; last < parts.size() && parts[last].to.size() < short_nbytes; ++last) {
        const std::uint64_t next = std::max(end, parts[last].offset + parts[last].to.size());
        if (next - begin > io::kScratchSize) break;
        end = next;
      }
    }
    if (last == i + 1) {
      read_at(begin, parts[i].to);
    } else {
      if (scratch.size() == 0) {
        scratch = Buffer(static_cast<std::size_t>(std::min(io::kScratchSize, nbytes)));
      }
      const auto read = scratch.bytes().first(static_cast<std::size_t>(end - begin));
      read_at(begin, read);
      io::copy_parts(begin, read, parts.subspan(i, last - i));
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
  std::uint64_t nbytes = 0;
  for (const ReadPiece& piece : pieces) {
    if (piece.to.empty()) continue;
    if (piece.offset > open.size() || piece.to.size() > open.size() - piece.offset) {
      fail(ErrorCode::kInvalidArgument, "a piece reaches past the end of its source");
    }
    nbytes += piece.to.size();
  }
  if (nbytes == 0) return;
  if (pieces.size() == 1 && nbytes <= io::kTaskSize) {
    io::provide_pages(pieces[0].to);
    open.read_at(pieces[0].offset, pieces[0].to);  // without a plan, which takes longer
    return;
  }
  io::ReadPlan plan;
  plan.pieces.reserve(pieces.size());
  for (const ReadPiece& piece : pieces) {
    if (piece.to.empty()) continue;
    plan.pieces.push_back({0, 0, piece.offset, piece.to.size(), io::address_of(piece.to.data())});
  }
  io::PlannedSource planned = io::planned(open, io::kTaskSize);
  // Chunks begin with the pieces: no two threads then fill the same huge page of a destination.
  planned.cost.alignment = 1;
  plan.plan({&planned, 1});
  io::read_plan(open, plan, nbytes, interrupt);
}

}  // namespace safetensors
