// What changed between two states of a tensor: the record and the values that a patch file has for
// it (docs/patches.md). patch_file.hpp reads files of patches; the Python package writes them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "safetensors/buffer.hpp"
#include "safetensors/digest.hpp"
#include "safetensors/dtype.hpp"
#include "safetensors/export.hpp"
#include "safetensors/temporary.hpp"

namespace safetensors {

/// What a record says about its tensor.
enum class PatchKind : std::uint8_t {
  kRemoved,  ///< the target has no such tensor
  kWhole,    ///< the values are the target's tensor
  kBlocks,   ///< some of the base's units change; dtype and shape stay
};

/// Returns "removed", "whole" or "blocks"; empty for a value that is none of the enumerators.
[[nodiscard]] SAFETENSORS_API std::string_view name(PatchKind kind) noexcept;

struct PatchOptions {
  /// Stores new units only, no differences: for receivers that do not have the base.
  bool set_values = false;
  /// The digests of both tensors, of one algorithm. A digest that is not given is computed by
  /// TensorHasher.
  std::optional<Digest> base{};
  std::optional<Digest> target{};
};

/// A record and its values, as a patch file holds them.
struct EncodedPatch {
  std::vector<std::byte> record;
  std::vector<std::byte> values;
  /// How many units the record lists. A block most of which changes lists all of its units.
  std::uint64_t changed = 0;
  /// The digests in the record; none if the tensors are equal.
  std::optional<Digest> base{};
  std::optional<Digest> target{};
};

/// Returns the record that makes `target` of `base`, two tensors of one dtype and shape. If they
/// are equal, everything is empty and 0. The same arguments give the same bytes.
///
/// Large tensors are compared by several threads.
///
/// Throws: Error kInvalidArgument if the tensors do not have the size of the dtype and shape, or if
///   the digests are of two algorithms; what `interrupt` throws.
[[nodiscard]] SAFETENSORS_API EncodedPatch encode_patch(Dtype dtype,
                                                        std::span<const std::uint64_t> shape,
                                                        std::span<const std::byte> base,
                                                        std::span<const std::byte> target,
                                                        const PatchOptions& options = {},
                                                        const Interrupt& interrupt = {});

/// Returns the record of a tensor that the target has as a whole; its values are the tensor.
/// `options.base` is the digest of the base's tensor of this name, if there is one.
///
/// Throws: as encode_patch().
[[nodiscard]] SAFETENSORS_API std::vector<std::byte> whole_patch(
    Dtype dtype, std::span<const std::uint64_t> shape, std::span<const std::byte> target,
    const PatchOptions& options = {});

/// Returns the record of a tensor that the target does not have. It has no values.
[[nodiscard]] SAFETENSORS_API std::vector<std::byte> removed_patch(const Digest& base);

/// In which state a tensor is that a patch may be applied to.
enum class PatchState : std::uint8_t {
  kBase,     ///< it has the base's units wherever the patch changes them
  kApplied,  ///< it has the target's units already
};

/// How many blocks of a record use each code of positions, and how many of these each of values.
struct PatchCodes {
  std::uint64_t same = 0;  ///< blocks that do not change
  std::uint64_t gap8 = 0;
  std::uint64_t pos16 = 0;
  std::uint64_t bitmap = 0;
  std::uint64_t runs = 0;
  std::uint64_t set = 0;
  std::uint64_t add8 = 0;
};

/// A record and its values, which are valid as a whole: the constructor checks every byte.
///
/// Thread safety: several threads may use one record at a time, on different tensors.
/// Lifetime: the bytes of record and values belong to the caller, who keeps them, unchanged, while
///   the object lives.
class SAFETENSORS_API PatchRecord {
 public:
  /// Computes the digest of a tensor by the algorithm of the patch.
  using Hash = std::function<Digest()>;

  /// `dtype` is that of the values' entry: U8 in a record of blocks of a sub-byte type. `label`
  /// names the tensor in errors.
  ///
  /// Memory and time depend on the bytes that are passed, and not on what they say.
  ///
  /// Throws: Error kInvalidPatch unless all is valid; what `interrupt` throws.
  PatchRecord(std::span<const std::byte> record, std::span<const std::byte> values, Dtype dtype,
              DigestAlgorithm algorithm, std::string label = {}, const Interrupt& interrupt = {});
  template <Temporary Record, typename Values, typename... Others>
  PatchRecord(Record&&, Values&&, Others&&...) = delete;
  template <Temporary Values, typename... Others>
  PatchRecord(std::span<const std::byte>, Values&&, Others&&...) = delete;

  [[nodiscard]] PatchKind kind() const noexcept;
  /// Returns the digest of the base's tensor; nothing if the base has none of this name.
  [[nodiscard]] const std::optional<Digest>& base() const& noexcept;
  /// Returns the digest of the target's tensor; nothing for kRemoved.
  [[nodiscard]] const std::optional<Digest>& target() const& noexcept;

  // For kBlocks; otherwise empty and 0.

  [[nodiscard]] std::span<const std::uint64_t> shape() const& noexcept;
  /// Returns the bytes of a unit, which change together: 1, 2, 4 or 8.
  [[nodiscard]] std::size_t unit() const noexcept;
  /// Returns how many units the tensor has: its elements, or the bytes of a sub-byte type.
  [[nodiscard]] std::uint64_t units() const noexcept;
  /// Returns how many units the record lists.
  [[nodiscard]] std::uint64_t changed() const noexcept;
  [[nodiscard]] const PatchCodes& codes() const& noexcept;

  /// Compares the units that change with the base's. Reads only these, unless they differ.
  ///
  /// If they differ and the record has differences (add8), the tensor's digest says whether it is
  /// the target. `hash` computes it if the algorithm is not XXH3-128; without `hash`, the tensor
  /// is another one.
  ///
  /// Throws: Error kWrongBase, which names the first block that is neither, and its elements; Error
  ///   kInvalidArgument unless kBlocks; what `interrupt` and `hash` throw.
  [[nodiscard]] PatchState check(std::span<const std::byte> tensor, const Hash& hash = {},
                                 const Interrupt& interrupt = {}) const;

  /// Changes the tensor from the base's to the target's. All blocks are checked before the first is
  /// written, so an error leaves the tensor as it was.
  ///
  /// Throws: Error kPatchApplied if it is the target's already; otherwise as check().
  void apply(std::span<std::byte> tensor, const Hash& hash = {},
             const Interrupt& interrupt = {}) const;

  /// Writes the new units, whatever the tensor has in their places: doing it twice, or on a tensor
  /// that was changed in part, gives the same.
  ///
  /// Throws: Error kInvalidArgument unless kBlocks, or if a block has the code add8; kWrongBase if
  ///   the tensor has another size.
  void overwrite(std::span<std::byte> tensor) const;

  /// Writes the numbers of the units that change, ascending.
  /// Throws: Error kInvalidArgument unless kBlocks and `to` has changed() of them.
  void positions(std::span<std::int64_t> to) const;

  /// Writes the new units at these positions. `base` is the base's tensor; it may be empty if no
  /// block has the code add8.
  ///
  /// Throws: Error kInvalidArgument unless kBlocks and `to` has the size of changed() units, or if
  ///   `base` is needed and missing; kWrongBase or kPatchApplied as apply().
  void new_units(std::span<const std::byte> base, std::span<std::byte> to) const;

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

}  // namespace safetensors
