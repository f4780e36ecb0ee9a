#include "io/posix/mapped_files.hpp"

#include "base/per_process.hpp"

namespace safetensors::io {
namespace {

constinit MappedFiles all_mapped;

constinit std::atomic<std::uint32_t> mappings_holder{0};  // 0: nobody
constinit std::atomic<std::uint64_t> mappings_state{0};

std::uint32_t this_process() noexcept { return static_cast<std::uint32_t>(fork_generation() + 1); }

}  // namespace

MappedFiles::Slot MappedFiles::slot_of(std::uint64_t device, std::uint64_t file) noexcept {
  // Multiplicative hashing: the top bits depend on all bits of the numbers.
  constexpr std::uint64_t kOdd = 0x9E37'79B9'7F4A'7C15;  // 2^64 / golden ratio
  static_assert(kSlots == std::size_t{1} << 12);
  return static_cast<Slot>((device * kOdd + file) * kOdd >> 52);
}

void MappedFiles::add(Slot slot) noexcept {
  std::uint16_t count = counts_[slot].load();
  while (count != kMax) {
    const auto next = static_cast<std::uint16_t>(count + 1);
    if (counts_[slot].compare_exchange_weak(count, next)) return;
  }
}

void MappedFiles::remove(Slot slot) noexcept {
  std::uint16_t count = counts_[slot].load();
  while (count != kMax) {
    const auto next = static_cast<std::uint16_t>(count - 1);
    if (counts_[slot].compare_exchange_weak(count, next)) return;
  }
}

MappedFiles& mapped_files() noexcept { return all_mapped; }

MappingsLock::MappingsLock() noexcept {
  for (;;) {
    std::uint32_t holder = mappings_holder.load();
    // Of another process: a parent's thread held it when this process was forked.
    const bool is_free = holder != this_process();
    if (is_free && mappings_holder.compare_exchange_weak(holder, this_process())) return;
    if (!is_free) mappings_holder.wait(holder);
  }
}

MappingsLock::~MappingsLock() {
  mappings_holder.store(0);
  mappings_holder.notify_all();
}

std::uint64_t MappingsLock::state() noexcept { return mappings_state.load(); }

void MappingsLock::changed() noexcept { mappings_state.fetch_add(1); }

}  // namespace safetensors::io
