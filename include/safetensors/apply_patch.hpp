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
  /// Flush the files and their directory entries to the disk before returning.
  bool fsync = false;
  /// Write the sums, too, as SaveOptions::sums and SaveModelOptions::sums.
  bool sums = false;
  /// Needed where a digest is compared, if those of the patch are SHA-256.
  Sha256 sha256{};
  Interrupt interrupt{};
  /// As WriterOptions::progress; for a folder, as SaveModelOptions::progress.
  std::function<void(std::uint64_t done, std::uint64_t total)> progress{};
};

/// Writes the model that a patch makes of `base`: completely, or not at all. `path` may be the
/// base's own. The files have the names and the bytes that Python's `apply_file` gives them.
///
/// A base of one file becomes a file at `path`; or the file of a model in a folder, if `path` is
/// one or ends with a separator. A base of several files becomes as many in a folder, with an
/// index, as ModelWriter makes and replaces them: not on Windows. New tensors are added to the last
/// one. Each file keeps its metadata; a file that no index leads to gets the patch's, if it has
/// any.
///
/// One tensor is in memory at a time. Tensors that the patch does not name are copied by the
/// system, and share their disk space with the base where the file system can do that; unless the
/// whole model is verified, which reads them.
///
/// Throws: Error kWrongBase if `base` is not the patch's base; kPatchApplied if it is its target;
///   kInvalidPatch; kInvalidArgument if `base` has several files and `path` ends with .safetensors,
///   the digests are SHA-256 and options.sha256 is needed and empty, or the path does not suit
///   options.sums; kSeveralModels if another model is in the folder; what reading the base,
///   writing the file and ModelWriter throw; what the callbacks throw.
SAFETENSORS_API void apply_patch(const PatchFile& patch, const Model& base,
                                 const std::filesystem::path& path,
                                 const ApplyPatchOptions& options = {});

}  // namespace safetensors
