// Index expressions of the C interface.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "c/one_or_many.hpp"
#include "safetensors/safe_open.hpp"
#include "safetensors/safetensors.h"

struct safetensors_file;

namespace safetensors::c {

/// The part of a tensor that an index expression selects.
struct Taken {
  std::vector<std::uint64_t> shape;
  OneOrMany<ByteRuns> runs;  ///< at least one

  [[nodiscard]] bool is_contiguous() const noexcept {
    const std::span<const ByteRuns> all = runs.all();
    return all.size() == 1 && all.front().loops.empty();
  }
};

/// Returns what the indices select from a tensor of the file `number`.
/// Throws: Error kInvalidArgument; what SafeOpen::select_part() throws.
[[nodiscard]] Taken take(const safetensors_file& file, std::uint32_t number, const TensorInfo& info,
                         const safetensors_index* indices, std::size_t count);

}  // namespace safetensors::c
