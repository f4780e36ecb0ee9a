// The four-bit types of bitsandbytes: every build of the kernels gives the value of the formula,
// from any value on.
#include <doctest/doctest.h>

#include <vector>

#include "dequant/table4.hpp"
#include "dequant_support.hpp"

namespace {

using namespace test;
using weights::FloatTable;
using weights::TableCodes;

std::vector<std::byte> bytes_of(const std::vector<float>& values) {
  std::vector<std::byte> bytes;
  for (const float value : values) {
    auto bits = std::bit_cast<std::uint32_t>(value);
    for (int k = 0; k < 4; ++k, bits >>= 8) bytes.push_back(static_cast<std::byte>(bits & 0xFF));
  }
  return bytes;
}

std::vector<float> some_floats(std::size_t count, float factor) {
  std::vector<float> values;
  for (std::size_t i = 0; i < count; ++i) {
    values.push_back(factor * static_cast<float>(i * 7919 % 1009 + 1));
  }
  return values;
}

}  // namespace

TEST_CASE("dequantising tables: any values, by all builds") {
  constexpr std::size_t kCount = 9473;  // an odd number
  const auto codes = random_bytes((kCount + 1) / 2, 5);
  const auto inner = random_bytes(kCount, 6);
  const auto map = some_floats(256, 1.0F / 1009);
  const auto map_bytes = bytes_of(map);
  for (const FloatTable* table : {&weights::kNf4Values, &weights::kFp4Values}) {
    for (const std::size_t size : {32U, 64U, 512U, 4096U}) {
      CAPTURE(size);
      const std::size_t blocks = (kCount + size - 1) / size;
      const auto plain = some_floats(blocks, 0.013F);
      const auto plain_bytes = bytes_of(plain);
      const std::size_t outer_size = 32;
      const auto outer = some_floats((blocks + outer_size - 1) / outer_size, 0.37F);
      const auto outer_bytes = bytes_of(outer);
      for (const bool nested : {false, true}) {
        std::vector<float> wanted;
        for (std::size_t e = 0; e < kCount; ++e) {
          const auto byte = std::to_integer<unsigned>(codes[e / 2]);
          const std::size_t block = e / size;
          float scale = plain[block];
          if (nested) {
            volatile float product =
                map[std::to_integer<std::size_t>(inner[block])] * outer[block / outer_size];
            scale = product + 0.25F;
          }
          wanted.push_back(table->values[e % 2 == 0 ? byte >> 4 : byte & 15U] * scale);
        }
        for (const std::size_t begin : {0U, 1U, 64U, 95U, 4096U, 9472U}) {
          for (const std::size_t count : {std::size_t{1}, std::size_t{97}, kCount - begin}) {
            if (count > kCount - begin) continue;
            TableCodes part;
            part.table = table;
            const Skewed exact(std::span<const std::byte>(codes).subspan(
                                   begin / 2, (begin + count + 1) / 2 - begin / 2),
                               1);
            part.codes = exact.data();
            part.begin = begin;
            part.block_size = size;
            part.scales.first_block = begin / size;
            part.scales.scales = plain_bytes.data() + begin / size * 4;
            if (nested) {
              part.scales.scales = inner.data() + begin / size;
              part.scales.map = map_bytes.data();
              part.scales.outer = outer_bytes.data();
              part.scales.outer_block = outer_size;
              part.scales.offset = 0.25F;
            }
            const auto floats = std::as_bytes(std::span(wanted).subspan(begin, count));
            check_outputs(floats, begin % 2,
                          [&](Output output, std::byte* to, const Kernels& kernels) {
                            weights::dequantize_table4(part, count, output, to, {}, kernels);
                          });
          }
        }
      }
    }
  }
}

TEST_CASE("dequantising tables: the tables are those of the format") {
  for (std::size_t i = 0; i < 8; ++i) {
    CHECK(weights::kFp4Values.values[i + 8] == -weights::kFp4Values.values[i]);
    CHECK(weights::kNf4Values.values[i] < weights::kNf4Values.values[i + 1]);
  }
  // Exact in F32, as bitsandbytes prints them.
  CHECK(weights::kFp4Values.values[1] == 0.005208333333F);
  CHECK(weights::kFp4Values.values[2] == 0.6666666666666666F);
  CHECK(weights::kNf4Values.values[15] == 1.0F);
}

TEST_CASE("dequantising signed bytes: two factors, one after the other") {
  const auto codes = random_bytes(259, 3);
  const float first = 1.1F;
  const float second = 7.874015718698502e-3F;
  for (const Kernels* kernels : weights::usable_kernels()) {
    std::vector<float> found(codes.size());
    kernels->scaled_i8(reinterpret_cast<const std::uint8_t*>(codes.data()), codes.size(), first,
                       second, found.data());
    for (std::size_t i = 0; i < codes.size(); ++i) {
      volatile float product = static_cast<float>(static_cast<std::int8_t>(codes[i])) * first;
      CHECK(found[i] == product * second);
    }
  }
}
