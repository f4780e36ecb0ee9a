// Patch files: what changed between two states of a model (docs/patches.md).
//
//   const PatchFile patch = safetensors::open_patch("step1.safetensors-patch");
//   for (std::size_t i = 0; i < patch.size(); ++i) show(patch.change(patch.name(i)));
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
#include "safetensors/patch_change.hpp"
#include "safetensors/safe_open.hpp"

namespace safetensors {

/// A patch file, open for reading. Cheap to copy: copies share the file.
///
/// Safe for untrusted input, as SafeOpen is.
/// Thread safety: immutable; all members may be called from many threads at once.
/// Lifetime: PatchChanges outlive it. A moved-from PatchFile may only be destroyed or assigned to.
class SAFETENSORS_API PatchFile {
 public:
  /// Takes an open file, and checks its metadata and the names of its entries. A record is checked
  /// when change() reads it, so that this takes no longer than opening the file. The file is of a
  /// path, of memory or of any ByteSource. One that another process may change while it is used
  /// needs Backend::kPread, as open_patch() opens it.
  ///
  /// Throws: Error kInvalidPatch if it is not a patch, or of another version.
  explicit PatchFile(const SafeOpen& file);

  [[nodiscard]] const std::filesystem::path& path() const& noexcept;
  const std::filesystem::path& path() const&& = delete;
  /// Returns the digest of the model before.
  [[nodiscard]] const Digest& base() const& noexcept;
  const Digest& base() const&& = delete;
  /// Returns the digest of the model after.
  [[nodiscard]] const Digest& target() const& noexcept;
  const Digest& target() const&& = delete;
  /// Returns the algorithm of all digests of the file.
  [[nodiscard]] DigestAlgorithm algorithm() const noexcept;
  /// Returns the name of the state before, if it has one.
  [[nodiscard]] std::optional<std::string_view> base_label() const& noexcept;
  std::optional<std::string_view> base_label() const&& = delete;
  /// Returns the name of the state after, if it has one.
  [[nodiscard]] std::optional<std::string_view> target_label() const& noexcept;
  std::optional<std::string_view> target_label() const&& = delete;
  /// Returns the metadata of the target's file, if the patch has it.
  [[nodiscard]] const std::optional<Metadata>& metadata() const& noexcept;
  const std::optional<Metadata>& metadata() const&& = delete;

  /// Returns the number of tensors that are not as before. They are numbered in the order of their
  /// names, by bytes.
  [[nodiscard]] std::size_t size() const noexcept;
  /// Returns the name of a tensor. Requires: tensor < size().
  [[nodiscard]] std::string_view name(std::size_t tensor) const& noexcept;
  std::string_view name(std::size_t tensor) const&& = delete;
  [[nodiscard]] bool contains(std::string_view name) const noexcept;
  /// Reads what the patch says about a tensor. Throws: what PatchChange's constructor throws.
  [[nodiscard]] PatchChange change(std::string_view name, const Interrupt& interrupt = {}) const;

  /// Changes one tensor in memory from the base's to the target's: `bytes`, of this dtype and
  /// shape. If it throws, they are as they were.
  ///
  /// A tensor of kind kWhole gets the values of the file; PatchChange::check() compares the one
  /// that it replaces. With checks.digests, the change is made on a copy first.
  ///
  /// Throws: Error kWrongBase, also if the target's tensor has another dtype or shape;
  ///   kPatchApplied if it is the target's already; kInvalidPatch; kInvalidArgument if the patch
  ///   removes the tensor; what change() and PatchChange::check() throw.
  void apply(std::string_view name, Dtype dtype, std::span<const std::uint64_t> shape,
             std::span<std::byte> bytes, const PatchChecks& checks = {}) const;

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

/// Opens a patch file by its path, to be read and not mapped.
///
/// Throws: what SafeOpen's and PatchFile's constructors throw.
[[nodiscard]] SAFETENSORS_API PatchFile open_patch(const std::filesystem::path& path);

}  // namespace safetensors
