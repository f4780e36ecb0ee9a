// A changed patch file is refused, or makes tensors with the digests that it has. A tensor that it
// is refused for is as it was.
#include "fuzz_input.hpp"
#include "patch_oracle.hpp"
#include "patch_support.hpp"

namespace {

using safetensors::Dtype;
using test::PatchParts;

struct Small {
  test::State before = test::state_of(
      {test::tensor_of("a", Dtype::kBF16, {40}, 1), test::tensor_of("f4", Dtype::kF4, {8, 2}, 2),
       test::tensor_of("gone", Dtype::kI64, {3}, 3), test::tensor_of("kept", Dtype::kF32, {2}, 4)});
  test::State after = before;
  PatchParts parts;

  Small() {
    for (const char* const name : {"a", "f4"}) after.at(name).bytes[3] ^= std::byte{1};
    after.erase("gone");
    after.emplace("new", test::tensor_of("new", Dtype::kF64, {2}, 7));
    parts = test::patch_between(before, after);
    parts.metadata["base_label"] = "0";
    parts.metadata["metadata"] = R"({"a": "b"})";
  }
};

/// Returns one of the elements of a map, by its number.
template <typename Map>
auto& element(Map& map, unsigned number) {
  auto at = map.begin();
  std::advance(at, number % map.size());
  return *at;
}

void change_entry(PatchParts& parts, fuzz::Input& input) {
  test::OwnTensor& entry = element(parts.entries, input.byte()).second;
  if (entry.bytes.empty()) return;
  switch (input.below(4)) {
    case 0:
      entry.dtype = entry.dtype == Dtype::kU8 ? Dtype::kI8 : Dtype::kU8;
      entry.shape = {entry.bytes.size()};
      break;
    case 1:
      entry.shape.insert(entry.shape.begin(), 1);
      break;
    default:
      entry.bytes[input.word() % entry.bytes.size()] = static_cast<std::byte>(input.byte());
  }
  const std::string tensor = entry.name.substr(2);
  const auto record = parts.entries.find("r/" + tensor);
  if (record == parts.entries.end() || record->second.bytes.size() < 8) return;
  if (input.below(4) == 0) return;  // the check does not hold
  const auto values = parts.entries.find("v/" + tensor);
  test::seal(record->second.bytes,
             values == parts.entries.end() ? test::PatchBytes() : values->second.bytes);
}

void change(PatchParts& parts, fuzz::Input& input) {
  switch (input.below(4)) {
    case 0:
      element(parts.metadata, input.byte()).second = input.text(input.below(100));
      return;
    case 1:
      if (parts.entries.size() > 1) {
        const std::string name = element(parts.entries, input.byte()).first;
        test::OwnTensor entry = parts.entries.at(name);
        parts.entries.erase(name);
        entry.name = (input.below(2) == 0 ? "r/" : "v/") + entry.name.substr(2);
        if (input.below(2) == 0) parts.entries[entry.name] = entry;
      }
      return;
    default:
      change_entry(parts, input);
  }
}

void check_tensor(const safetensors::PatchFile& patch, const test::OwnTensor& tensor) {
  for (const bool digests : {false, true}) {
    std::vector<std::byte> bytes = tensor.bytes;
    const std::string outcome = test::outcome_of(
        [&] { patch.apply(tensor.name, tensor.dtype, tensor.shape, bytes, {.digests = digests}); });
    if (outcome != "ok") {
      fuzz::require(bytes == tensor.bytes, "a refused tensor is as it was: " + outcome);
    } else if (digests) {
      const safetensors::PatchChange change = patch.change(tensor.name);
      fuzz::require(
          change.record().target() ==
              safetensors::tensor_digest(patch.algorithm(), tensor.dtype, tensor.shape, bytes),
          "the digest of the result");
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Small small;
  fuzz::Input input(data, size);
  PatchParts parts = small.parts;
  for (unsigned i = input.below(4); i != 0; --i) change(parts, input);
  std::string text;
  const std::string saved = test::outcome_of([&] { text = parts.text(); });
  if (saved != "ok") return 0;  // metadata that is not UTF-8
  for (unsigned i = input.below(3); i != 0; --i) {
    text[input.word() % text.size()] = static_cast<char>(input.byte());
  }
  (void)test::outcome_of([&] {
    const test::ExactBytes exact(text);
    const safetensors::PatchFile patch(safetensors::SafeOpen(
        std::make_shared<const safetensors::MemorySource>(exact.span()), "p"));
    for (std::size_t i = 0; i < patch.size(); ++i) {
      const std::string name(patch.name(i));
      (void)test::outcome_of([&] { (void)patch.change(name).nbytes(); });
      const auto found = small.before.find(name);
      if (found != small.before.end()) check_tensor(patch, found->second);
    }
  });
  return 0;
}
