// What a patch makes of a model, file by file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "safetensors/apply_patch.hpp"
#include "safetensors/detail/write_sums.hpp"
#include "safetensors/writer.hpp"

namespace safetensors {

/// Which tensors each file of the output has, and how they are made. The output has as many files
/// as the base; new tensors go to the last one.
class PatchApplication {
 public:
  /// Checks all of the patch, before anything is written.
  PatchApplication(const PatchFile& patch, const Model& base, const ApplyPatchOptions& options);
  PatchApplication(const PatchApplication&) = delete;
  PatchApplication& operator=(const PatchApplication&) = delete;
  ~PatchApplication() = default;

  [[nodiscard]] std::size_t file_count() const noexcept { return files_.size(); }
  [[nodiscard]] LayoutPlan plan(std::size_t file) const;
  /// Returns the names of a file's tensors: in the order of the base's bytes, then new ones. Valid
  /// while the patch and the base live.
  [[nodiscard]] std::vector<std::string_view> names(std::size_t file) const;

  /// Writes the file of plan(file). Called once for each file, in their order. `sums` hashes what
  /// is not copied.
  void write(std::size_t file, FileWriter& writer, detail::WriteSums& sums);
  /// Makes the checks that need all tensors. Called before the output takes its name.
  void finish();

 private:
  /// The digests of a model's tensors, by name.
  using ModelDigests = std::map<std::string, Digest, std::less<>>;

  /// A tensor of the output.
  struct Target {
    std::string_view name;
    Dtype dtype;
    std::vector<std::uint64_t> shape;
  };
  struct File {
    std::vector<ModelTensor> tensors;  // of the base, in the order of their bytes
    std::vector<Target> targets;
    std::map<std::string_view, std::size_t> numbers;  // in targets, by name
  };

  void read_base();
  void read_patch();
  static void add_target(File& file, const TensorInfo& info);
  /// A file of a model of several files, or of an index, keeps its own metadata.
  [[nodiscard]] std::optional<Metadata> metadata_of(std::size_t file) const;

  /// Writes bytes while they are hashed.
  static void put(FileWriter& writer, detail::WriteSums& sums, std::size_t number,
                  std::span<const std::byte> bytes);
  void write_unchanged(std::size_t file, FileWriter& writer, detail::WriteSums& sums);
  /// `old` is nullptr if the base has no such tensor.
  void write_changed(const File& file, std::string_view name, const ModelTensor* old,
                     FileWriter& writer, detail::WriteSums& sums);
  /// Notices that the patch has been applied already, or to a part of the tensors.
  void check_order(const PatchChange& change, PatchState state);

  [[nodiscard]] Digest whole_of(const ModelDigests& digests) const;
  [[nodiscard]] Buffer read(const ModelTensor& tensor) const;
  [[nodiscard]] Digest digest_of(const TensorInfo& info, std::span<const std::byte> bytes) const;

  const PatchFile& patch_;
  const Model& base_;
  const ApplyPatchOptions& options_;
  PatchChecks checks_;
  std::vector<File> files_;
  ModelDigests before_;  // of the tensors that were read
  ModelDigests after_;
  std::optional<std::string> first_;  // the first tensor that changes
};

#if !defined(_WIN32)
/// Writes the output to a folder: the files of a model, which it replaces as a whole.
///
/// Throws: as apply_patch().
void apply_patch_to_folder(const PatchFile& patch, const Model& base,
                           const std::filesystem::path& folder, const ApplyPatchOptions& options);
#endif

}  // namespace safetensors
