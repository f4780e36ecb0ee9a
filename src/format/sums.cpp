// The content of sums: what is in them, and their text. sums_reader.cpp parses it.
#include "safetensors/sums.hpp"

#include <algorithm>
#include <utility>

#include "base/ascii_text.hpp"
#include "base/base64.hpp"
#include "base/text.hpp"
#include "base/utf8.hpp"
#include "safetensors/detail/whole_text.hpp"
#include "safetensors/error.hpp"

namespace safetensors {
namespace {

template <std::size_t Size>
std::array<std::byte, Size> array_of(const Digest& digest) {
  std::array<std::byte, Size> bytes{};
  std::ranges::copy(digest.bytes(), bytes.begin());
  return bytes;
}

/// Appends the texts of digests, in the order of their algorithms' names.
void append_digests(std::string& json, const std::optional<Digest>& sha256,
                    const std::optional<Digest>& xxh3) {
  json += '[';
  if (sha256) json += '"' + sha256->text() + '"';
  if (sha256 && xxh3) json += ',';
  if (xxh3) json += '"' + xxh3->text() + '"';
  json += ']';
}

void append_file(std::string& json, const FileSums& file) {
  append_ascii_json(json, file.path);
  json += ":{\"header\":\"" + file.header.text() + '"';
  if (file.sha256) json += ",\"sha256\":\"" + detail::hex_of(*file.sha256) + '"';
  json += ",\"size\":" + std::to_string(file.nbytes) + '}';
}

void append_tensor(std::string& json, const TensorSums& tensor, const std::string& file) {
  append_ascii_json(json, tensor.name);
  json += ":{";
  if (tensor.blocks) {
    json += "\"blocks\":\"";
    std::size_t at = 0;
    append_base64(json, 8 * tensor.blocks->size(), [&] {
      const std::uint64_t block = (*tensor.blocks)[at / 8];
      return static_cast<std::uint8_t>(block >> (8 * (at++ % 8)) & 0xFF);
    });
    json += "\",";
  }
  json += "\"digest\":";
  append_digests(json, tensor.sha256, tensor.xxh3_128);
  json += ",\"file\":";
  append_ascii_json(json, file);
  json += '}';
}

}  // namespace

std::size_t Sums::add_file(FileSums file) {
  files_.push_back(std::move(file));
  return files_.size() - 1;
}

void Sums::set(Entry& entry, const Digest& digest) {
  if (digest.algorithm() == DigestAlgorithm::kSha256) {
    entry.sha256 = static_cast<std::uint32_t>(sha256_.size());
    sha256_.push_back(array_of<32>(digest));
  } else {
    entry.xxh3 = static_cast<std::uint32_t>(xxh3_.size());
    xxh3_.push_back(array_of<16>(digest));
  }
}

void Sums::add_tensor(const TensorSums& tensor) {
  const bool follows = entries_.empty() || name_of(entries_.back()) < tensor.name;
  const bool has_digest = tensor.xxh3_128 || tensor.sha256;
  if (!follows || !has_digest || tensor.file >= files_.size() || find_invalid_utf8(tensor.name)) {
    const std::string name = clipped(tensor.name);
    fail(ErrorCode::kInvalidArgument,
         "tensor `" + name + "` has no digest or file, or does not follow the one before",
         {.subject = name});
  }
  Entry entry{.begin = static_cast<std::uint32_t>(text_.size()),
              .size = static_cast<std::uint32_t>(tensor.name.size()),
              .file = static_cast<std::uint32_t>(tensor.file)};
  text_.insert(text_.end(), tensor.name.begin(), tensor.name.end());
  for (const auto& digest : {tensor.xxh3_128, tensor.sha256}) {
    if (digest) set(entry, *digest);
  }
  if (tensor.blocks) {
    entry.blocks = static_cast<std::uint32_t>(blocks_.size());
    entry.count = static_cast<std::uint32_t>(tensor.blocks->size());
    blocks_.insert(blocks_.end(), tensor.blocks->begin(), tensor.blocks->end());
  }
  entries_.push_back(entry);
}

TensorSums Sums::tensor(std::size_t number) const {
  const Entry& entry = entries_[number];
  TensorSums tensor{.name = name_of(entry), .file = entry.file};
  if (entry.xxh3 != kNone) tensor.xxh3_128 = {DigestAlgorithm::kXxh3_128, xxh3_[entry.xxh3]};
  if (entry.sha256 != kNone) tensor.sha256 = {DigestAlgorithm::kSha256, sha256_[entry.sha256]};
  if (entry.blocks != kNone) tensor.blocks = std::span(blocks_).subspan(entry.blocks, entry.count);
  return tensor;
}

std::optional<TensorSums> Sums::find(std::string_view name) const {
  const auto found = std::ranges::lower_bound(
      entries_, name, {}, [this](const Entry& entry) { return name_of(entry); });
  if (found == entries_.end() || name_of(*found) != name) return std::nullopt;
  return tensor(static_cast<std::size_t>(found - entries_.begin()));
}

bool Sums::has_whole(DigestAlgorithm algorithm) const noexcept {
  return (algorithm == DigestAlgorithm::kSha256 ? sha256_.size() : xxh3_.size()) == size();
}

template <typename Take>
void Sums::make_whole(DigestAlgorithm algorithm, const Take& take) const {
  detail::WholeText text(take);
  const bool is_sha256 = algorithm == DigestAlgorithm::kSha256;
  for (const Entry& each : entries_) {  // has_whole(): they all have a digest
    text.add(name_of(each), is_sha256 ? Digest{algorithm, sha256_[each.sha256]}
                                      : Digest{algorithm, xxh3_[each.xxh3]});
  }
  text.finish();
}

std::string Sums::whole_text(DigestAlgorithm algorithm) const {
  std::string whole;
  make_whole(algorithm, [&](std::string_view text) { whole += text; });
  return whole;
}

Digest Sums::whole_xxh3() const {
  Xxh3Hasher hasher;
  make_whole(DigestAlgorithm::kXxh3_128,
             [&](std::string_view text) { hasher.update(std::as_bytes(std::span(text))); });
  return hasher.digest();
}

std::string Sums::json(const std::optional<Digest>& whole_sha256) const {
  std::string json = "{\"block_size\":" + std::to_string(kDigestBlockSize) + ",\"files\":{";
  std::vector<const FileSums*> files;
  files.reserve(files_.size());
  for (const FileSums& file : files_) files.push_back(&file);
  std::ranges::sort(files, {}, [](const FileSums* file) { return std::string_view(file->path); });
  for (const FileSums* file : files) {
    if (file != files.front()) json += ',';
    append_file(json, *file);
  }
  json += "},\"format\":\"safetensors-sums\",\"tensors\":{";
  for (std::size_t i = 0; i < size(); ++i) {
    if (i != 0) json += ',';
    const TensorSums each = tensor(i);
    append_tensor(json, each, files_[each.file].path);
  }
  json += "},\"version\":1,\"whole\":";
  std::optional<Digest> xxh3;
  if (has_whole(DigestAlgorithm::kXxh3_128)) xxh3 = whole_xxh3();
  append_digests(json, whole_sha256, xxh3);
  return json + "}\n";
}

}  // namespace safetensors
