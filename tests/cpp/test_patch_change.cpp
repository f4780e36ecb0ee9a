#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "patch_support.hpp"
#include "safetensors/patch_change.hpp"

using safetensors::DigestAlgorithm;
using safetensors::Dtype;
using safetensors::PatchChange;
using safetensors::PatchChecks;
using safetensors::PatchKind;
using safetensors::PatchState;
using safetensors::TensorData;

namespace {

TensorData data_of(const test::OwnTensor& tensor) {
  return {tensor.name, tensor.shape, tensor.bytes, tensor.dtype};
}

std::string state_of(const PatchChange& change, const test::OwnTensor& tensor,
                     const PatchChecks& checks) {
  std::string state;
  const std::string outcome = test::outcome_of([&] {
    state = change.check(data_of(tensor), checks) == PatchState::kBase ? "base" : "applied";
  });
  return outcome == "ok" ? state : outcome;
}

}  // namespace

TEST_CASE("a change says what its record and its values are") {
  const test::States states;
  const std::string text = test::patch_between(states.before, states.after).text();
  const safetensors::PatchFile patch = test::open_patch_text(text);
  const PatchChange blocks = patch.change("blocks");
  CHECK(blocks.name() == "blocks");
  CHECK(blocks.path() == "p.safetensors-patch");
  CHECK(blocks.kind() == PatchKind::kBlocks);
  CHECK(blocks.dtype() == Dtype::kBF16);
  CHECK(std::ranges::equal(blocks.shape(), std::vector<std::uint64_t>{300, 500}));
  CHECK(blocks.units() == 150000);
  CHECK(blocks.changed() == (300000 - 3 + 96) / 97);
  CHECK(blocks.record().base() ==
        test::digest_of(states.before.at("blocks"), DigestAlgorithm::kXxh3_128));
  CHECK(blocks.record().target() ==
        test::digest_of(states.after.at("blocks"), DigestAlgorithm::kXxh3_128));

  const PatchChange packed = patch.change("packed");
  CHECK_FALSE(packed.dtype());
  CHECK(std::ranges::equal(packed.shape(), std::vector<std::uint64_t>{64, 2}));
  CHECK(packed.units() == 64);

  const PatchChange whole = patch.change("shape");
  CHECK(whole.kind() == PatchKind::kWhole);
  CHECK(whole.dtype() == Dtype::kF16);
  CHECK(whole.units() == 12);
  CHECK(whole.changed() == 12);
  CHECK(whole.nbytes() == 96 + 24);
  CHECK(std::ranges::equal(whole.values(), states.after.at("shape").bytes));

  const PatchChange gone = patch.change("gone");
  CHECK(gone.kind() == PatchKind::kRemoved);
  CHECK_FALSE(gone.dtype());
  CHECK(gone.shape().empty());
  CHECK(gone.units() == 0);
  CHECK(gone.nbytes() == 96);
  CHECK_FALSE(gone.record().target());
}

TEST_CASE("a tensor is that of the base, that of the target, or neither") {
  const test::States states;
  for (const auto algorithm : {DigestAlgorithm::kXxh3_128, DigestAlgorithm::kSha256}) {
    const std::string text = test::patch_between(states.before, states.after, algorithm).text();
    const safetensors::PatchFile patch = test::open_patch_text(text);
    for (const bool digests : {false, true}) {
      const PatchChecks checks{.digests = digests, .sha256 = &test::fake_sha256};
      for (std::size_t i = 0; i < patch.size(); ++i) {
        const PatchChange change = patch.change(patch.name(i));
        const std::string name(change.name());
        CAPTURE(name);
        const bool has_base = states.before.contains(name);
        const bool has_target = states.after.contains(name);
        if (has_base) CHECK(state_of(change, states.before.at(name), checks) == "base");
        if (has_target) CHECK(state_of(change, states.after.at(name), checks) == "applied");
        test::OwnTensor other = has_base ? states.before.at(name) : states.after.at(name);
        for (std::byte& byte : other.bytes) byte ^= std::byte{32};
        CHECK(state_of(change, other, checks) == "kWrongBase");
        if (!has_base) {
          CHECK(change.check_absent() == PatchState::kBase);
        } else if (!has_target) {
          CHECK(change.check_absent() == PatchState::kApplied);
        } else {
          CHECK(test::outcome_of([&] { (void)change.check_absent(); }) == "kWrongBase");
        }
      }
    }
  }
}

TEST_CASE("the digest of a result is compared with the target's") {
  const test::States states;
  const std::string text = test::patch_between(states.before, states.after).text();
  const PatchChange change = test::open_patch_text(text).change("blocks");
  change.check_target(data_of(states.after.at("blocks")));
  const auto error =
      test::error_of([&] { change.check_target(data_of(states.before.at("blocks"))); });
  CHECK(error.code() == safetensors::ErrorCode::kInvalidPatch);
  const auto digest = [](const test::State& state) {
    return test::digest_of(state.at("blocks"), DigestAlgorithm::kXxh3_128).text();
  };
  CHECK(error.what() == "p.safetensors-patch: tensor `blocks`: it gives " + digest(states.before) +
                            " instead of the target " + digest(states.after));
}

TEST_CASE("SHA-256 without a function is an error where it is needed") {
  const test::States states;
  const std::string text =
      test::patch_between(states.before, states.after, DigestAlgorithm::kSha256).text();
  const safetensors::PatchFile patch = test::open_patch_text(text);
  const PatchChange blocks = patch.change("blocks"), gone = patch.change("gone");
  CHECK(state_of(blocks, states.before.at("blocks"), {}) == "base");
  CHECK(state_of(blocks, states.before.at("blocks"), {.digests = true}) == "kInvalidArgument");
  CHECK(state_of(gone, states.before.at("gone"), {}) == "kInvalidArgument");
}

TEST_CASE("memory of another size is refused, and nothing is written") {
  const test::States states;
  const std::string text = test::patch_between(states.before, states.after).text();
  const safetensors::PatchFile patch = test::open_patch_text(text);
  std::vector<std::byte> bytes(10, std::byte{7});
  CHECK(test::outcome_of([&] { patch.change("blocks").apply(bytes); }) == "kWrongBase");
  CHECK(test::outcome_of([&] { patch.change("shape").apply(bytes); }) == "kInvalidArgument");
  CHECK(test::outcome_of([&] { patch.change("gone").apply(bytes); }) == "kInvalidArgument");
  CHECK(bytes == std::vector<std::byte>(10, std::byte{7}));
}
