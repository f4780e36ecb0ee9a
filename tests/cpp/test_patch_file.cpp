#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "patch_support.hpp"
#include "safetensors/patch_file.hpp"

using safetensors::DigestAlgorithm;
using safetensors::ErrorCode;
using safetensors::PatchChecks;
using safetensors::PatchFile;
using safetensors::PatchKind;
using test::PatchParts;

namespace {

/// Reads all of a patch.
void read_all(const PatchFile& patch) {
  for (std::size_t i = 0; i < patch.size(); ++i) (void)patch.change(patch.name(i));
}

/// Returns the error of a patch that is refused.
safetensors::Error error_of(const PatchParts& parts) {
  return test::error_of([&] {
    const std::string text = parts.text();
    read_all(test::open_patch_text(text));
  });
}

}  // namespace

TEST_CASE("a patch file says what changes") {
  const test::States states;
  PatchParts parts = test::patch_between(states.before, states.after);
  parts.metadata["base_label"] = "0";
  parts.metadata["metadata"] = R"({"step": "1", "quote": "\"é"})";
  parts.metadata["other"] = "ignored";
  const std::string text = parts.text();
  const PatchFile patch = test::open_patch_text(text);
  CHECK(patch.base() == test::digest_of(states.before, DigestAlgorithm::kXxh3_128));
  CHECK(patch.target() == test::digest_of(states.after, DigestAlgorithm::kXxh3_128));
  CHECK(patch.base_label() == "0");
  CHECK_FALSE(patch.target_label());
  CHECK(patch.metadata() == safetensors::Metadata{{"quote", "\"é"}, {"step", "1"}});
  const std::vector<std::string> names = {"blocks", "bytes", "gone", "new", "packed", "shape"};
  REQUIRE(patch.size() == names.size());
  for (std::size_t i = 0; i < names.size(); ++i) CHECK(patch.name(i) == names[i]);
  CHECK(patch.contains("gone"));
  CHECK_FALSE(patch.contains("kept"));
  CHECK(test::outcome_of([&] { (void)patch.change("kept"); }) == "kTensorNotFound");
}

TEST_CASE("a patch file makes the target of each tensor in memory") {
  const test::States states;
  for (const auto algorithm : {DigestAlgorithm::kXxh3_128, DigestAlgorithm::kSha256}) {
    const std::string text = test::patch_between(states.before, states.after, algorithm).text();
    const PatchFile patch = test::open_patch_text(text);
    for (const bool digests : {false, true}) {
      const PatchChecks checks{.digests = digests, .sha256 = &test::fake_sha256};
      for (std::size_t i = 0; i < patch.size(); ++i) {
        const std::string name(patch.name(i));
        CAPTURE(name);
        const auto wanted = states.after.find(name);
        if (wanted == states.after.end()) {
          CHECK(test::outcome_of([&] {
                  std::vector<std::byte> bytes(24);
                  patch.apply(name, safetensors::Dtype::kI64, {}, bytes, checks);
                }) == "kInvalidArgument");
          continue;
        }
        const test::OwnTensor& tensor = wanted->second;
        const bool is_new = patch.change(name).kind() == PatchKind::kWhole;
        std::vector<std::byte> bytes =
            is_new ? std::vector<std::byte>(tensor.bytes.size()) : states.before.at(name).bytes;
        const auto apply = [&] { patch.apply(name, tensor.dtype, tensor.shape, bytes, checks); };
        apply();
        CHECK(bytes == tensor.bytes);
        CHECK(test::outcome_of(apply) == (is_new ? "ok" : "kPatchApplied"));
        CHECK(bytes == tensor.bytes);
      }
    }
  }
}

TEST_CASE("a tensor that a patch is not for stays as it is") {
  const test::States states;
  const std::string text = test::patch_between(states.before, states.after).text();
  const PatchFile patch = test::open_patch_text(text);
  const test::OwnTensor& base = states.before.at("blocks");
  std::vector<std::byte> bytes = base.bytes;
  bytes[3] ^= std::byte{8};  // an element that changes
  bytes[5] ^= std::byte{8};  // and one that does not
  const std::vector<std::byte> before = bytes;
  for (const bool digests : {false, true}) {
    CHECK(test::outcome_of([&] {
            patch.apply("blocks", base.dtype, base.shape, bytes, {.digests = digests});
          }) == "kWrongBase");
    CHECK(bytes == before);
  }
  bytes[3] ^= std::byte{8};  // only digests notice the other
  CHECK(test::outcome_of([&] {
          patch.apply("blocks", base.dtype, base.shape, bytes, {.digests = true});
        }) == "kWrongBase");
  patch.apply("blocks", base.dtype, base.shape, bytes);
  CHECK(bytes[5] == before[5]);

  const std::vector<std::uint64_t> other = {500, 300};
  bytes = base.bytes;
  const auto error = test::error_of([&] { patch.apply("blocks", base.dtype, other, bytes); });
  CHECK(error.code() == ErrorCode::kWrongBase);
  CHECK(error.what() == std::string("p.safetensors-patch: tensor `blocks`: the patch is for BF16 "
                                    "[300, 500], but the model's is BF16 [500, 300]"));
  CHECK(error.subject() == "blocks");
  CHECK(error.path() == "p.safetensors-patch");
  CHECK(test::outcome_of([&] {
          patch.apply("shape", safetensors::Dtype::kF16, states.before.at("shape").shape, bytes);
        }) == "kWrongBase");
  CHECK(test::outcome_of([&] {
          patch.apply("packed", safetensors::Dtype::kU8, states.before.at("packed").shape, bytes);
        }) == "kWrongBase");
}

TEST_CASE("metadata that is not that of a patch is refused") {
  const test::States states;
  const PatchParts good = test::patch_between(states.before, states.after);
  const std::string digits(64, '0');
  struct Case {
    const char* key;
    std::optional<std::string> value;
    std::string text;
  };
  const std::vector<Case> cases = {
      {"format", {}, "not a patch: its metadata has no `format` of `safetensors-patch`"},
      {"format", "pt", "not a patch: its metadata has no `format` of `safetensors-patch`"},
      {"patch_version", {}, "version null of patches is unknown"},
      {"patch_version", "2", "version \"2\" of patches is unknown"},
      {"base", {}, "`base` is null, which is not a digest"},
      {"base", "xxh3-128:00", "`base` is \"xxh3-128:00\", which is not a digest"},
      {"target", "a\nb", "`target` is \"a\\u000ab\", which is not a digest"},
      {"target", "sha256:" + digits, "`base` and `target` are digests of two algorithms"},
      {"base_label", std::string(257, 'x'), "`base_label` has more than 256 bytes"},
      {"metadata", "{", "`metadata` is not a JSON object of strings"},
      {"metadata", "\"a\"", "`metadata` is not a JSON object of strings"},
      {"metadata", std::string(100000, '['), "`metadata` is not a JSON object of strings"},
      {"metadata", R"({"a": 1})", "`metadata` is not a JSON object of strings"},
      {"metadata", R"({"a": {}})", "`metadata` is not a JSON object of strings"},
      {"metadata", R"({"a": "1", "a": "1"})",
       "`metadata`: the JSON has the key 'a' twice in one object"},
      {"metadata", R"({"a": "\ud800"})", "`metadata` is not a JSON object of strings"},
      {"metadata", R"({"a": "\udc00"})", "`metadata`: the JSON has half of a surrogate pair"},
  };
  for (const Case& each : cases) {
    PatchParts parts = good;
    parts.metadata.erase(each.key);
    if (each.value) parts.metadata.emplace(each.key, *each.value);
    const auto error = error_of(parts);
    CHECK(error.code() == ErrorCode::kInvalidPatch);
    CHECK(error.what() == "p.safetensors-patch: " + each.text);
    CHECK(error.path() == "p.safetensors-patch");
  }
}

TEST_CASE("metadata of a patch takes memory in proportion to its length") {
  const test::States states;
  PatchParts parts = test::patch_between(states.before, states.after);
  std::string json = "{";
  for (int i = 0; i < 1200000; ++i) json += (i == 0 ? "\"" : ",\"") + std::to_string(i) + "\":\"\"";
  parts.metadata["metadata"] = json + "}";
  const auto error = error_of(parts);
  CHECK(std::string(error.what()).find("has too many values") != std::string::npos);
  CHECK(error.subject() == "metadata");
}

TEST_CASE("entries that do not belong together are refused") {
  const test::States states;
  const PatchParts good = test::patch_between(states.before, states.after);
  const auto changed = [&](const auto& change) {
    PatchParts parts = good;
    change(parts.entries);
    const auto error = error_of(parts);
    CHECK(error.code() == ErrorCode::kInvalidPatch);
    return std::string(error.what());
  };
  const auto with = [&](const std::string& name, test::OwnTensor tensor) {
    tensor.name = name;
    return changed([&](test::State& entries) { entries[name] = tensor; });
  };
  const auto without = [&](const std::string& name) {
    return changed([&](test::State& entries) { entries.erase(name); });
  };
  const test::OwnTensor byte = test::tensor_of("", safetensors::Dtype::kU8, {1});
  const std::string start = "p.safetensors-patch: tensor ";
  CHECK(with("x", byte) == start + "`x`: entry `x` is neither a record nor values");
  CHECK(with("v/y", byte) == start + "`y`: it has values and no record");
  CHECK(without("r/blocks") == start + "`blocks`: it has values and no record");
  CHECK(without("v/new").find("`new`") != std::string::npos);
  CHECK(with("v/gone", test::tensor_of("", safetensors::Dtype::kU8, {0})) ==
        start + "`gone`: its record says removed, and it has values");
  test::OwnTensor record = good.entries.at("r/blocks");
  record.shape = {1, record.bytes.size()};
  CHECK(with("r/blocks", record) == start + "`blocks`: its record is U8 [1, " +
                                        std::to_string(record.bytes.size()) + "], not U8 [n]");
  test::OwnTensor values = good.entries.at("v/bytes");
  values.shape = {values.bytes.size(), 1};
  CHECK(with("v/bytes", values) == start + "`bytes`: its values have the shape [" +
                                       std::to_string(values.bytes.size()) + ", 1], not [n]");
  record = good.entries.at("r/blocks");
  record.bytes[20] ^= std::byte{1};
  CHECK(with("r/blocks", record) ==
        "p.safetensors-patch: the patch of tensor `blocks` is invalid: it is damaged: the check of "
        "the record and its values does not hold");
}

TEST_CASE("every part of a patch file is refused, and every flipped byte") {
  const test::States states;
  const std::string text = test::patch_between(states.before, states.after).text();
  const auto outcome = [](std::string_view bytes) {
    const test::ExactBytes exact(bytes);
    return test::outcome_of([&] {
      read_all(PatchFile(safetensors::SafeOpen(
          std::make_shared<const safetensors::MemorySource>(exact.span()), "p")));
    });
  };
  CHECK(outcome(text) == "ok");
  for (std::size_t size = 0; size < text.size(); size += 1 + size / 50) {
    CAPTURE(size);
    CHECK(outcome(std::string_view(text).substr(0, size)) != "ok");
  }
  const std::size_t data = text.size() - 1000;  // records and values
  for (std::size_t at = data; at < text.size(); ++at) {
    std::string broken = text;
    broken[at] ^= 4;
    CAPTURE(at);
    CHECK(outcome(broken) == "kInvalidPatch");
  }
}

TEST_CASE("a patch of a path is read, not mapped") {
  const test::States states;
  const test::TempDir dir;
  const test::fs::path path = dir / "p.safetensors-patch";
  const std::string text = test::patch_between(states.before, states.after).text();
  test::write_text(path, text);
  const PatchFile patch = safetensors::open_patch(path);
  const safetensors::PatchChange change = patch.change("new");
  test::write_text(path, std::string(text.size(), '\0'));
  CHECK(std::ranges::equal(change.values(), states.after.at("new").bytes));
  CHECK(test::outcome_of([&] { (void)patch.change("blocks"); }) == "kInvalidPatch");
  CHECK(test::outcome_of([&] { (void)safetensors::open_patch(dir / "none"); }) == "kIo");
}
