// The sums of a model: the digests of its tensors, in a file beside it. docs/verify.md describes
// them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "safetensors/buffer.hpp"
#include "safetensors/byte_source.hpp"
#include "safetensors/digest.hpp"
#include "safetensors/export.hpp"

namespace safetensors {

/// The limit of the size of a file of sums, in bytes.
inline constexpr std::uint64_t kMaxSumsSize = 100'000'000;

/// What sums say about a file.
struct FileSums {
  std::string path;                   ///< relative to the folder of the model
  std::uint64_t nbytes;               ///< the size of the file
  Digest header;                      ///< of the header and the 8 bytes before it
  std::optional<Digest> sha256 = {};  ///< of the whole file
};

/// What sums say about a tensor, which has at least one digest.
struct TensorSums {
  std::string_view name;
  std::size_t file;  ///< position in files()
  std::optional<Digest> xxh3_128 = {};
  std::optional<Digest> sha256 = {};
  /// XXH3-64 of each block of kDigestBlockSize bytes; nothing if the sums do not have them.
  std::optional<std::span<const std::uint64_t>> blocks = {};
};

/// The digests of a model's files and tensors.
///
/// Safe for untrusted input: parsing takes at most 64 MB and 8 times the text's length in memory;
///   paths are relative to the folder of the model and cannot lead out of it.
/// Thread safety: several threads may read sums to which nothing is added meanwhile.
class SAFETENSORS_API Sums {
 public:
  /// Reads a file of sums.
  ///
  /// Throws: Error kIo, kNotRegularFile, kFileChanged, or kHeaderTooLarge (above kMaxSumsSize);
  ///   what parse() throws, with a text that names the file.
  [[nodiscard]] static Sums read(const std::filesystem::path& path);
  /// Parses the text of sums. The digest of the model by XXH3-128, if the sums have it, fits the
  /// tensors. To use SHA-256, compare whole_sha256() with the SHA-256 of whole_text().
  ///
  /// Throws: Error kInvalidHeaderJson.
  [[nodiscard]] static Sums parse(std::string_view json);

  /// Adds a file and returns its position.
  std::size_t add_file(FileSums file);
  /// Adds a tensor.
  ///
  /// Throws: Error kInvalidArgument if its name is not greater than that of the last tensor, it has
  ///   no digest, or there is no such file.
  void add_tensor(const TensorSums& tensor);

  [[nodiscard]] const std::vector<FileSums>& files() const& noexcept { return files_; }
  /// Returns the number of tensors. They are numbered in the order of their names.
  [[nodiscard]] std::size_t size() const noexcept { return entries_.size(); }
  /// Returns a tensor. Its name and blocks are valid while the sums live and nothing is added.
  [[nodiscard]] TensorSums tensor(std::size_t number) const;
  /// Returns the tensor with this name, if there is one. Lifetime: as tensor().
  [[nodiscard]] std::optional<TensorSums> find(std::string_view name) const;

  /// Returns whether the model has a digest by this algorithm: all tensors have one.
  [[nodiscard]] bool has_whole(DigestAlgorithm algorithm) const noexcept;
  /// Returns the text whose digest is that of the model. Requires: has_whole().
  [[nodiscard]] std::string whole_text(DigestAlgorithm algorithm) const;
  /// Returns the digest of the model by XXH3-128. Requires: has_whole().
  [[nodiscard]] Digest whole_xxh3() const;
  /// Returns the SHA-256 of the model that parse() has read.
  [[nodiscard]] const std::optional<Digest>& whole_sha256() const& noexcept {
    return whole_sha256_;
  }

  /// Returns the text of the sums. The same sums have the same text.
  ///
  /// whole_sha256: the SHA-256 of whole_text(), if has_whole(kSha256).
  [[nodiscard]] std::string json(const std::optional<Digest>& whole_sha256 = {}) const;

 private:
  friend class SumsHandler;
  static constexpr std::uint32_t kNone = UINT32_MAX;

  struct Entry {
    std::uint32_t begin;           // of the name, in text_
    std::uint32_t size;            // of the name
    std::uint32_t file;            // in files_
    std::uint32_t xxh3 = kNone;    // in xxh3_
    std::uint32_t sha256 = kNone;  // in sha256_
    std::uint32_t blocks = kNone;  // of the first block, in blocks_
    std::uint32_t count = 0;       // of blocks
  };

  [[nodiscard]] std::string_view name_of(const Entry& entry) const noexcept {
    return {text_.data() + entry.begin, entry.size};
  }
  void set(Entry& entry, const Digest& digest);
  /// Gives the text whose digest is that of the model to `take`, piece by piece.
  template <typename Take>
  void make_whole(DigestAlgorithm algorithm, const Take& take) const;

  std::vector<FileSums> files_;
  std::vector<Entry> entries_;
  std::vector<char> text_;  // names end to end
  std::vector<std::array<std::byte, 16>> xxh3_;
  std::vector<std::array<std::byte, 32>> sha256_;
  std::vector<std::uint64_t> blocks_;
  std::optional<Digest> whole_sha256_;
};

/// Computes the sums of a file, of which it reads all bytes, by up to 8 threads: XXH3-128 of the
/// header and of each tensor, and XXH3-64 of their blocks.
///
/// path: of the file, relative to the folder of the model, for the sums.
/// Throws: what read_at and Header::parse throw; what `interrupt` throws.
[[nodiscard]] SAFETENSORS_API Sums make_sums(const ByteSource& file, std::string path,
                                             const Interrupt& interrupt = {});

inline constexpr const char* kSumsSuffix = ".sums.json";
/// The name of the sums of all files of a folder that has no index.
inline constexpr const char* kFolderSums = "model.sums.json";

/// Returns the name of the sums of a model with files NAME.VARIANT: NAME.VARIANT.sums.json, without
/// a variant NAME.sums.json.
[[nodiscard]] SAFETENSORS_API std::string sums_name(std::string_view name,
                                                    std::string_view variant);

/// Returns the path of the sums that are written for a file or for the model of an index:
/// STEM.sums.json for STEM.safetensors, for STEM.json, and for STEM.safetensors.index.json;
/// STEM.fp16.sums.json for the index of a variant, such as STEM.safetensors.index.fp16.json; for
/// any other file, its path and ".sums.json".
[[nodiscard]] SAFETENSORS_API std::filesystem::path sums_path(const std::filesystem::path& file);

/// Returns where sums with digests of a file may be, the most specific first: sums_path(); for one
/// of several files of a model, those of the model; and kFolderSums in its folder, which counts
/// only if it has an entry of the file.
[[nodiscard]] SAFETENSORS_API std::vector<std::filesystem::path> sums_paths(
    const std::filesystem::path& file);

/// Returns the path of the sums that `path` leads to, whether they exist or not: itself, if it ends
/// with ".sums.json"; for a file or an index, sums_path(); for a folder, those of its model or, if
/// there are none, kFolderSums.
///
/// Throws: what find_model_files() throws.
[[nodiscard]] SAFETENSORS_API std::filesystem::path find_sums(const std::filesystem::path& path);

/// Removes the sums of a file that is about to change, so that they cannot accuse its new content:
/// those at sums_paths(). Does nothing for a file whose name does not end with ".safetensors". The
/// sinks of paths do this before a file gets its name.
///
/// Throws: Error kIo if there are sums that cannot be removed.
SAFETENSORS_API void remove_sums(const std::filesystem::path& file);

}  // namespace safetensors
