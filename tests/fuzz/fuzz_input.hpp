// Values made of a fuzzer's bytes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>

#include "safetensors/dtype.hpp"

namespace fuzz {

/// Takes bytes from the front; zeros when there are no more.
class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : rest_(data, size) {}

  [[nodiscard]] bool empty() const { return rest_.empty(); }
  std::uint8_t byte() {
    if (rest_.empty()) return 0;
    const std::uint8_t value = rest_.front();
    rest_ = rest_.subspan(1);
    return value;
  }
  /// 0 ... bound - 1; bound is at most 256.
  unsigned below(unsigned bound) { return byte() % bound; }
  std::uint64_t word() {
    std::uint64_t value = 0;
    for (int i = 0; i < 8; ++i) value = value << 8 | byte();
    return value;
  }
  /// Up to `most` bytes.
  std::string text(std::size_t most) {
    const std::size_t size = std::min(most, rest_.size());
    const std::string taken(rest_.begin(), rest_.begin() + static_cast<std::ptrdiff_t>(size));
    rest_ = rest_.subspan(size);
    return taken;
  }
  safetensors::Dtype dtype() { return safetensors::all_dtypes()[below(safetensors::kDtypeCount)]; }

 private:
  std::span<const std::uint8_t> rest_;
};

/// Ends the run: the property does not hold.
inline void require(bool holds, const std::string& what) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s\n", what.c_str());
  std::abort();
}

}  // namespace fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
