// How a decode is divided: into tasks for threads, and into pieces that fit the first-level cache.
//
//     all units  --in_chunks-->  tasks of kTaskValues values, run by several threads
//     all rows   --decode_rows-> likewise, and in pieces of one row
//     one task   --Sink------->  straight into the output, if that is aligned F32;
//                                else pieces of kScratchValues values: decode, then round or copy
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "common/divide_up.hpp"
#include "dequant/dequant.hpp"
#include "safetensors/parallel.hpp"

namespace safetensors::weights {

/// Values in the scratch buffer: 8 KiB, which stay in the first-level cache until they are rounded.
inline constexpr std::size_t kScratchValues = 2048;
/// Values of one task: 1 MiB of F32, long enough to make the cost of starting it negligible.
inline constexpr std::uint64_t kTaskValues = std::uint64_t{1} << 18;

/// Writes decoded values to the output: directly if they are F32 and the output is aligned, else
/// through a scratch buffer.
class Sink {
 public:
  Sink(const Kernels& kernels, Output output, std::byte* to)
      : kernels_(kernels),
        output_(output),
        to_(to),
        direct_(output == Output::f32 &&
                reinterpret_cast<std::uintptr_t>(to) % alignof(float) == 0) {}

  /// Writes `units` units of `unit_values` values each, from unit `begin` on. decode(unit, count,
  /// to) decodes `count` units from number `unit` on, as F32. Requires: unit_values <=
  /// kScratchValues.
  template <typename Decode>
  void put(std::uint64_t begin, std::uint64_t units, std::size_t unit_values,
           const Decode& decode) const {
    if (direct_) {
      // The caller's memory is meant for float objects.
      float* values = reinterpret_cast<float*>(to_) + begin * unit_values;
      decode(begin, static_cast<std::size_t>(units), values);
      return;
    }
    alignas(64) float scratch[kScratchValues];
    const std::size_t most = kScratchValues / unit_values;
    for (std::uint64_t done = 0; done < units;) {
      const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(most, units - done));
      decode(begin + done, count, scratch);
      narrow(scratch, count * unit_values, (begin + done) * unit_values);
      done += count;
    }
  }

  /// Writes the values `place` to `place + count`. decode(to) decodes them, as F32. Requires: count
  /// <= kScratchValues.
  template <typename Decode>
  void put_piece(std::uint64_t place, std::size_t count, const Decode& decode) const {
    if (direct_) {
      decode(reinterpret_cast<float*>(to_) + place);
      return;
    }
    alignas(64) float scratch[kScratchValues];
    decode(scratch);
    narrow(scratch, count, place);
  }

 private:
  void narrow(const float* values, std::size_t count, std::uint64_t place) const {
    std::byte* to = to_ + place * size_of(output_);
    auto* bytes = reinterpret_cast<std::uint8_t*>(to);
    switch (output_) {
      case Output::f32:
        std::memcpy(to, values, count * sizeof(float));
        break;
      case Output::f16:
        kernels_.to_f16(values, count, bytes);
        break;
      case Output::bf16:
        kernels_.to_bf16(values, count, bytes);
        break;
    }
  }

  const Kernels& kernels_;
  Output output_;
  std::byte* to_;
  bool direct_;
};

/// Calls work(begin, count) for consecutive ranges that cover all units; several threads share the
/// ranges if there are enough values.
template <typename Work>
void in_chunks(std::uint64_t units, std::size_t unit_values, const Interrupt& interrupt,
               const Work& work) {
  const std::uint64_t step = std::max<std::uint64_t>(1, kTaskValues / unit_values);
  const std::uint64_t tasks = divide_up(units, step);
  parallel_for(
      static_cast<std::size_t>(tasks), units * unit_values * sizeof(float),
      [&](std::size_t task) {
        const std::uint64_t begin = task * step;
        work(begin, std::min(step, units - begin));
      },
      interrupt);
}

/// Decodes `units` units into `to`.
template <typename Decode>
void decode_all(const Kernels& kernels, std::uint64_t units, std::size_t unit_values, Output output,
                std::byte* to, const Interrupt& interrupt, const Decode& decode) {
  const Sink sink(kernels, output, to);
  in_chunks(units, unit_values, interrupt, [&](std::uint64_t begin, std::uint64_t count) {
    sink.put(begin, count, unit_values, decode);
  });
}

/// Divides consecutive columns into runs of whole groups, and parts of one group at both ends.
/// Calls run(offset from `begin`, groups, columns of each, number of the first group).
template <typename Run>
void in_groups(std::uint64_t begin, std::size_t count, std::uint64_t group_size, const Run& run) {
  for (std::size_t i = 0; i < count;) {
    const std::uint64_t left = group_size - (begin + i) % group_size;  // of this group
    const std::size_t rest = count - i;
    const auto each = static_cast<std::size_t>(std::min<std::uint64_t>(left, rest));
    const std::size_t groups = each == group_size ? rest / each : 1;
    run(i, groups, each, (begin + i) / group_size);
    i += groups * each;
  }
}

/// Factors of the columns of a matrix, by which decoded values are multiplied before they are
/// rounded: scales of the inputs that a scheme moves to the weight.
struct ColumnScales {
  const float* values = nullptr;  ///< one for each column, or nullptr

  void apply(const Kernels& kernels, std::uint64_t begin, std::size_t count,
             float* to) const noexcept {
    if (values != nullptr) kernels.multiply(values + begin, count, to);
  }
};

/// Decodes `rows` rows of `columns` values each into `to`, in pieces of one row. decode(row, begin,
/// count, to) decodes the columns `begin` to `begin + count` of a row, as F32. `begin` is a
/// multiple of kScratchValues, so that groups whose size is a power of two are whole; `count` is at
/// most kScratchValues.
template <typename Decode>
void decode_rows(const Kernels& kernels, std::uint64_t rows, std::uint64_t columns, Output output,
                 std::byte* to, const Interrupt& interrupt, const Decode& decode,
                 const ColumnScales& scales = {}) {
  if (columns == 0) return;
  const Sink sink(kernels, output, to);
  const std::uint64_t pieces = divide_up(columns, kScratchValues);  // of a row
  const auto piece_values =
      static_cast<std::size_t>(std::min<std::uint64_t>(columns, kScratchValues));
  in_chunks(rows * pieces, piece_values, interrupt, [&](std::uint64_t first, std::uint64_t some) {
    for (std::uint64_t piece = first; piece < first + some; ++piece) {
      const std::uint64_t row = piece / pieces;
      const std::uint64_t begin = piece % pieces * kScratchValues;
      const auto count =
          static_cast<std::size_t>(std::min<std::uint64_t>(columns - begin, kScratchValues));
      sink.put_piece(row * columns + begin, count, [&](float* values) {
        decode(row, begin, count, values);
        scales.apply(kernels, begin, count, values);
      });
    }
  });
}

}  // namespace safetensors::weights
