#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "safetensors/digest.hpp"
#include "support.hpp"

using safetensors::Digest;
using safetensors::DigestAlgorithm;
using safetensors::Dtype;
using safetensors::TensorHasher;
using safetensors::Xxh3Hasher;

namespace {

/// Returns the bytes that xxHash publishes hashes of.
std::vector<std::byte> published_bytes(std::size_t size) {
  std::vector<std::byte> bytes(size);
  std::uint64_t state = 2654435761U;
  for (std::byte& byte : bytes) {
    byte = static_cast<std::byte>(state >> 56);
    state *= 11400714785074694797ULL;
  }
  return bytes;
}

template <typename Work>
bool is_refused(const Work& work) {
  return test::error_of(work).code() == safetensors::ErrorCode::kInvalidArgument;
}

}  // namespace

TEST_CASE("XXH3 has the published values") {
  const std::vector<std::pair<std::size_t, std::uint64_t>> wanted64 = {
      {0, 0x2D06800538D394C2},   {1, 0xC44BDFF4074EECDB},    {6, 0x27B56A84CD2D7325},
      {12, 0xA713DAF0DFBB77E7},  {24, 0xA3FE70BF9D3510EB},   {48, 0x397DA259ECBA1F11},
      {80, 0xBCDEFBBB2C47C90A},  {195, 0xCD94217EE362EC3A},  {403, 0xCDEB804D65C6DEA4},
      {512, 0x617E49599013CB6B}, {2048, 0xDD59E2C3A5F038E0}, {2240, 0x6E73A90539CF2948},
      {2367, 0xCB37AEB9E5D361ED}};
  for (const auto& [size, hash] : wanted64) {
    CAPTURE(size);
    Xxh3Hasher hasher;
    hasher.update(published_bytes(size));
    CHECK(hasher.xxh3_64() == hash);
  }
  const std::vector<std::pair<std::size_t, std::string>> wanted128 = {
      {0, "99aa06d3014798d86001c324468d497f"},    {1, "a6cd5e9392000f6ac44bdff4074eecdb"},
      {6, "082afe0b8162d12a3e7039bdda43cfc6"},    {12, "6e3efd8fc7802b18061a192713f69ad9"},
      {24, "0ce966e4678d37611e7044d28b1b901d"},   {48, "a002ac4e5478227ef942219aed80f67b"},
      {81, "4952f58181ab00425e8bafb9f95fb803"},   {222, "337e09641b948717f1aebd597cec6b3a"},
      {403, "1b6de21e332dd73dcdeb804d65c6dea4"},  {512, "18d2d110dcc9bca1617e49599013cb6b"},
      {2048, "f736557fd47073a5dd59e2c3a5f038e0"}, {2240, "ccb134fbfa7ce49d6e73a90539cf2948"},
      {2367, "e89c0f6ff369b427cb37aeb9e5d361ed"}};
  for (const auto& [size, hash] : wanted128) {
    CAPTURE(size);
    Xxh3Hasher hasher;
    hasher.update(published_bytes(size));
    CHECK(hasher.digest().text() == "xxh3-128:" + hash);
  }
}

TEST_CASE("pieces do not change a hash") {
  const std::vector<std::byte> bytes = published_bytes(5000);
  Xxh3Hasher whole;
  whole.update(bytes);
  for (const std::size_t step : {1U, 7U, 64U, 255U, 256U, 257U, 1024U, 4999U}) {
    Xxh3Hasher hasher;
    hasher.update(test::bytes_of("forgotten"));
    hasher.reset();
    for (std::size_t at = 0; at < bytes.size(); at += step) {
      hasher.update(std::span(bytes).subspan(at, std::min(step, bytes.size() - at)));
    }
    CHECK(hasher.digest() == whole.digest());
    CHECK(hasher.xxh3_64() == whole.xxh3_64());
  }
}

TEST_CASE("a digest is read from its text") {
  for (const auto& [algorithm, size] : {std::pair(DigestAlgorithm::kXxh3_128, std::size_t{16}),
                                        std::pair(DigestAlgorithm::kSha256, std::size_t{32})}) {
    const Digest digest(algorithm, published_bytes(size));
    CHECK(digest.algorithm() == algorithm);
    CHECK(digest.bytes().size() == size);
    const std::string text = digest.text();
    CHECK(text.size() == name(algorithm).size() + 1 + 2 * size);
    CHECK(Digest::parse(text) == digest);
    for (std::size_t at = 0; at < text.size(); ++at) {
      CAPTURE(at);
      std::string other = text;
      other[at] = other[at] == '0' ? '1' : '0';
      if (at > name(algorithm).size()) {
        CHECK(Digest::parse(other) != digest);
      } else {
        CHECK(is_refused([&] { (void)Digest::parse(other); }));
      }
      other[at] = 'A';
      CHECK(is_refused([&] { (void)Digest::parse(other); }));
      CHECK(is_refused([&] { (void)Digest::parse(text.substr(0, at)); }));
    }
    CHECK(is_refused([&] { (void)Digest::parse(text + "0"); }));
    CHECK(is_refused([&] { (void)Digest(algorithm, published_bytes(size - 1)); }));
  }
  CHECK(name(static_cast<DigestAlgorithm>(9)).empty());
  CHECK(is_refused([&] { (void)Digest(static_cast<DigestAlgorithm>(9), {}); }));
}

TEST_CASE("a tensor's digest covers its dtype and shape") {
  const std::vector<std::byte> bytes = published_bytes(24);
  const std::array<std::uint64_t, 2> shape = {2, 3};
  TensorHasher tensor(Dtype::kF32, shape);
  tensor.update(bytes);
  Xxh3Hasher wanted;
  wanted.update(test::bytes_of("F32 [2,3]\n"));
  wanted.update(bytes);
  CHECK(tensor.digest() == wanted.digest());
  CHECK(tensor.blocks().empty());

  TensorHasher scalar(Dtype::kBF16, {});
  wanted.reset();
  wanted.update(test::bytes_of("BF16 []\n"));
  CHECK(scalar.digest() == wanted.digest());
  CHECK(is_refused([&] { (void)TensorHasher(static_cast<Dtype>(99), {}); }));
}

TEST_CASE("blocks of tensors have hashes") {
  constexpr std::uint64_t kBlock = 100;
  for (const std::size_t size : {0U, 1U, 99U, 100U, 101U, 200U, 250U}) {
    CAPTURE(size);
    const std::vector<std::byte> bytes = published_bytes(size);
    std::vector<std::uint64_t> wanted;
    for (std::size_t at = 0; at < size; at += kBlock) {
      Xxh3Hasher block;
      block.update(std::span(bytes).subspan(at, std::min<std::size_t>(kBlock, size - at)));
      wanted.push_back(block.xxh3_64());
    }
    for (const std::size_t step : {1U, 30U, 100U, 250U}) {
      TensorHasher tensor(Dtype::kU8, {}, kBlock);
      for (std::size_t at = 0; at < size; at += step) {
        tensor.update(std::span(bytes).subspan(at, std::min(step, size - at)));
      }
      CHECK(tensor.blocks() == wanted);
    }
  }
}
