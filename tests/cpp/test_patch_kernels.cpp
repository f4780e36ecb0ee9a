// All builds of the loops give the same bytes.
#include <doctest/doctest.h>

#include <random>
#include <string>
#include <vector>

#include "patch/kernels.hpp"
#include "patch_oracle.hpp"

namespace patch = safetensors::patch;

namespace {

/// Bytes at an odd address, so that no kernel relies on an alignment.
class OddBytes {
 public:
  explicit OddBytes(std::size_t size) : bytes_(size + 1) {}
  [[nodiscard]] std::byte* data() { return bytes_.data() + 1; }
  [[nodiscard]] std::span<std::byte> span() { return std::span(bytes_).subspan(1); }

 private:
  test::PatchBytes bytes_;
};

void check_kernels(const patch::Kernels& kernels, std::size_t unit, std::size_t count,
                   unsigned one_in, std::mt19937_64& random) {
  CAPTURE(kernels.name);
  CAPTURE(unit);
  CAPTURE(count);
  const patch::UnitKernels& units = kernels.of_unit(unit);
  OddBytes old(count * unit);
  OddBytes now(count * unit);
  for (std::byte& byte : old.span()) byte = static_cast<std::byte>(random() & 0xFF);
  std::vector<std::uint16_t> expected;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t before = test::number_at(old.span(), i * unit, unit);
    const bool differs = random() % one_in == 0;
    const std::uint64_t step = random() % 2 == 0 ? random() % 300 - 150 : random();
    test::put_number(now.span(), i * unit, unit, differs ? before + (step | 1) : before);
    if (differs) expected.push_back(static_cast<std::uint16_t>(i));
  }
  std::vector<std::uint64_t> words((count + 63) / 64, ~std::uint64_t{0});
  const std::size_t found = units.compare(old.data(), now.data(), count, words.data());
  REQUIRE(found == expected.size());
  std::vector<std::uint16_t> at(patch::kPositionRoom);
  REQUIRE(kernels.list_bits(words.data(), words.size(), at.data()) == found);
  at.resize(found);
  REQUIRE(at == expected);

  OddBytes before(found * unit);
  OddBytes after(found * unit);
  units.gather(old.data(), at.data(), found, before.data());
  units.gather(now.data(), at.data(), found, after.data());
  CHECK(kernels.xxh3_64(before.data(), found * unit) == test::xxh3_of(before.span()));
  OddBytes units_again = before;
  test::PatchBytes steps(found);
  if (unit > 1) {
    const std::size_t wide = units.subtract(before.data(), after.data(), found, steps.data());
    std::size_t wide_seen = 0;
    for (std::size_t i = 0; i < found; ++i) {
      const unsigned shift = static_cast<unsigned>(64 - 8 * unit);
      const std::uint64_t difference = test::number_at(after.span(), i * unit, unit) -
                                       test::number_at(units_again.span(), i * unit, unit);
      const auto step = static_cast<std::int64_t>(difference << shift) >> shift;
      const bool is_wide = step < -127 || step > 127;
      CHECK(static_cast<std::int8_t>(steps[i]) == (is_wide ? -128 : step));
      if (is_wide) {
        CHECK(test::number_at(before.span(), wide_seen++ * unit, unit) ==
              test::number_at(after.span(), i * unit, unit));
      }
    }
    CHECK(wide_seen == wide);
    // Too few wide units are counted, and nothing is read behind them.
    OddBytes partly = units_again;
    CHECK(units.add(partly.data(), steps.data(), found, before.data(), 0) == wide);
    CHECK(units.add(units_again.data(), steps.data(), found, before.data(), wide) == wide);
    CHECK(std::ranges::equal(units_again.span(), after.span()));
  }
  units.scatter(old.data(), at.data(), found, after.data());
  CHECK(std::ranges::equal(old.span(), now.span()));
}

}  // namespace

TEST_CASE("all kernels find, list, gather, subtract, add and scatter the same units") {
  std::mt19937_64 random(1);
  CHECK(std::string(patch::usable_kernels().front()->name) == "baseline");
  for (const patch::Kernels* kernels : patch::usable_kernels()) {
    for (const std::size_t unit : {1U, 2U, 4U, 8U}) {
      for (const std::size_t count :
           {1U, 2U, 31U, 32U, 33U, 63U, 64U, 65U, 127U, 200U, 4096U, 65535U, 65536U}) {
        for (const unsigned one_in : {1U, 2U, 50U, 20000U}) {
          check_kernels(*kernels, unit, count, one_in, random);
        }
      }
    }
  }
}
