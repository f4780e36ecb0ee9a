// An operator new that can be set to fail. The sized, array and nothrow forms call these.
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

#include "faults.hpp"

namespace {

std::atomic<bool> counting{false};
std::atomic<std::size_t> count{0};
std::size_t fails_at = 0;

bool fails() { return counting.load() && count.fetch_add(1) == fails_at; }

}  // namespace

namespace faults {

void begin_allocations(std::size_t nth) {
  fails_at = nth;
  count.store(0);
  counting.store(true);
}

std::size_t end_allocations() {
  counting.store(false);
  return count.load();
}

}  // namespace faults

void* operator new(std::size_t nbytes) {
  void* const memory = fails() ? nullptr : std::malloc(nbytes == 0 ? 1 : nbytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void* operator new(std::size_t nbytes, std::align_val_t alignment) {
  const auto unit = static_cast<std::size_t>(alignment);
  const std::size_t rounded = (nbytes + unit - 1) / unit * unit;
  void* const memory = fails() ? nullptr : std::aligned_alloc(unit, rounded == 0 ? unit : rounded);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
