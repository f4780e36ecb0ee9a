#include <doctest/doctest.h>

#include <array>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "patch_oracle.hpp"
#include "safetensors/error.hpp"
#include "safetensors/patch.hpp"
#include "support.hpp"

using safetensors::Digest;
using safetensors::DigestAlgorithm;
using safetensors::Dtype;
using safetensors::EncodedPatch;
using safetensors::PatchKind;
using safetensors::PatchRecord;
using safetensors::PatchState;
using test::PatchBytes;

namespace {

constexpr auto kXxh3 = DigestAlgorithm::kXxh3_128;

/// A small patch: 150 elements of which some change by little and some by much.
struct Small {
  std::vector<std::uint64_t> shape = {3, 50};
  PatchBytes base = PatchBytes(300);
  PatchBytes target;
  EncodedPatch encoded;

  explicit Small(bool set_values = false) {
    for (std::size_t i = 0; i < base.size(); ++i) base[i] = static_cast<std::byte>(i * 7 & 0xFF);
    target = base;
    for (const std::size_t at : {3U, 4U, 5U, 40U, 41U, 149U}) {
      test::put_number(target, 2 * at, 2,
                       test::number_at(target, 2 * at, 2) + (at == 40 ? 999 : 1));
    }
    encoded = safetensors::encode_patch(Dtype::kBF16, shape, base, target,
                                        {.set_values = set_values, .base = {}, .target = {}});
  }
};

std::string outcome_of_reading(const PatchBytes& record, const PatchBytes& values) {
  return test::outcome_of([&] { (void)PatchRecord(record, values, Dtype::kBF16, kXxh3); });
}

}  // namespace

TEST_CASE("a record makes the target of the base, in all types") {
  std::mt19937_64 random(1);
  for (const Dtype dtype : safetensors::all_dtypes()) {
    CAPTURE(safetensors::name(dtype));
    const std::vector<std::uint64_t> shape = {4, 20000};
    PatchBytes base(static_cast<std::size_t>(10000 * safetensors::bit_size(dtype)));
    for (std::byte& byte : base) byte = static_cast<std::byte>(random() & 0xFF);
    PatchBytes target = base;
    for (int i = 0; i < 1000; ++i) target[random() % target.size()] ^= std::byte{1};
    const EncodedPatch encoded = safetensors::encode_patch(dtype, shape, base, target);
    const Dtype stored = safetensors::bit_size(dtype) < 8 ? Dtype::kU8 : dtype;
    const test::NaivePatch naive(encoded.record, encoded.values, stored);
    REQUIRE(naive.is_valid());
    CHECK(naive.is_base(base));
    CHECK(naive.applied(base) == target);

    const PatchRecord patch(encoded.record, encoded.values, stored, kXxh3);
    CHECK(patch.kind() == PatchKind::kBlocks);
    CHECK(patch.changed() == encoded.changed);
    CHECK(std::ranges::equal(patch.shape(), shape));
    safetensors::TensorHasher hasher(dtype, shape);
    hasher.update(target);
    CHECK(patch.target() == hasher.digest());
    PatchBytes tensor = base;
    CHECK(patch.check(tensor) == PatchState::kBase);
    patch.apply(tensor);
    CHECK(tensor == target);
    CHECK(patch.check(tensor) == PatchState::kApplied);
    CHECK(test::outcome_of([&] { patch.apply(tensor); }) == "kPatchApplied");
    CHECK(tensor == target);
  }
}

TEST_CASE("a record has the positions of any number of elements") {
  std::mt19937_64 random(2);
  for (std::uint64_t count = 1; count <= 200; ++count) {
    CAPTURE(count);
    const std::vector<std::uint64_t> shape = {count};
    const PatchBytes base(2 * static_cast<std::size_t>(count));
    PatchBytes target = base;
    for (std::size_t i = 0; i < count; ++i) target[2 * i] ^= static_cast<std::byte>(random() & 1);
    target.back() = std::byte{1};  // the last one has changed
    const EncodedPatch encoded = safetensors::encode_patch(Dtype::kF16, shape, base, target);
    PatchBytes tensor = base;
    PatchRecord(encoded.record, encoded.values, Dtype::kF16, kXxh3).apply(tensor);
    CHECK(tensor == target);
  }
}

TEST_CASE("a record, its values and tensors may be at any address") {
  const auto odd = [](const PatchBytes& bytes) {
    PatchBytes moved(1);
    moved.insert(moved.end(), bytes.begin(), bytes.end());
    return moved;
  };
  const auto behind = [](PatchBytes& bytes) { return std::span(bytes).subspan(1); };
  const Small small;
  PatchBytes base = odd(small.base);
  PatchBytes target = odd(small.target);
  const EncodedPatch encoded =
      safetensors::encode_patch(Dtype::kBF16, small.shape, behind(base), behind(target));
  CHECK(encoded.record == small.encoded.record);
  CHECK(encoded.values == small.encoded.values);
  PatchBytes record = odd(encoded.record);
  PatchBytes values = odd(encoded.values);
  const PatchRecord patch(behind(record), behind(values), Dtype::kBF16, kXxh3);
  patch.apply(behind(base));
  CHECK(base == target);
}

TEST_CASE("equal tensors have no record") {
  const std::vector<std::uint64_t> shape = {70000};
  const PatchBytes tensor(140000);
  const EncodedPatch encoded = safetensors::encode_patch(Dtype::kF16, shape, tensor, tensor);
  CHECK(encoded.changed == 0);
  CHECK(encoded.record.empty());
  CHECK(encoded.values.empty());
  CHECK_FALSE((encoded.base || encoded.target));
}

TEST_CASE("every bit of a record and its values is protected") {
  for (const bool set_values : {false, true}) {
    Small small(set_values);
    CHECK(outcome_of_reading(small.encoded.record, small.encoded.values) == "ok");
    for (PatchBytes* bytes : {&small.encoded.record, &small.encoded.values}) {
      for (std::size_t bit = 0; bit < 8 * bytes->size(); ++bit) {
        (*bytes)[bit / 8] ^= std::byte{1} << (bit % 8);
        CAPTURE(bit);
        CHECK(outcome_of_reading(small.encoded.record, small.encoded.values) == "kInvalidPatch");
        (*bytes)[bit / 8] ^= std::byte{1} << (bit % 8);
      }
    }
    // Cut and extended at each length.
    const PatchBytes record = small.encoded.record;
    for (std::size_t size = 0; size <= record.size() + 20; ++size) {
      PatchBytes cut = record;
      cut.resize(size);
      test::seal(cut, small.encoded.values);
      CAPTURE(size);
      CHECK((outcome_of_reading(cut, small.encoded.values) == "ok") == (size == record.size()));
    }
  }
}

TEST_CASE("a record whose check was computed again is refused, or applied as it says") {
  std::size_t accepted = 0;
  std::size_t refused = 0;
  for (const bool set_values : {false, true}) {
    const Small small(set_values);
    for (const bool of_values : {false, true}) {
      const std::size_t size =
          of_values ? small.encoded.values.size() : small.encoded.record.size();
      for (std::size_t bit = of_values ? 0 : 64; bit < 8 * size; ++bit) {
        PatchBytes record = small.encoded.record;
        PatchBytes values = small.encoded.values;
        (of_values ? values : record)[bit / 8] ^= std::byte{1} << (bit % 8);
        test::seal(record, values);
        CAPTURE(bit);
        if (record[8] != std::byte{2}) {
          CHECK(outcome_of_reading(record, values) == "kInvalidPatch");
          continue;
        }
        const test::NaivePatch naive(record, values, Dtype::kBF16);
        CHECK(outcome_of_reading(record, values) == (naive.is_valid() ? "ok" : "kInvalidPatch"));
        (naive.is_valid() ? accepted : refused) += 1;
        if (!naive.is_valid()) continue;
        PatchBytes tensor = small.base;
        const PatchRecord patch(record, values, Dtype::kBF16, kXxh3);
        const std::string outcome = test::outcome_of([&] { patch.apply(tensor); });
        CHECK((outcome == "ok") == naive.is_base(small.base));
        CHECK(tensor == (outcome == "ok" ? naive.applied(small.base) : small.base));
      }
    }
  }
  CHECK(accepted > 500);
  CHECK(refused > 300);
}

TEST_CASE("sizes that a record claims allocate nothing") {
  Small small;
  // 2^56 elements, so 2^40 rows: more than the record has bytes.
  PatchBytes record = small.encoded.record;
  test::put_number(record, 96, 8, std::uint64_t{1} << 28);
  test::put_number(record, 104, 8, std::uint64_t{1} << 28);
  test::put_number(record, 16, 8, std::uint64_t{1} << 56);
  test::put_number(record, 24, 8, std::uint64_t{1} << 40);
  test::seal(record, small.encoded.values);
  CHECK(outcome_of_reading(record, small.encoded.values) == "kInvalidPatch");
  const auto error = test::error_of(
      [&] { (void)PatchRecord(record, small.encoded.values, Dtype::kBF16, kXxh3, "w"); });
  CHECK(error.subject() == "w");
  CHECK(std::string(error.what()) ==
        "the patch of tensor `w` is invalid: the record ends within the rows");
}

TEST_CASE("records of removed and whole tensors") {
  const PatchBytes tensor(12);
  const std::vector<std::uint64_t> shape = {3};
  const std::array<std::byte, 32> bytes{std::byte{7}};
  const Digest sha256(DigestAlgorithm::kSha256, bytes);
  PatchBytes removed = safetensors::removed_patch(sha256);
  const PatchRecord gone(removed, {}, Dtype::kF32, DigestAlgorithm::kSha256);
  CHECK(gone.kind() == PatchKind::kRemoved);
  CHECK(gone.base() == sha256);
  CHECK(!gone.target());
  CHECK(test::outcome_of([&] { (void)gone.check(tensor); }) == "kInvalidArgument");

  const PatchBytes whole = safetensors::whole_patch(Dtype::kF32, shape, tensor);
  const PatchRecord added(whole, tensor, Dtype::kF32, kXxh3);
  CHECK(added.kind() == PatchKind::kWhole);
  CHECK(!added.base());
  CHECK(added.changed() == 0);
  CHECK(test::outcome_of([&] {
          (void)safetensors::whole_patch(Dtype::kF32, shape, tensor,
                                         {.base = sha256, .target = {}});
        }) == "kInvalidArgument");

  // Only records of blocks have units, shapes, rows and bytes behind their heads.
  for (const std::size_t at : {9U, 12U, 16U, 24U, 31U}) {
    removed[at] = std::byte{1};
    test::seal(removed, {});
    CAPTURE(at);
    CHECK(outcome_of_reading(removed, {}) == "kInvalidPatch");
    removed[at] = std::byte{};
  }
  removed.push_back(std::byte{});
  test::seal(removed, {});
  CHECK(outcome_of_reading(removed, {}) == "kInvalidPatch");
}

TEST_CASE("a large tensor is checked as a whole before it is changed") {
  // Several tasks of several blocks, of which the last one is another tensor's.
  const std::vector<std::uint64_t> shape = {9 << 20};
  PatchBytes base(std::size_t{18} << 20);
  PatchBytes target = base;
  for (std::size_t at = 0; at < target.size(); at += 4000) target[at] = std::byte{1};
  const EncodedPatch encoded = safetensors::encode_patch(Dtype::kI16, shape, base, target);
  const PatchRecord patch(encoded.record, encoded.values, Dtype::kI16, kXxh3, "w");
  base[(base.size() - 1) / 4000 * 4000] = std::byte{9};
  PatchBytes tensor = base;
  const auto error = test::error_of([&] { patch.apply(tensor); });
  CHECK(error.code() == safetensors::ErrorCode::kWrongBase);
  CHECK(std::string(error.what()) ==
        "tensor `w` is not the base of the patch: block 143 (elements 9,371,648 to 9,437,184) has "
        "other values");
  CHECK(tensor == base);
  base[(base.size() - 1) / 4000 * 4000] = std::byte{};
  tensor = base;
  patch.apply(tensor);
  CHECK(tensor == target);
  std::vector<std::int64_t> positions(static_cast<std::size_t>(patch.changed()));
  patch.positions(positions);
  for (std::size_t i = 0; i < positions.size(); ++i) {
    CHECK(positions[i] == static_cast<std::int64_t>(i * 2000));
  }
}

TEST_CASE("positions and new values need memory of just their size") {
  for (const bool set_values : {false, true}) {
    const Small small(set_values);
    const PatchRecord patch(small.encoded.record, small.encoded.values, Dtype::kBF16, kXxh3);
    std::vector<std::int64_t> positions(6);
    PatchBytes units(12);
    patch.positions(positions);
    CHECK(positions == std::vector<std::int64_t>{3, 4, 5, 40, 41, 149});
    patch.new_units(small.base, units);
    for (std::size_t i = 0; i < positions.size(); ++i) {
      const auto at = static_cast<std::size_t>(2 * positions[i]);
      CHECK(test::number_at(units, 2 * i, 2) == test::number_at(small.target, at, 2));
    }
    for (const std::size_t size : {0U, 10U, 11U, 13U, 14U}) {
      PatchBytes other(size);
      CHECK(test::outcome_of([&] { patch.new_units(small.base, other); }) == "kInvalidArgument");
    }
    for (const std::size_t count : {0U, 5U, 7U}) {
      std::vector<std::int64_t> other(count);
      CHECK(test::outcome_of([&] { patch.positions(other); }) == "kInvalidArgument");
    }
    CHECK(test::outcome_of([&] { patch.new_units(small.target, units); }) == "kPatchApplied");
    CHECK(test::outcome_of([&] { patch.new_units({}, units); }) ==
          (set_values ? "ok" : "kInvalidArgument"));
  }
}

TEST_CASE("several threads apply one record to tensors of their own") {
  const std::vector<std::uint64_t> shape = {300000};
  const PatchBytes base(1200000);
  PatchBytes target = base;
  for (std::size_t at = 0; at < target.size(); at += 900) target[at] = std::byte{3};
  const EncodedPatch encoded = safetensors::encode_patch(Dtype::kF32, shape, base, target);
  const PatchRecord patch(encoded.record, encoded.values, Dtype::kF32, kXxh3);
  std::vector<PatchBytes> tensors(4, base);
  std::vector<std::thread> threads;
  for (PatchBytes& tensor : tensors) threads.emplace_back([&] { patch.apply(tensor); });
  for (std::thread& thread : threads) thread.join();
  for (const PatchBytes& tensor : tensors) CHECK(tensor == target);
}

TEST_CASE("digests are those of the tensors, wherever the first change is") {
  // Three tasks: digests are computed between them if there was a change, else behind them.
  const std::vector<std::uint64_t> shape = {std::uint64_t{10} << 20};
  const PatchBytes base(std::size_t{10} << 20);
  for (const std::size_t at : {std::size_t{0}, base.size() - 1}) {
    PatchBytes target = base;
    target[at] = std::byte{1};
    const EncodedPatch encoded = safetensors::encode_patch(Dtype::kU8, shape, base, target);
    const PatchRecord patch(encoded.record, encoded.values, Dtype::kU8, kXxh3);
    for (const bool is_target : {false, true}) {
      safetensors::TensorHasher hasher(Dtype::kU8, shape);
      hasher.update(is_target ? target : base);
      CHECK((is_target ? patch.target() : patch.base()) == hasher.digest());
    }
  }
}
