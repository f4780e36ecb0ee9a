// Moving and copying. Allocation is in posix/buffer.cpp and windows/buffer.cpp.
#include "safetensors/buffer.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "io/new_memory.hpp"
#include "io/parallel.hpp"
#include "io/system.hpp"

namespace safetensors {

Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  Buffer taken(std::move(other));
  std::swap(data_, taken.data_);
  std::swap(size_, taken.size_);
  return *this;
}

std::uint64_t memory_available() { return io::memory_available(); }

void copy_all(std::span<const CopyPiece> pieces, const Interrupt& interrupt) {
  // A task is a stretch of all pieces, put end to end; `begins` are the pieces' positions there.
  std::vector<std::uint64_t> begins;
  begins.reserve(pieces.size());
  std::uint64_t nbytes = 0;
  for (const CopyPiece& piece : pieces) {
    begins.push_back(nbytes);
    nbytes += piece.nbytes;
  }
  const auto tasks = static_cast<std::size_t>((nbytes + io::kTaskSize - 1) / io::kTaskSize);
  const auto copy_task = [&](std::size_t task) {
    const std::uint64_t begin = std::uint64_t{task} * io::kTaskSize;
    const std::uint64_t end = std::min<std::uint64_t>(begin + io::kTaskSize, nbytes);
    auto i = static_cast<std::size_t>(std::upper_bound(begins.begin(), begins.end(), begin) -
                                      begins.begin() - 1);
    for (; i < pieces.size() && begins[i] < end; ++i) {
      const std::uint64_t from = std::max(begin, begins[i]) - begins[i];
      const std::uint64_t to = std::min<std::uint64_t>(end - begins[i], pieces[i].nbytes);
      if (from >= to) continue;
      const std::span<std::byte> filled(pieces[i].to + from, static_cast<std::size_t>(to - from));
      io::provide_pages(filled);
      std::memcpy(filled.data(), pieces[i].from + from, filled.size());
    }
  };
  parallel_for(tasks, nbytes, copy_task, interrupt);
}

}  // namespace safetensors
