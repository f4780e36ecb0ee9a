// What a patch file does to one tensor (docs/patches.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "safetensors/buffer.hpp"
#include "safetensors/digest.hpp"
#include "safetensors/dtype.hpp"
#include "safetensors/export.hpp"
#include "safetensors/layout.hpp"
#include "safetensors/patch.hpp"
#include "safetensors/safe_open.hpp"

namespace safetensors {

/// How a tensor is compared with a patch.
struct PatchChecks {
  /// Also compares digests of whole tensors, before and after. Otherwise only the units that change
  /// are compared with the base's. A tensor that is removed or replaced is always compared by its
  /// digest.
  bool digests = false;
  /// Needed where a digest is compared, if those of the patch are SHA-256.
  Sha256 sha256{};
  Interrupt interrupt{};
};

/// The record and the values of a tensor in a patch file, which are valid as a whole. Cheap to
/// copy.
///
/// Errors are of the codes kInvalidPatch, kWrongBase and kPatchApplied unless a function says
/// otherwise. Their texts begin with the file's name; path() and subject() are set.
///
/// Safe for untrusted input: memory and time depend on the bytes that the file has.
/// Thread safety: several threads may use one at a time, on different tensors.
/// Lifetime: keeps the bytes that it needs, and outlives the file. A moved-from object may only be
///   destroyed or assigned to.
class SAFETENSORS_API PatchChange {
 public:
  /// Reads what an open patch file says about a tensor, and checks every byte. `algorithm` is that
  /// of the digests of the file. PatchFile::change() passes it.
  ///
  /// Throws: Error kTensorNotFound, kInvalidPatch; what SafeOpen::get_tensor() and `interrupt`
  ///   throw.
  PatchChange(const SafeOpen& patch, std::string_view tensor, DigestAlgorithm algorithm,
              const Interrupt& interrupt = {});

  [[nodiscard]] std::string_view name() const& noexcept;
  std::string_view name() const&& = delete;
  /// Returns the path of the patch file.
  [[nodiscard]] const std::filesystem::path& path() const& noexcept;
  const std::filesystem::path& path() const&& = delete;
  [[nodiscard]] PatchKind kind() const noexcept { return record().kind(); }
  /// Returns the record, which has the digests and says which units change.
  [[nodiscard]] const PatchRecord& record() const& noexcept;
  const PatchRecord& record() const&& = delete;
  /// Returns the dtype of the target's tensor; nothing if it is removed. Nothing also for blocks of
  /// a sub-byte type: the patch does not say which type.
  [[nodiscard]] const std::optional<Dtype>& dtype() const& noexcept;
  const std::optional<Dtype>& dtype() const&& = delete;
  /// Returns the shape of the target's tensor; empty if it is removed.
  [[nodiscard]] std::span<const std::uint64_t> shape() const& noexcept;
  std::span<const std::uint64_t> shape() const&& = delete;
  /// Returns the values as the file has them: of kWhole, the target's tensor.
  [[nodiscard]] std::span<const std::byte> values() const& noexcept;
  std::span<const std::byte> values() const&& = delete;
  /// Returns how many units the target's tensor has: elements, or bytes of a sub-byte type.
  [[nodiscard]] std::uint64_t units() const noexcept;
  /// Returns how many units the patch lists: all of a whole tensor.
  [[nodiscard]] std::uint64_t changed() const noexcept;
  /// Returns the bytes of record and values.
  [[nodiscard]] std::uint64_t nbytes() const noexcept;

  /// Compares a tensor of a model, whose name does not matter, with the base and the target.
  ///
  /// Throws: Error kWrongBase if it is neither, which also names the first block that differs;
  ///   kInvalidArgument as tensor_digest(); what PatchRecord::check() throws.
  [[nodiscard]] PatchState check(const TensorData& tensor, const PatchChecks& checks = {}) const;
  /// The same for a model that has no such tensor. Throws: Error kWrongBase.
  [[nodiscard]] PatchState check_absent() const;
  /// Makes the target's tensor: of the base's in place, or of a whole one by a copy of the values.
  /// For blocks, the units that change are compared with the base's before the first is written.
  ///
  /// Throws: what PatchRecord::apply() throws; Error kInvalidArgument if the tensor is removed, or
  ///   `tensor` has not the bytes of a whole one.
  void apply(std::span<std::byte> tensor, const PatchChecks& checks = {}) const;
  /// Compares the digest of the result with the target's.
  ///
  /// Throws: Error kInvalidPatch; what tensor_digest() throws.
  void check_target(const TensorData& result, const PatchChecks& checks = {}) const;

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

}  // namespace safetensors
