#include "io/posix/direct_source.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <optional>

namespace safetensors::io {
namespace {

// For positions, sizes and memory: the strictest requirement of current devices.
constexpr std::uint64_t kAlignment = 4096;
// The kernel splits a request of this size into as many as the device accepts at once.
constexpr std::size_t kSlotSize = std::size_t{4} << 20;
// Below this, a reader gains more from the page cache and its read-ahead.
constexpr std::size_t kDirectThreshold = std::size_t{128} << 10;

bool is_aligned(const std::byte* memory) noexcept {
  return reinterpret_cast<std::uintptr_t>(memory) % kAlignment == 0;
}

}  // namespace

/// A buffer borrowed for one read. Buffers of this size are aligned to huge pages, hence to 4096.
class DirectSource::Slot {
 public:
  explicit Slot(const DirectSource& source) : source_(source) {
    for (std::atomic<Buffer*>& place : source.idle_) {
      buffer_.reset(place.exchange(nullptr));
      if (buffer_) return;
    }
    buffer_ = std::make_unique<Buffer>(kSlotSize);
  }
  Slot(const Slot&) = delete;
  Slot& operator=(const Slot&) = delete;
  ~Slot() {
    Buffer* const kept = buffer_.release();
    for (std::atomic<Buffer*>& place : source_.idle_) {
      Buffer* none = nullptr;
      if (place.compare_exchange_strong(none, kept)) return;
    }
    delete kept;
  }
  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return buffer_->bytes(); }

 private:
  const DirectSource& source_;
  std::unique_ptr<Buffer> buffer_;
};

DirectSource::DirectSource(std::unique_ptr<FileSource> buffered, Fd direct)
    : buffered_(std::move(buffered)), direct_(std::move(direct)) {}

DirectSource::~DirectSource() {
  for (const std::atomic<Buffer*>& place : idle_) delete place.load();
}

std::size_t DirectSource::read_block(std::uint64_t offset, std::span<std::byte> to) const {
  for (;;) {
    const ssize_t got = ::pread(direct_.get(), to.data(), to.size(), static_cast<off_t>(offset));
    if (got >= 0) return static_cast<std::size_t>(got);
    if (errno != EINTR) return 0;  // the reader through the page cache says what is wrong
  }
}

ReadCost DirectSource::cost() const noexcept { return {.min_nbytes = kSlotSize}; }

void DirectSource::read_at(std::uint64_t offset, std::span<std::byte> to) const {
  const bool is_inside = offset <= size() && to.size() <= size() - offset;
  if (!is_inside || to.size() < kDirectThreshold || is_refused_.load(std::memory_order_relaxed)) {
    buffered_->read_at(offset, to);
    return;
  }
  std::optional<Slot> slot;
  while (!to.empty()) {
    const std::uint64_t begin = offset / kAlignment * kAlignment;
    const auto before = static_cast<std::size_t>(offset - begin);
    std::size_t taken = 0;
    if (before == 0 && is_aligned(to.data()) && to.size() >= kAlignment) {
      const std::size_t wanted = std::min(to.size(), kMaxPerRead) / kAlignment * kAlignment;
      taken = read_block(begin, to.first(wanted));
    } else {
      if (!slot) slot.emplace(*this);
      const std::size_t wanted =
          (std::min(before + to.size(), kSlotSize) + kAlignment - 1) / kAlignment * kAlignment;
      const std::size_t got = read_block(begin, slot->bytes().first(wanted));
      if (got > before) {
        taken = std::min(got - before, to.size());
        std::memcpy(to.data(), slot->bytes().data() + before, taken);
      }
    }
    if (taken == 0) {
      is_refused_.store(true, std::memory_order_relaxed);
      buffered_->read_at(offset, to);
      return;
    }
    to = to.subspan(taken);
    offset += taken;
  }
}

}  // namespace safetensors::io
