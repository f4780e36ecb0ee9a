// Writes the model that a patch makes of another one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>

#include "safetensors/buffer.hpp"
#include "safetensors/digest.hpp"
#include "safetensors/export.hpp"
#include "safetensors/model.hpp"
#include "safetensors/patch_file.hpp"

namespace safetensors {

/// What apply_patch() compares. docs/patches.md, "What is checked", says what it takes.
enum class PatchVerify : std::uint8_t {
  kBlocks,  ///< the units that change with the base's
  kFull,    ///< also digests of all tensors that change, before and after
  kWhole,   ///< also the digests of the whole model, before and after
};

/// Options of apply_patch().
struct ApplyPatchOptions {
  PatchVerify verify = PatchVerify::kFull;
  /// Flush the file and its directory entry to the disk before returning.
  bool fsync = false;
  /// Write the sums of the file, too, as SaveOptions::sums.
  bool sums = false;
  /// Needed where a digest is compared, if those of the patch are SHA-256.
  Sha256 sha256{};
  Interrupt interrupt{};
  /// As WriterOptions::progress.
  std::function<void(std::uint64_t done, std::uint64_t total)> progress{};
};

/// Writes the model that a patch makes of `base`, a model of one file: completely, or not at all.
/// `path` may be the base's own. The file has the bytes that Python's `apply_file` writes.
///
/// One tensor is in memory at a time. Tensors that the patch does not name are copied by the
/// system, and share their disk space with the base where the file system can do that; unless the
/// whole model is verified, which reads them.
///
/// Throws: Error kWrongBase if `base` is not the patch's base; kPatchApplied if it is its target;
///   kInvalidPatch; kInvalidArgument if `base` has several files, the digests are SHA-256 and
///   options.sha256 is needed and empty, or the path does not suit options.sums; what reading the
///   base and writing the file throw; what the callbacks throw.
SAFETENSORS_API void apply_patch(const PatchFile& patch, const Model& base,
                                 const std::filesystem::path& path,
                                 const ApplyPatchOptions& options = {});

}  // namespace safetensors
