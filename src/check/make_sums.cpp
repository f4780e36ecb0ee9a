#include "check/make_sums.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "open/read_header.hpp"
#include "safetensors/header.hpp"
#include "safetensors/parallel.hpp"

namespace safetensors {
namespace {

// Bytes that are read at a time: they stay in the processor's cache until they are hashed.
constexpr std::size_t kStep = std::size_t{128} << 10;

struct Found {
  std::optional<Digest> digest;
  std::vector<std::uint64_t> blocks;
};

Found hash_tensor(const ByteSource& file, std::uint64_t data_begin, const TensorInfo& info,
                  std::span<const std::uint64_t> shape) {
  TensorHasher hasher(info.dtype, shape, kDigestBlockSize);
  const Buffer buffer(static_cast<std::size_t>(std::min<std::uint64_t>(kStep, info.nbytes())));
  for (std::uint64_t at = info.begin; at < info.end;) {
    const std::span<std::byte> piece = buffer.bytes().first(
        static_cast<std::size_t>(std::min<std::uint64_t>(kStep, info.end - at)));
    file.read_at(data_begin + at, piece);
    hasher.update(piece);
    at += piece.size();
  }
  return {hasher.digest(), hasher.blocks()};
}

}  // namespace

Sums make_sums(const ByteSource& file, std::string path, const Interrupt& interrupt,
               std::span<const detail::WriteSums::Written> written) {
  const Buffer start = read_prologue(file);
  const ReadHeader read = parse_prologue(start.bytes(), file.size());
  Xxh3Hasher header;
  header.update(start.bytes().first(static_cast<std::size_t>(read.data_begin)));
  std::unordered_map<std::string_view, const detail::WriteSums::Written*> known;
  for (const detail::WriteSums::Written& each : written) {
    if (each.digest) known.emplace(each.name, &each);
  }
  const std::vector<const TensorInfo*> tensors = read.header.sorted_by_name();
  std::vector<Found> found(tensors.size());
  std::vector<std::size_t> unknown;
  std::uint64_t nbytes = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (known.contains(tensors[i]->name)) continue;
    unknown.push_back(i);
    nbytes += tensors[i]->nbytes();
  }
  parallel_for(
      unknown.size(), nbytes,
      [&](std::size_t at) {
        const TensorInfo& info = *tensors[unknown[at]];
        found[unknown[at]] = hash_tensor(file, read.data_begin, info, info.shape);
      },
      interrupt);
  Sums sums;
  sums.add_file({.path = std::move(path), .nbytes = file.size(), .header = header.digest()});
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    TensorSums each{.name = tensors[i]->name, .file = 0};
    if (const auto its = known.find(tensors[i]->name); its != known.end()) {
      each.xxh3_128 = its->second->digest;
      each.blocks = its->second->blocks;
    } else {
      each.xxh3_128 = found[i].digest;
      each.blocks = found[i].blocks;
    }
    sums.add_tensor(each);
  }
  return sums;
}

Sums make_sums(const ByteSource& file, std::string path, const Interrupt& interrupt) {
  return make_sums(file, std::move(path), interrupt, {});
}

}  // namespace safetensors
