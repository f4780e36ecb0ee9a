#include "safetensors/digest.hpp"

#include <algorithm>

#include "base/xxh3.hpp"
#include "check/sha256.hpp"
#include "safetensors/error.hpp"

namespace safetensors {
namespace {

struct Row {
  DigestAlgorithm algorithm;
  std::string_view name;
  std::size_t size;
};

constexpr std::array<Row, 2> kRows = {{
    {DigestAlgorithm::kXxh3_128, "xxh3-128", 16},
    {DigestAlgorithm::kSha256, "sha256", 32},
}};

const Row* find_row(DigestAlgorithm algorithm) noexcept {
  const auto* const row = std::ranges::find(kRows, algorithm, &Row::algorithm);
  return row == kRows.end() ? nullptr : row;
}

constexpr std::string_view kHexDigits = "0123456789abcdef";

#if defined(SAFETENSORS_XXH3_AVX2)
// Found when the library is loaded: a child that forks during the first use of a local static would
// wait for ever for the thread that was initialising it.
const bool has_avx2 = __builtin_cpu_supports("avx2") != 0;
#endif

}  // namespace

std::string_view name(DigestAlgorithm algorithm) noexcept {
  const Row* const row = find_row(algorithm);
  return row == nullptr ? std::string_view() : row->name;
}

Digest::Digest(DigestAlgorithm algorithm, std::span<const std::byte> bytes)
    : algorithm_(algorithm) {
  const Row* const row = find_row(algorithm);
  if (row == nullptr || bytes.size() != row->size) {
    fail(ErrorCode::kInvalidArgument,
         "no digest of this algorithm has " + std::to_string(bytes.size()) + " bytes");
  }
  std::ranges::copy(bytes, bytes_.begin());
}

Digest Digest::parse(std::string_view text) {
  for (const Row& row : kRows) {
    if (!text.starts_with(row.name) || text.size() != row.name.size() + 1 + 2 * row.size) continue;
    std::string_view digits = text.substr(row.name.size());
    if (digits[0] != ':') continue;
    digits.remove_prefix(1);
    if (digits.find_first_not_of(kHexDigits) != std::string_view::npos) continue;
    std::array<std::byte, 32> bytes{};
    for (std::size_t i = 0; i < row.size; ++i) {
      const std::size_t high = kHexDigits.find(digits[2 * i]);
      bytes[i] = static_cast<std::byte>(high << 4 | kHexDigits.find(digits[2 * i + 1]));
    }
    return {row.algorithm, std::span(bytes).first(row.size)};
  }
  fail(ErrorCode::kInvalidArgument,
       "not a digest: expected xxh3-128: and 32 hexadecimal digits in lower case, or sha256: and "
       "64");
}

std::span<const std::byte> Digest::bytes() const& noexcept {
  return std::span(bytes_).first(find_row(algorithm_)->size);
}

std::string Digest::text() const {
  std::string text(name(algorithm_));
  text += ':';
  for (const std::byte byte : bytes()) {
    text += kHexDigits[std::to_integer<unsigned>(byte >> 4)];
    text += kHexDigits[std::to_integer<unsigned>(byte & std::byte{15})];
  }
  return text;
}

struct Xxh3Hasher::State {
  XXH3_state_t xxh3;
};

Xxh3Hasher::Xxh3Hasher() : state_(std::make_unique<State>()) { reset(); }
Xxh3Hasher::Xxh3Hasher(Xxh3Hasher&&) noexcept = default;
Xxh3Hasher& Xxh3Hasher::operator=(Xxh3Hasher&&) noexcept = default;
Xxh3Hasher::~Xxh3Hasher() = default;

// The states of XXH3-64 and XXH3-128 differ in nothing, so one serves both.
void Xxh3Hasher::reset() noexcept { (void)XXH3_128bits_reset(&state_->xxh3); }

void Xxh3Hasher::update(std::span<const std::byte> bytes) noexcept {
#if defined(SAFETENSORS_XXH3_AVX2)
  if (has_avx2) return xxh3_update_avx2(state_->xxh3, bytes.data(), bytes.size());
#endif
  (void)XXH3_128bits_update(&state_->xxh3, bytes.data(), bytes.size());
}

Digest Xxh3Hasher::digest() const {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(&state_->xxh3));
  return {DigestAlgorithm::kXxh3_128, std::as_bytes(std::span(canonical.digest))};
}

std::uint64_t Xxh3Hasher::xxh3_64() const noexcept { return XXH3_64bits_digest(&state_->xxh3); }

std::string digest_start(Dtype dtype, std::span<const std::uint64_t> shape) {
  if (name(dtype).empty()) fail(ErrorCode::kInvalidArgument, "no such dtype");
  std::string text = std::string(name(dtype)) + " [";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) text += ',';
    text += std::to_string(shape[i]);
  }
  return text + "]\n";
}

TensorHasher::TensorHasher(Dtype dtype, std::span<const std::uint64_t> shape,
                           std::uint64_t block_size)
    : block_size_(block_size) {
  const std::string start = digest_start(dtype, shape);
  whole_.update(std::as_bytes(std::span(start)));
}

void TensorHasher::update(std::span<const std::byte> bytes) {
  whole_.update(bytes);
  if (block_size_ == 0) return;
  while (!bytes.empty()) {
    const auto count = static_cast<std::size_t>(
        std::min<std::uint64_t>(bytes.size(), block_size_ - block_nbytes_));
    block_.update(bytes.first(count));
    bytes = bytes.subspan(count);
    block_nbytes_ += count;
    if (block_nbytes_ < block_size_) return;
    blocks_.push_back(block_.xxh3_64());
    block_.reset();
    block_nbytes_ = 0;
  }
}

Digest tensor_digest(DigestAlgorithm algorithm, Dtype dtype, std::span<const std::uint64_t> shape,
                     std::span<const std::byte> bytes, const Sha256& sha256,
                     const Interrupt& interrupt) {
  if (algorithm == DigestAlgorithm::kSha256) {
    return compute_sha256(sha256, digest_start(dtype, shape), bytes);
  }
  constexpr std::size_t kStep = std::size_t{64} << 20;
  TensorHasher hasher(dtype, shape);
  for (std::size_t at = 0; at < bytes.size(); at += kStep) {
    if (interrupt) interrupt();
    hasher.update(bytes.subspan(at, std::min(kStep, bytes.size() - at)));
  }
  return hasher.digest();
}

std::vector<std::uint64_t> TensorHasher::blocks() const {
  std::vector<std::uint64_t> blocks = blocks_;
  if (block_nbytes_ > 0) blocks.push_back(block_.xxh3_64());
  return blocks;
}

}  // namespace safetensors
