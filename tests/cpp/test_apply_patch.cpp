#include <doctest/doctest.h>

#include <exception>
#include <string>
#include <vector>

#include "patch_support.hpp"
#include "safetensors/apply_patch.hpp"
#include "safetensors/verify.hpp"

using safetensors::ApplyPatchOptions;
using safetensors::DigestAlgorithm;
using safetensors::PatchVerify;

namespace {

constexpr PatchVerify kAll[] = {PatchVerify::kBlocks, PatchVerify::kFull, PatchVerify::kWhole};

std::string file_of(const test::State& state,
                    const safetensors::Metadata& metadata = {{"format", "pt"}}) {
  const std::vector<test::OwnTensor> tensors = test::tensors_in(state);
  return test::text_of(safetensors::serialize(test::views_of(tensors), &metadata).bytes());
}

/// A folder with a model of one file, and what applies patches to it.
struct Folder {
  test::TempDir dir{};
  test::fs::path base = dir / "base.safetensors";
  test::fs::path target = dir / "target.safetensors";

  explicit Folder(const test::State& state) { test::write_text(base, file_of(state)); }
  void apply(const std::string& patch, const ApplyPatchOptions& options = {}) const {
    safetensors::apply_patch(test::open_patch_text(patch), safetensors::open_model(base), target,
                             options);
  }
  /// Applies a patch that is refused: nothing is written.
  [[nodiscard]] safetensors::Error refusal(const std::string& patch,
                                           const ApplyPatchOptions& options = {}) const {
    const std::size_t before = dir.count();
    const safetensors::Error error = test::error_of([&] { apply(patch, options); });
    CHECK(dir.count() == before);
    return error;
  }
};

}  // namespace

TEST_CASE("a patch makes the file that save_file writes of the target") {
  const test::States states;
  for (const auto algorithm : {DigestAlgorithm::kXxh3_128, DigestAlgorithm::kSha256}) {
    test::PatchParts parts = test::patch_between(states.before, states.after, algorithm);
    for (const PatchVerify verify : kAll) {
      const Folder folder(states.before);
      const ApplyPatchOptions options{.verify = verify, .sha256 = &test::fake_sha256};
      folder.apply(parts.text(), options);
      CHECK(test::read_text(folder.target) == file_of(states.after));
      CHECK(folder.dir.count() == 2);
    }
    parts.metadata["metadata"] = R"({"format": "mlx", "a": "b"})";
    const Folder folder(states.before);
    folder.apply(parts.text(), {.sha256 = &test::fake_sha256});
    CHECK(test::read_text(folder.target) == file_of(states.after, {{"a", "b"}, {"format", "mlx"}}));
  }
}

TEST_CASE("a patch may be applied over its base, and writes sums") {
  const test::States states;
  const Folder folder(states.before);
  const std::string text = test::patch_between(states.before, states.after).text();
  std::uint64_t done = 0, total = 1;
  safetensors::apply_patch(test::open_patch_text(text), safetensors::open_model(folder.base),
                           folder.base,
                           {.fsync = true, .sums = true, .progress = [&](auto now, auto of) {
                              done = now;
                              total = of;
                            }});
  CHECK(test::read_text(folder.base) == file_of(states.after));
  CHECK(done == total);
  const auto sums = safetensors::Sums::read(safetensors::sums_path(folder.base));
  CHECK(safetensors::find_damage(safetensors::SafeOpen(folder.base),
                                 safetensors::digests_of(sums, folder.base))
            .empty());
}

TEST_CASE("a model that is not the base is refused, and nothing is written") {
  const test::States states;
  const std::string text = test::patch_between(states.before, states.after).text();
  const auto outcome = [&](const test::State& state, PatchVerify verify) {
    return std::string(test::name_of(Folder(state).refusal(text, {.verify = verify}).code()));
  };
  for (const PatchVerify verify : kAll) {
    CHECK(outcome(states.after, verify) == "kPatchApplied");
    test::State mixed = states.before;
    mixed["bytes"] = states.after.at("bytes");
    CHECK(outcome(mixed, verify) == "kWrongBase");
    test::State other = states.before;
    other.at("blocks").bytes[3] ^= std::byte{8};
    CHECK(outcome(other, verify) == "kWrongBase");
    test::State lacking = states.before;
    lacking.erase("packed");
    CHECK(outcome(lacking, verify) == "kWrongBase");
    test::State more = states.before;
    more.emplace("new", test::tensor_of("new", safetensors::Dtype::kF64, {2}, 9));
    CHECK(outcome(more, verify) == "kWrongBase");
  }
  test::State mixed = states.before;
  mixed["bytes"] = states.after.at("bytes");
  const auto error = Folder(mixed).refusal(text);
  CHECK(error.what() == std::string("p.safetensors-patch: tensor `gone`: it is as before the "
                                    "patch, but tensor `bytes` as after it: the model is a "
                                    "mixture"));
  CHECK(error.subject() == "gone");
}

TEST_CASE("what each level of verification notices") {
  const test::States states;
  const std::string text = test::patch_between(states.before, states.after).text();
  test::State beside = states.before;
  beside.at("blocks").bytes[5] ^= std::byte{8};  // an element that does not change
  CHECK(test::outcome_of([&] { Folder(beside).apply(text, {.verify = PatchVerify::kBlocks}); }) ==
        "ok");
  CHECK(Folder(beside).refusal(text).code() == safetensors::ErrorCode::kWrongBase);
  test::State kept = states.before;
  kept.at("kept").bytes[0] ^= std::byte{8};  // a tensor that does not change
  CHECK(test::outcome_of([&] { Folder(kept).apply(text); }) == "ok");
  const auto error = Folder(kept).refusal(text, {.verify = PatchVerify::kWhole});
  CHECK(error.code() == safetensors::ErrorCode::kWrongBase);
  CHECK(std::string(error.what()).find("instead of the base") != std::string::npos);

  test::PatchParts wrong = test::patch_between(states.before, states.after);
  wrong.metadata["target"] = wrong.metadata["base"];
  const Folder folder(states.before);
  CHECK(std::string(folder.refusal(wrong.text(), {.verify = PatchVerify::kWhole}).what())
            .find("the model becomes") != std::string::npos);
}

TEST_CASE("a digest that the result does not have is noticed") {
  test::States states;
  test::OwnTensor other = states.after.at("blocks");
  other.bytes[0] ^= std::byte{1};
  test::PatchParts parts = test::patch_between(states.before, states.after);
  safetensors::PatchOptions options;
  options.target = test::digest_of(other, DigestAlgorithm::kXxh3_128);
  const test::OwnTensor& base = states.before.at("blocks");
  auto encoded = safetensors::encode_patch(base.dtype, base.shape, base.bytes,
                                           states.after.at("blocks").bytes, options);
  parts.add("r/blocks", std::move(encoded.record));
  CHECK(std::string(Folder(states.before).refusal(parts.text()).what()).find("it gives") !=
        std::string::npos);
}

TEST_CASE("a model without tensors needs the function for its SHA-256, too") {
  const test::State none;
  const Folder folder(none);
  const std::string text =
      test::patch_between(none, none, safetensors::DigestAlgorithm::kSha256).text();
  CHECK(test::outcome_of([&] { folder.apply(text, {.verify = PatchVerify::kWhole}); }) ==
        "kInvalidArgument");
  CHECK(folder.dir.count() == 1);
  folder.apply(text, {.verify = PatchVerify::kWhole, .sha256 = &test::fake_sha256});
  CHECK(folder.dir.count() == 2);
}

TEST_CASE("an interrupt ends the call and leaves nothing") {
  const test::States states;
  const std::string text = test::patch_between(states.before, states.after).text();
  struct Stop : std::exception {};
  for (int limit = 0;; ++limit) {
    const Folder folder(states.before);
    int calls = 0;
    const auto interrupt = [&] {
      if (calls++ == limit) throw Stop();
    };
    try {
      folder.apply(text, {.verify = PatchVerify::kWhole, .interrupt = interrupt});
      CHECK(limit > 0);
      break;
    } catch (const Stop&) {
      CHECK(folder.dir.count() == 1);
    }
  }
}
