// Blocks and packs of random bits: all builds of the kernels agree at every address, and read and
// write nothing outside their buffers. Buffers have their exact size, so that ASan detects a read
// past the end.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "dequant_support.hpp"
#include "safetensors/weights/error.hpp"

namespace {

using namespace test;
using weights::PackRows;
using weights::QuantMode;
using weights::QuantParams;
using weights::ScaleType;

constexpr std::size_t kGuard = 64;
constexpr auto kGuardByte = std::byte{0xA5};

/// Returns what `decode(to)` writes to `nbytes` bytes at an address `skew` off alignment, and
/// checks that it writes nothing else.
template <typename Decode>
std::vector<std::byte> written(std::size_t nbytes, std::size_t skew, const Decode& decode) {
  const Skewed to(nbytes + 2 * kGuard, skew);
  std::ranges::fill(to.span(), kGuardByte);
  decode(to.data() + kGuard);
  const auto all = to.span();
  const auto is_guard = [](std::byte byte) { return byte == kGuardByte; };
  CHECK(std::ranges::all_of(all.first(kGuard), is_guard));
  CHECK(std::ranges::all_of(all.last(kGuard), is_guard));
  const auto inside = all.subspan(kGuard, nbytes);
  return {inside.begin(), inside.end()};
}

struct Shape {
  QuantParams params;
  ScaleType scales;
  bool global;
};

std::vector<Shape> all_packs() {
  std::vector<Shape> all;
  for (int bits = 1; bits <= 8; ++bits) {
    if (bits == 7) continue;
    for (const int group : {32, 64, 128}) {
      for (const ScaleType type : {ScaleType::f16, ScaleType::bf16, ScaleType::f32}) {
        all.push_back({{QuantMode::affine, bits, group}, type, false});
      }
    }
  }
  all.push_back({{QuantMode::mxfp4, 4, 32}, ScaleType::u8, false});
  all.push_back({{QuantMode::mxfp8, 8, 32}, ScaleType::u8, false});
  all.push_back({{QuantMode::nvfp4, 4, 16}, ScaleType::u8, false});
  all.push_back({{QuantMode::nvfp4, 4, 16}, ScaleType::u8, true});
  return all;
}

std::size_t size_of_scale(ScaleType type) {
  return type == ScaleType::u8 ? 1 : type == ScaleType::f32 ? 4 : 2;
}

/// A pack of random bits.
struct RandomPack {
  Skewed words;
  Skewed scales;
  Skewed biases;
  Skewed globals;
  PackRows rows;
  std::size_t row_words;
  std::size_t row_scales;

  RandomPack(const Shape& shape, std::size_t count, std::size_t groups, std::size_t skew)
      : words(random_bytes(count * groups * group_words(shape), 1), skew),
        scales(random_bytes(count * groups * size_of_scale(shape.scales), 2), skew),
        biases(random_bytes(count * groups * size_of_scale(shape.scales), 3), skew),
        globals(random_bytes(count * 4, 4), skew),
        row_words(groups * group_words(shape)),
        row_scales(groups * size_of_scale(shape.scales)) {
    rows.params = shape.params;
    rows.scale_type = shape.scales;
    rows.columns = groups * static_cast<std::size_t>(shape.params.group_size);
    rows.words = words.data();
    rows.scales = scales.data();
    if (shape.params.mode == QuantMode::affine) rows.biases = biases.data();
    if (shape.global) rows.global_scales = globals.data();
  }

  static std::size_t group_words(const Shape& shape) {
    return static_cast<std::size_t>(shape.params.bits) *
           static_cast<std::size_t>(shape.params.group_size) / 8;
  }

  /// Returns the part of the pack from that row on.
  [[nodiscard]] PackRows from(std::size_t row) const {
    PackRows part = rows;
    part.words += row * row_words;
    part.scales += row * row_scales;
    if (part.biases != nullptr) part.biases += row * row_scales;
    part.first_row = row;
    return part;
  }
};

weights::Errc code_of(const auto& work) {
  try {
    work();
  } catch (const weights::WeightsError& error) {
    return error.code();
  }
  throw std::logic_error("no Error was thrown");
}

}  // namespace

TEST_CASE("dequantising blocks: all builds agree, at any address and count") {
  for (std::uint32_t type = 0; type < weights::ggml::kEnd; ++type) {
    if (!weights::can_dequantize(type)) continue;
    const weights::GgmlType& about = *weights::find_ggml_type(type);
    CAPTURE(about.name);
    const std::size_t most = about.block_elements == 1 ? 5000 : 37;
    const auto raw = random_bytes(most * about.block_bytes, type + 1);
    std::vector<std::byte> floats;
    for (const Kernels* kernels : weights::usable_kernels()) {
      CAPTURE(std::string(kernels->name));
      for (const std::size_t count :
           {most, most - 1, std::size_t{8}, std::size_t{3}, std::size_t{1}, std::size_t{0}}) {
        for (const Output output : kOutputs) {
          for (const std::size_t skew : {0U, 1U, 2U}) {
            const Skewed from(std::span<const std::byte>(raw).first(count * about.block_bytes),
                              skew);
            const std::size_t nbytes = count * about.block_elements * weights::size_of(output);
            const auto found = written(nbytes, skew, [&](std::byte* to) {
              weights::dequantize_blocks(type, from.data(), count, output, to, {}, *kernels);
            });
            if (floats.empty()) floats = found;  // the first: F32, baseline, aligned, all blocks
            const auto expected = rounded_all(
                std::span(floats).first(count * about.block_elements * sizeof(float)), output);
            CHECK(count_differences(found, expected, output) == 0);
          }
        }
      }
    }
  }
}

TEST_CASE("dequantising blocks: any range of values, with a change before rounding") {
  const weights::ChangeValues change = [](std::uint64_t first, std::size_t some, float* values) {
    for (std::size_t i = 0; i < some; ++i) values[i] *= 0.3F + static_cast<float>(first + i);
  };
  for (const std::uint32_t type : {weights::ggml::kF16, weights::ggml::kQ4_K}) {
    const weights::GgmlType& row = *weights::find_ggml_type(type);
    const std::size_t size = row.block_elements;
    const Skewed blocks(random_bytes(std::size_t{3} * row.block_bytes, type), 1);
    std::vector<float> whole(3 * size);
    const auto floats = std::as_writable_bytes(std::span(whole));
    weights::dequantize_blocks(type, blocks.data(), 3, Output::f32, floats.data());
    change(0, whole.size(), whole.data());
    const std::size_t step = size == 256 ? 51 : 1;
    for (std::size_t begin = 0; begin <= whole.size(); begin += step) {
      for (std::size_t end = begin; end <= whole.size(); end += step) {
        // Exactly the blocks of the range, so that ASan detects a read of others.
        const std::size_t first = begin / size;
        const std::size_t count = std::max(first, (end + size - 1) / size) - first;
        const Skewed part(blocks.span().subspan(first * row.block_bytes, count * row.block_bytes),
                          1);
        for (const Output output : kOutputs) {
          const auto found = written((end - begin) * weights::size_of(output), 1, [&](auto* to) {
            weights::dequantize_values(type, part.data(), begin, end, change, output, to);
          });
          const auto expected = rounded_all(floats.subspan(begin * 4, (end - begin) * 4), output);
          CHECK(count_differences(found, expected, output) == 0);
        }
      }
    }
  }
}

TEST_CASE("dequantising packs: rows are slices of the whole, all builds agree") {
  constexpr std::size_t kRows = 5;
  for (const Shape& shape : all_packs()) {
    const std::size_t groups = shape.params.group_size == 16 ? 3 : 5;
    const RandomPack aligned(shape, kRows, groups, 0);
    const RandomPack skewed(shape, kRows, groups, 1);
    CAPTURE(static_cast<int>(shape.params.mode));
    CAPTURE(shape.params.bits);
    CAPTURE(shape.params.group_size);
    const std::size_t columns = aligned.rows.columns;
    std::vector<std::byte> floats;
    for (const Kernels* kernels : weights::usable_kernels()) {
      CAPTURE(std::string(kernels->name));
      for (std::size_t first = 0; first < kRows; ++first) {
        for (std::size_t end = kRows; end > first; --end) {
          const std::size_t count = end - first;
          for (const RandomPack* pack : {&aligned, &skewed}) {
            for (const Output output : kOutputs) {
              const std::size_t skew = pack == &aligned ? 0 : 1;
              const auto found =
                  written(count * columns * weights::size_of(output), skew, [&](std::byte* to) {
                    weights::dequantize_pack(pack->from(first), count, output, to, {}, *kernels);
                  });
              if (floats.empty()) floats = found;
              const auto expected =
                  rounded_all(std::span(floats).subspan(first * columns * sizeof(float),
                                                        count * columns * sizeof(float)),
                              output);
              CHECK(count_differences(found, expected, output) == 0);
            }
          }
        }
      }
    }
  }
}

TEST_CASE("dequantising packs: values are the bits of a row, from its low end") {
  for (const Shape& shape : all_packs()) {
    if (shape.params.mode != QuantMode::affine || shape.scales != ScaleType::f32) continue;
    const RandomPack pack(shape, 1, 3, 0);
    // 0.5 and -3: exact.
    const auto fill = [](const Skewed& to, float value) {
      for (std::size_t i = 0; i + 4 <= to.span().size(); i += 4) {
        auto bits = std::bit_cast<std::uint32_t>(value);
        for (std::size_t k = 0; k < 4; ++k, bits >>= 8) {
          to.span()[i + k] = static_cast<std::byte>(bits & 0xFF);
        }
      }
    };
    fill(pack.scales, 0.5F);
    fill(pack.biases, -3.0F);
    const std::size_t columns = pack.rows.columns;
    const Skewed to(columns * sizeof(float));
    weights::dequantize_pack(pack.rows, 1, Output::f32, to.data());
    const auto bits = static_cast<std::size_t>(shape.params.bits);
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < columns; ++i) {
      unsigned code = 0;
      for (std::size_t k = 0; k < bits; ++k) {
        const std::size_t place = i * bits + k;
        const auto byte = std::to_integer<unsigned>(pack.words.span()[place / 8]);
        code |= ((byte >> (place % 8)) & 1U) << k;
      }
      if (float_at(to.span(), i) != 0.5F * static_cast<float>(code) - 3.0F) ++wrong;
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("dequantising packs: each expert has its own global scale") {
  const Shape shape{{QuantMode::nvfp4, 4, 16}, ScaleType::u8, true};
  const RandomPack pack(shape, 4, 2, 0);
  const Shape plain{{QuantMode::nvfp4, 4, 16}, ScaleType::u8, false};
  const RandomPack without(plain, 4, 2, 0);  // the same bits
  const float scales[2] = {2688.0F, 2688.0F * 4.0F};
  for (std::size_t i = 0; i < 2; ++i) {
    auto bits = std::bit_cast<std::uint32_t>(scales[i]);
    for (std::size_t k = 0; k < 4; ++k, bits >>= 8) {
      pack.globals.span()[4 * i + k] = static_cast<std::byte>(bits & 0xFF);
    }
  }
  std::vector<float> a(4 * 32);
  std::vector<float> b(4 * 32);
  PackRows rows = pack.rows;
  rows.rows_per_global_scale = 2;
  weights::dequantize_pack(rows, 4, Output::f32, std::as_writable_bytes(std::span(a)).data());
  weights::dequantize_pack(without.rows, 4, Output::f32,
                           std::as_writable_bytes(std::span(b)).data());
  for (std::size_t i = 0; i < a.size(); ++i) {
    const float factor = i < 64 ? 1.0F : 4.0F;
    CHECK((std::isnan(a[i]) ? std::isnan(b[i]) : a[i] == b[i] * factor));
  }
}

TEST_CASE("dequantising packs: a scale of 255 is not a number") {
  const Shape shape{{QuantMode::mxfp4, 4, 32}, ScaleType::u8, false};
  const RandomPack pack(shape, 1, 2, 0);
  pack.scales.span()[0] = std::byte{255};
  pack.scales.span()[1] = std::byte{0};
  std::vector<float> values(64);
  weights::dequantize_pack(pack.rows, 1, Output::f32,
                           std::as_writable_bytes(std::span(values)).data());
  CHECK(std::all_of(values.begin(), values.begin() + 32, [](float v) { return std::isnan(v); }));
  CHECK(std::all_of(values.begin() + 32, values.end(),
                    [](float v) { return std::fabs(v) <= 6.0F * 0x1p-127F; }));
}

TEST_CASE("dequantising GGUF's MXFP4: a scale of 255 is a number, as in ggml") {
  std::byte block[17] = {};
  block[0] = std::byte{255};
  for (unsigned code = 0; code < 16; ++code) block[1 + code] = static_cast<std::byte>(code);
  std::vector<float> values(32);
  weights::dequantize_blocks(weights::ggml::kMXFP4, block, 1, Output::f32,
                             std::as_writable_bytes(std::span(values)).data());
  CHECK(values[0] == 0.0F);
  CHECK(values[1] == 0x1p127F);
  CHECK(values[8] == 0.0F);
  CHECK(values[9] == -0x1p127F);
  for (const std::size_t code : {2U, 3U, 4U, 5U, 6U, 7U}) {
    CHECK(values[code] == std::numeric_limits<float>::infinity());
    CHECK(values[code + 8] == -std::numeric_limits<float>::infinity());
  }
}

TEST_CASE("dequantising GGUF's MXFP4: every scale, down to the smallest") {
  for (int scale = 0; scale < 255; ++scale) {
    const std::byte block[17] = {static_cast<std::byte>(scale), std::byte{0x71}, std::byte{0x9F}};
    std::vector<float> values(32);
    weights::dequantize_blocks(weights::ggml::kMXFP4, block, 1, Output::f32,
                               std::as_writable_bytes(std::span(values)).data());
    const auto scaled = [&](float value) { return std::ldexp(value, scale - 127); };
    CHECK(values[0] == scaled(0.5F));
    CHECK(values[16] == scaled(6.0F));
    CHECK(values[1] == scaled(-6.0F));
    CHECK(values[17] == scaled(-0.5F));
  }
}

TEST_CASE("dequantising: several threads give the same values as one") {
  // 3 million values: several tasks, the last one shorter.
  const std::size_t blocks = 12000;
  const weights::GgmlType& about = *weights::find_ggml_type(weights::ggml::kQ6_K);
  const auto from = random_bytes(blocks * about.block_bytes, 9);
  const std::size_t nbytes = blocks * 256 * sizeof(float);
  std::vector<std::byte> whole(nbytes);
  weights::dequantize_blocks(about.id, from.data(), blocks, Output::f32, whole.data());
  std::vector<std::byte> parts(nbytes);
  for (std::size_t i = 0; i < blocks; i += 100) {
    weights::dequantize_blocks(about.id, from.data() + i * about.block_bytes, 100, Output::f32,
                               parts.data() + i * 256 * sizeof(float));
  }
  CHECK(count_differences(whole, parts, Output::f32) == 0);
}

TEST_CASE("dequantising: an interrupt stops it between tasks") {
  Kernels slow = weights::best_kernels();
  slow.blocks[weights::ggml::kI8] = [](const std::uint8_t*, std::size_t, float*) noexcept {
    std::this_thread::sleep_for(std::chrono::milliseconds(25));
  };
  struct Stop {};
  int calls = 0;
  const safetensors::Interrupt stop = [&] {
    ++calls;
    throw Stop();
  };
  const std::size_t count = std::size_t{1} << 20;  // four tasks
  std::vector<std::byte> from(count);
  std::vector<std::byte> to(count * sizeof(float));
  CHECK_THROWS_AS(weights::dequantize_blocks(weights::ggml::kI8, from.data(), count, Output::f32,
                                             to.data(), stop, slow),
                  Stop);
  CHECK(calls == 1);
}

TEST_CASE("dequantising: what cannot be decoded is refused") {
  std::byte from[300] = {};
  std::byte to[1024];
  for (const std::uint32_t type : {4U, 9U, 15U, 31U, 43U, 1000U, 0xFFFFFFFFU}) {
    CHECK(code_of([&] { weights::dequantize_blocks(type, from, 1, Output::f32, to); }) ==
          weights::Errc::unsupported);
  }
  PackRows pack;
  pack.words = from;
  pack.scales = from;
  pack.biases = from;
  pack.columns = 64;
  const auto code = [&] {
    return code_of([&] { weights::dequantize_pack(pack, 1, Output::f32, to); });
  };
  for (const QuantParams params : {QuantParams{QuantMode::affine, 7, 64},
                                   {QuantMode::affine, 0, 64},
                                   {QuantMode::affine, 9, 64},
                                   {QuantMode::affine, -4, 64},
                                   {QuantMode::affine, 4, 16},
                                   {QuantMode::affine, 4, 0},
                                   {QuantMode::mxfp4, 8, 32},
                                   {QuantMode::mxfp4, 4, 64},
                                   {QuantMode::mxfp8, 4, 32},
                                   {QuantMode::nvfp4, 4, 32}}) {
    CHECK_FALSE(weights::is_known(params));
    pack.params = params;
    CHECK(code() == weights::Errc::quant_mismatch);
  }
  pack.params = {QuantMode::affine, 4, 64};
  pack.scale_type = ScaleType::u8;
  CHECK(code() == weights::Errc::quant_mismatch);
  pack.params = {QuantMode::mxfp4, 4, 32};
  pack.scale_type = ScaleType::f16;
  CHECK(code() == weights::Errc::quant_mismatch);
  pack.params = {QuantMode::affine, 4, 64};
  pack.columns = 96;
  CHECK(code() == weights::Errc::quant_mismatch);
}
