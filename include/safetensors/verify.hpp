// Compares a file with digests while it is read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "safetensors/byte_source.hpp"
#include "safetensors/digest.hpp"
#include "safetensors/error.hpp"
#include "safetensors/export.hpp"
#include "safetensors/safe_open.hpp"
#include "safetensors/sums.hpp"
#include "safetensors/temporary.hpp"

namespace safetensors {

class Model;

/// The digests that a tensor should have.
struct TensorDigests {
  /// Of dtype, shape and bytes, as TensorHasher computes it. With blocks, it is only used to find
  /// out whether these are damaged.
  std::optional<Digest> digest{};
  /// XXH3-64 of each block of kDigestBlockSize bytes. Empty: the tensor is compared as a whole.
  std::vector<std::uint64_t> blocks{};
};

/// The digests that a file should have.
struct FileDigests {
  std::optional<std::uint64_t> nbytes{};  ///< the file's size
  std::optional<Digest> header{};         ///< of the header and the 8 bytes before it
  /// Of all bytes of the file, which is then read at once, and kept in memory. The other digests
  /// are not compared.
  std::optional<Digest> file{};
  std::map<std::string, TensorDigests, std::less<>> tensors{};
  /// Whether tensors without digests are not compared, and digests without tensors are ignored.
  /// Otherwise both are errors.
  bool is_partial = false;
  /// Needed if a digest is SHA-256. Called by all threads that read, also by several at once.
  Sha256 sha256{};
};

/// A range of a file that differs from its digest.
struct Damage {
  std::string tensor;  ///< empty for the whole file
  std::filesystem::path file;
  std::uint64_t begin;  ///< in the file
  std::uint64_t end;
  /// Such as "xxh3-64:99aa06d3014798d8"; that of the range's first block. Empty: `found` is a
  /// sentence about what is wrong.
  std::string expected;
  std::string found;
};
/// Returns one line about a range, which need not name its file.
[[nodiscard]] SAFETENSORS_API std::string text_of(const Damage& damage);

/// Returns a source of the same bytes that compares them with digests as they are read. Files,
/// slices and loads of it are then compared, too: `SafeOpen(checked_source(...), path)`.
///
/// It compares the size and the header at once, a block of a tensor whenever all of it is read, and
/// a block that is read in part at its first read, for which it reads the whole block. A tensor
/// that has no blocks is read as a whole, and kept in memory while parts of it are requested. Bytes
/// that differ are never returned: reads throw Error kDamaged, whose text names the tensor and the
/// range of bytes, and damage_of() returns all ranges of the tensor.
///
/// Throws: Error kDamaged if the size or the header differs, or the file lacks a tensor that has a
///   digest; kInvalidArgument if a tensor has no digest; what read_at and Header::parse throw.
/// Lifetime: shares `source`. `label` names the file in errors.
[[nodiscard]] SAFETENSORS_API std::shared_ptr<const ByteSource> checked_source(
    std::shared_ptr<const ByteSource> source, const FileDigests& digests,
    const std::filesystem::path& label);

/// Returns the source that checked_source() was given, or another source as it is.
[[nodiscard]] SAFETENSORS_API std::shared_ptr<const ByteSource> unchecked(
    const std::shared_ptr<const ByteSource>& source);

/// Reads the tensors with bytes in [begin, end) again, and returns the ranges that differ. Returns
/// none for a source that is not checked_source()'s.
///
/// Throws: what read_at throws; Error kDamaged if the digests contradict each other.
[[nodiscard]] SAFETENSORS_API std::vector<Damage> find_damage(const ByteSource& source,
                                                              std::uint64_t begin,
                                                              std::uint64_t end);

/// Reads all tensors of a file, by several threads, and returns the ranges that differ from the
/// digests. If the size or the header differs, that is one range, the whole file, whose `found` is
/// a sentence about it and whose `expected` is empty.
///
/// `progress` is called with the bytes that are compared, on the calling thread.
/// Throws: Error kInvalidArgument if a tensor has no digest, or a digest is SHA-256 and there is no
///   function for it; what read_at, `interrupt` and `progress` throw.
[[nodiscard]] SAFETENSORS_API std::vector<Damage> find_damage(
    const SafeOpen& file, const FileDigests& digests, const Interrupt& interrupt = {},
    const std::function<void(std::uint64_t done)>& progress = {});

/// Sums, by the files that they are about. A model of many files takes the digests of each.
///
/// Thread safety: immutable; all members may be called from many threads at once.
/// Lifetime: the caller keeps the sums, unchanged, while the object lives.
class SAFETENSORS_API SumsByFile {
 public:
  explicit SumsByFile(const Sums& sums);
  template <Temporary S>
  explicit SumsByFile(S&&) = delete;

  /// Returns the position in sums.files() of the entry with the longest path that `file` ends with,
  /// or of the only entry; nothing if the sums have nothing about the file.
  [[nodiscard]] std::optional<std::size_t> find_entry(const std::filesystem::path& file) const;
  /// Returns the same. Throws: Error kInvalidArgument if the sums have nothing about the file.
  [[nodiscard]] std::size_t entry_of(const std::filesystem::path& file) const;

  /// Returns what that entry says. A header of which it has a SHA-256 is left out.
  ///
  /// Throws: as entry_of(); Error kInvalidArgument if it has only a SHA-256 of a tensor.
  [[nodiscard]] FileDigests digests_of(const std::filesystem::path& file) const;

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

/// Returns what sums say about one file: SumsByFile(sums).digests_of(file). It looks at all tensors
/// of the sums; for many files, keep a SumsByFile.
[[nodiscard]] SAFETENSORS_API FileDigests digests_of(const Sums& sums,
                                                     const std::filesystem::path& file);

/// Throws Error kDamaged if a model lacks a tensor of which sums have a digest. Opens nothing. What
/// checked_source() is for the files of a model, this is for its index.
SAFETENSORS_API void refuse_absent(const Model& model, const Sums& sums);

/// How find_damage() compares a model. The functions are called on the calling thread.
struct VerifyOptions {
  /// Whether the model should have all files and tensors that the sums name. False for a part of a
  /// model, such as one of its files.
  bool is_whole = true;
  Interrupt interrupt{};
  /// Called with the bytes that are compared and those of all files, which are equal in the last
  /// call.
  std::function<void(std::uint64_t done, std::uint64_t total)> progress{};
  /// Called with what is wrong with a file as soon as all of the file is read, and then with what
  /// the model lacks.
  std::function<void(const Damage&)> report{};
};

/// Reads all files of a model, as find_damage() of a file does, and returns how they differ from
/// the sums: damaged ranges; tensors and files of which the sums have no digest; and, if the model
/// should have all, tensors and files of the sums that it lacks. Such a tensor or file is a range,
/// the whole file, whose `found` is a sentence and whose `expected` is empty.
///
/// A SHA-256 of a header or of a file is not compared.
/// Throws: Error kInvalidArgument if the sums have only a SHA-256 of a tensor; what Model::file()
///   and read_at throw, and the functions of `options`.
[[nodiscard]] SAFETENSORS_API std::vector<Damage> find_damage(const Model& model, const Sums& sums,
                                                              const VerifyOptions& options = {});

/// Throws Error kDamaged for ranges, of which there is at least one.
[[noreturn]] SAFETENSORS_API void fail_damaged(std::vector<Damage> damage);

/// Returns the ranges that an Error kDamaged is about; none if the header or the size differs, or
/// the digests contradict each other.
[[nodiscard]] SAFETENSORS_API std::vector<Damage> damage_of(const Error& error);

}  // namespace safetensors
