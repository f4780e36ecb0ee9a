// Sums of a model. Accepted ones are within their bounds, and their text says the same; sums made
// of the input are read as they were written.
#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/utf8.hpp"
#include "fuzz_input.hpp"
#include "safetensors/error.hpp"
#include "safetensors/sums.hpp"

namespace {

using safetensors::Digest;
using safetensors::DigestAlgorithm;
using safetensors::Sums;
using safetensors::TensorSums;

void check(const Sums& sums) {
  for (const safetensors::FileSums& file : sums.files()) {
    const std::filesystem::path path(file.path);
    fuzz::require(path.is_relative() && std::ranges::find(path, "..") == path.end() &&
                      file.path.find('\0') == std::string::npos && !file.path.empty(),
                  "a file lies below the folder");
  }
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const TensorSums each = sums.tensor(i);
    fuzz::require(each.file < sums.files().size(), "a tensor is in one of the files");
    fuzz::require(each.xxh3_128 || each.sha256, "a tensor has a digest");
    fuzz::require(i == 0 || sums.tensor(i - 1).name < each.name, "names are sorted, and differ");
    const std::optional<TensorSums> found = sums.find(each.name);
    fuzz::require(found && found->file == each.file && found->xxh3_128 == each.xxh3_128,
                  "a tensor is found by its name");
  }
  const std::string text = sums.json(sums.whole_sha256());
  fuzz::require(Sums::parse(text).json(sums.whole_sha256()) == text, "the text says the same");
}

Digest digest_of(fuzz::Input& input, DigestAlgorithm algorithm) {
  std::vector<std::byte> bytes(algorithm == DigestAlgorithm::kSha256 ? 32 : 16);
  for (std::byte& byte : bytes) byte = std::byte{input.byte()};
  return {algorithm, bytes};
}

void check_written(fuzz::Input input) {
  Sums sums;
  sums.add_file({"a", input.word() >> 1, digest_of(input, DigestAlgorithm::kXxh3_128)});
  sums.add_file({"b/c", 0, digest_of(input, DigestAlgorithm::kSha256),
                 digest_of(input, DigestAlgorithm::kSha256)});
  std::vector<std::string> names;
  while (!input.empty() && names.size() < 20) names.push_back(input.text(input.below(12)));
  std::ranges::sort(names);
  const bool has_sha256 = input.below(2) != 0;
  for (const std::string& name : names) {
    std::vector<std::uint64_t> blocks(input.below(4), input.word());
    TensorSums tensor{.name = name, .file = input.below(2)};
    if (!has_sha256 || input.below(2) != 0) {
      tensor.xxh3_128 = digest_of(input, DigestAlgorithm::kXxh3_128);
    }
    if (has_sha256) tensor.sha256 = digest_of(input, DigestAlgorithm::kSha256);
    if (input.below(2) != 0) tensor.blocks = blocks;
    try {
      sums.add_tensor(tensor);
    } catch (const safetensors::Error&) {
      continue;  // a name that occurs twice, or is no text
    }
  }
  std::optional<Digest> whole;
  if (sums.has_whole(DigestAlgorithm::kSha256)) {
    whole = digest_of(input, DigestAlgorithm::kSha256);
  }
  const std::string text = sums.json(whole);
  const Sums read = Sums::parse(text);
  fuzz::require(read.json(whole) == text && read.size() == sums.size(), "sums are read as written");
  fuzz::require(read.whole_sha256() == whole, "SHA-256 of the model is read as written");
  check(read);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  check_written({data, size});
  try {
    check(Sums::parse(text));
  } catch (const safetensors::Error& error) {
    fuzz::require(!safetensors::find_invalid_utf8(error.what()), "an error is text");
  }
  return 0;
}
