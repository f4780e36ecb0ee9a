// Patches between two states of a model, as files in memory.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "safetensors/patch_file.hpp"
#include "safetensors/save.hpp"
#include "safetensors/sums.hpp"
#include "support.hpp"

namespace test {

/// The tensors of a state of a model, by name.
using State = std::map<std::string, OwnTensor>;

inline State state_of(std::vector<OwnTensor> tensors) {
  State state;
  for (OwnTensor& tensor : tensors) {
    const std::string name = tensor.name;
    state.emplace(name, std::move(tensor));
  }
  return state;
}

inline std::vector<OwnTensor> tensors_in(const State& state) {
  std::vector<OwnTensor> tensors;
  for (const auto& [name, tensor] : state) tensors.push_back(tensor);
  return tensors;
}

/// Returns what stands for SHA-256 in tests: 32 bytes, of two XXH3-128.
inline safetensors::Digest fake_sha256(std::string_view start, std::span<const std::byte> bytes) {
  safetensors::Xxh3Hasher hasher;
  hasher.update(bytes_of(start));
  hasher.update(bytes);
  const safetensors::Digest half = hasher.digest();
  std::vector<std::byte> both(half.bytes().begin(), half.bytes().end());
  both.insert(both.end(), half.bytes().begin(), half.bytes().end());
  return {safetensors::DigestAlgorithm::kSha256, both};
}

inline safetensors::Digest digest_of(const OwnTensor& tensor,
                                     safetensors::DigestAlgorithm algorithm) {
  return safetensors::tensor_digest(algorithm, tensor.dtype, tensor.shape, tensor.bytes,
                                    &fake_sha256);
}

inline safetensors::Digest digest_of(const State& state, safetensors::DigestAlgorithm algorithm) {
  const bool is_sha256 = algorithm == safetensors::DigestAlgorithm::kSha256;
  const safetensors::Digest none = safetensors::Xxh3Hasher().digest();
  safetensors::Sums sums;
  (void)sums.add_file({.path = "a", .nbytes = 0, .header = none});
  for (const auto& [name, tensor] : state) {
    safetensors::TensorSums entry{.name = name, .file = 0};
    (is_sha256 ? entry.sha256 : entry.xxh3_128) = digest_of(tensor, algorithm);
    sums.add_tensor(entry);
  }
  return is_sha256 ? fake_sha256(sums.whole_text(algorithm), {}) : sums.whole_xxh3();
}

/// The entries and the metadata of a patch file, which a test may change.
struct PatchParts {
  State entries{};
  safetensors::Metadata metadata{};

  void add(const std::string& name, std::vector<std::byte> bytes) {
    entries[name] = {name, safetensors::Dtype::kU8, {bytes.size()}, std::move(bytes)};
  }
  [[nodiscard]] std::string text() const {
    const std::vector<OwnTensor> tensors = tensors_in(entries);
    return text_of(safetensors::serialize(views_of(tensors), &metadata).bytes());
  }
};

inline void add_change(PatchParts& parts, const std::string& name, const OwnTensor* before,
                       const OwnTensor* after, safetensors::DigestAlgorithm algorithm) {
  safetensors::PatchOptions options;
  if (before != nullptr) options.base = digest_of(*before, algorithm);
  if (after == nullptr) return parts.add("r/" + name, safetensors::removed_patch(*options.base));
  options.target = digest_of(*after, algorithm);
  OwnTensor values = *after;
  values.name = "v/" + name;
  if (before == nullptr || before->dtype != after->dtype || before->shape != after->shape) {
    parts.add("r/" + name,
              safetensors::whole_patch(after->dtype, after->shape, after->bytes, options));
  } else {
    safetensors::EncodedPatch encoded =
        safetensors::encode_patch(after->dtype, after->shape, before->bytes, after->bytes, options);
    if (encoded.changed == 0) return;
    parts.add("r/" + name, std::move(encoded.record));
    if (safetensors::bit_size(after->dtype) < 8) values.dtype = safetensors::Dtype::kU8;
    values.bytes = std::move(encoded.values);
    values.shape = {values.bytes.size() * 8 / safetensors::bit_size(values.dtype)};
  }
  parts.entries[values.name] = values;
}

/// Returns the patch that makes one state of another.
inline PatchParts patch_between(
    const State& before, const State& after,
    safetensors::DigestAlgorithm algorithm = safetensors::DigestAlgorithm::kXxh3_128) {
  PatchParts parts;
  const auto find = [](const State& state, const std::string& name) {
    const auto found = state.find(name);
    return found == state.end() ? nullptr : &found->second;
  };
  for (const auto& [name, tensor] : after) {
    add_change(parts, name, find(before, name), &tensor, algorithm);
  }
  for (const auto& [name, tensor] : before) {
    if (!after.contains(name)) add_change(parts, name, &tensor, nullptr, algorithm);
  }
  parts.metadata = {{"format", "safetensors-patch"},
                    {"patch_version", "1"},
                    {"base", digest_of(before, algorithm).text()},
                    {"target", digest_of(after, algorithm).text()}};
  return parts;
}

/// Opens a patch in memory, whose text the caller keeps.
inline safetensors::PatchFile open_patch_text(std::string_view text) {
  return safetensors::PatchFile(safetensors::SafeOpen(
      std::make_shared<const safetensors::MemorySource>(bytes_of(text)), "p.safetensors-patch"));
}

/// Two states of a model: blocks of three types change, a tensor is removed, one is new, one gets
/// another shape and one stays.
struct States {
  State before = state_of(
      {tensor_of("blocks", Dtype::kBF16, {300, 500}, 1), tensor_of("bytes", Dtype::kU8, {70000}, 2),
       tensor_of("gone", Dtype::kI64, {3}, 3), tensor_of("kept", Dtype::kF32, {5, 7}, 4),
       tensor_of("packed", Dtype::kF4, {64, 2}, 5), tensor_of("shape", Dtype::kF16, {12}, 6)});
  State after = before;

  States() {
    for (const char* const name : {"blocks", "bytes", "packed"}) {
      std::vector<std::byte>& bytes = after.at(name).bytes;
      for (std::size_t i = 3; i < bytes.size(); i += 97) bytes[i] ^= std::byte{1};
    }
    after.erase("gone");
    after.at("shape").shape = {3, 4};
    after.emplace("new", tensor_of("new", Dtype::kF64, {2}, 7));
  }
};

}  // namespace test
