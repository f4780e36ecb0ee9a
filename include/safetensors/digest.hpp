// Digests of tensors. XXH3 finds accidental damage; SHA-256 also identifies content.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "safetensors/buffer.hpp"
#include "safetensors/dtype.hpp"
#include "safetensors/export.hpp"

namespace safetensors {

/// The algorithms of digests. XXH3-128 is no protection against anybody who can choose the bytes.
enum class DigestAlgorithm : std::uint8_t { kXxh3_128, kSha256 };

/// Returns "xxh3-128" or "sha256"; empty for a value that is none of the enumerators.
[[nodiscard]] SAFETENSORS_API std::string_view name(DigestAlgorithm algorithm) noexcept;

/// A digest and its algorithm.
///
/// Its text is the algorithm's name, a colon, and the bytes in lower-case hexadecimal digits, such
/// as `xxh3-128:99aa06d3014798d86001c324468d497f`. XXH3-128 has 16 bytes, in its canonical order
/// (big-endian); SHA-256 has 32.
class SAFETENSORS_API Digest {
 public:
  /// Throws: Error kInvalidArgument if digests of the algorithm have another size.
  Digest(DigestAlgorithm algorithm, std::span<const std::byte> bytes);
  /// Reads a digest from its text. Throws: Error kInvalidArgument if it is not one.
  [[nodiscard]] static Digest parse(std::string_view text);

  [[nodiscard]] DigestAlgorithm algorithm() const noexcept { return algorithm_; }
  /// Returns the 16 or 32 bytes. Valid while the digest lives.
  [[nodiscard]] std::span<const std::byte> bytes() const& noexcept;
  std::span<const std::byte> bytes() const&& = delete;
  [[nodiscard]] std::string text() const;

  friend bool operator==(const Digest&, const Digest&) = default;

 private:
  DigestAlgorithm algorithm_;
  std::array<std::byte, 32> bytes_{};  // zeros behind the digest
};

/// Computes XXH3, with seed 0, of bytes that come in pieces.
///
/// Thread safety: one thread at a time. A moved-from hasher may only be destroyed or assigned to.
class SAFETENSORS_API Xxh3Hasher {
 public:
  Xxh3Hasher();
  Xxh3Hasher(Xxh3Hasher&&) noexcept;
  Xxh3Hasher& operator=(Xxh3Hasher&&) noexcept;
  ~Xxh3Hasher();

  void update(std::span<const std::byte> bytes) noexcept;
  /// Forgets all bytes.
  void reset() noexcept;
  /// Returns XXH3-128 of the bytes so far.
  [[nodiscard]] Digest digest() const;
  /// Returns XXH3-64 of the bytes so far.
  [[nodiscard]] std::uint64_t xxh3_64() const noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// The bytes of a block, where blocks of tensors have digests.
inline constexpr std::uint64_t kDigestBlockSize = std::uint64_t{4} << 20;

/// Returns the text that is hashed before a tensor's bytes, such as `F32 [2,3]` and a newline. A
/// scalar's shape is `[]`. Throws: Error kInvalidArgument if the dtype has no name.
[[nodiscard]] SAFETENSORS_API std::string digest_start(Dtype dtype,
                                                       std::span<const std::uint64_t> shape);

/// Returns SHA-256 of a text followed by bytes. The library computes none itself.
using Sha256 = std::function<Digest(std::string_view start, std::span<const std::byte> bytes)>;

/// Returns the digest of a tensor in memory, as TensorHasher defines it: by XXH3-128, or by what
/// `sha256` computes.
///
/// Throws: Error kInvalidArgument if the dtype has no name, or if the algorithm is kSha256 and
///   there is no function for it; what `sha256` and `interrupt` throw.
[[nodiscard]] SAFETENSORS_API Digest tensor_digest(DigestAlgorithm algorithm, Dtype dtype,
                                                   std::span<const std::uint64_t> shape,
                                                   std::span<const std::byte> bytes,
                                                   const Sha256& sha256 = {},
                                                   const Interrupt& interrupt = {});

/// Computes the digest of a tensor: XXH3-128 of its dtype and shape, as `F32 [2,3]` and a newline,
/// followed by its bytes. A scalar's shape is `[]`.
///
/// With a block size, it also computes XXH3-64 of each block of this many bytes; the last block may
/// be shorter. A digest says that a tensor is damaged, blocks say where.
///
/// Thread safety: one thread at a time.
class SAFETENSORS_API TensorHasher {
 public:
  /// A block size of 0 is for no blocks. Throws: Error kInvalidArgument if the dtype has no name.
  TensorHasher(Dtype dtype, std::span<const std::uint64_t> shape, std::uint64_t block_size = 0);

  /// Adds the next bytes of the tensor. Pieces of 128 KiB that have just been read or are to be
  /// written take the least time: they are in the processor's cache.
  void update(std::span<const std::byte> bytes);
  /// Returns the digest of the bytes so far.
  [[nodiscard]] Digest digest() const { return whole_.digest(); }
  /// Returns XXH3-64 of each block of the bytes so far.
  [[nodiscard]] std::vector<std::uint64_t> blocks() const;

 private:
  Xxh3Hasher whole_;
  Xxh3Hasher block_;
  std::uint64_t block_size_;
  std::uint64_t block_nbytes_ = 0;  // in block_
  std::vector<std::uint64_t> blocks_;
};

}  // namespace safetensors
