// Which files of a folder are the model.
//
//   const FoundModel model = safetensors::find_model_files("folder");
//   for (std::size_t i = 0; i < model.files.size(); ++i) use(model.path(i));
//
// docs/loading.md has the rule in full. In short, a folder's model is `model`, else
// `diffusion_pytorch_model`, else the only one; of its variants the one without a suffix; and of
// its forms an index or a single file, never both.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "safetensors/byte_source.hpp"
#include "safetensors/export.hpp"
#include "safetensors/shard_index.hpp"
#include "safetensors/temporary.hpp"

namespace safetensors {

/// What the name of a file says about a model. Views point into the name.
struct ModelFileName {
  enum class Kind : std::uint8_t {
    kOther,   ///< neither safetensors nor an index
    kSingle,  ///< NAME.safetensors
    kIndex,   ///< NAME.safetensors.index.json, NAME.safetensors.index.VARIANT.json or
              ///< NAME.safetensors.VARIANT.index.json
    kShard,   ///< NAME-I-of-N.safetensors or NAME-I-of-N.VARIANT.safetensors
    kRank,    ///< shard-R-NAME-I-of-N.safetensors: what rank R of a program saved
    kPart,    ///< weights.I.safetensors, from 0 on: what older versions of mlx saved
  };
  Kind kind = Kind::kOther;
  std::string_view name{};
  /// Empty if the name has none in a place of its own. "model.fp16" is a name here: only the other
  /// files of a folder tell whether "fp16" is a variant of "model".
  std::string_view variant{};
  std::size_t number = 0;  ///< of a shard or a part
  std::size_t total = 0;   ///< of a shard
};

/// Takes the name of a file apart, which has no folder in it.
///
/// Safe for untrusted input. Throws: nothing.
[[nodiscard]] SAFETENSORS_API ModelFileName parse_model_file_name(std::string_view file);
template <Temporary File>
ModelFileName parse_model_file_name(File&&) = delete;

/// What a caller chooses in a folder. Where a member is empty, the rule chooses.
struct ModelChoice {
  std::string name{};     ///< what the names of the files begin with: "model", "consolidated"
  std::string variant{};  ///< such as "fp16", of model.fp16.safetensors
};

/// How the files of a model belong together.
enum class ModelForm : std::uint8_t {
  kFile,    ///< one file
  kIndex,   ///< the files that an index names
  kShards,  ///< NAME-00001-of-0000N.safetensors without an index
  kRanks,   ///< shard-RRRRR-NAME-00001-of-0000N.safetensors: each rank saved its parts of tensors
  kParts,   ///< weights.00.safetensors and so on, of older versions of mlx
};

/// The files of one model.
struct ModelFiles {
  std::string name{};
  std::string variant{};  ///< empty for the plain files
  ModelForm form = ModelForm::kFile;
  std::string index{};               ///< the name of the index; empty for the other forms
  std::vector<std::string> files{};  ///< relative to the folder, in order
  /// Sentences about files that have the model's name and are left out, such as an old index.
  std::vector<std::string> remarks{};
  std::vector<std::string> others{};  ///< the other .safetensors files of the folder, sorted
};

/// What choose_model_files() asks about a folder, beside the names in it. Either function may
/// throw; its exception leaves choose_model_files().
struct FolderQuestions {
  /// Returns the distinct files that an index names. Called at most once.
  std::function<std::vector<std::string>(const std::string& index)> files_of_index{};
  /// Returns whether a file exists: one that an index names, or the target of a link. Called only
  /// if a folder has both an index and a single file.
  std::function<bool(const std::string& file)> exists{};
};

/// Chooses the files of the model among the names in a folder: of files and links, not of folders.
/// If a folder cannot be listed, `names` are those of model_probes() that exist.
///
/// Neither the order of the names matters, nor names that begin with a dot.
///
/// Safe for untrusted input. Takes time in proportion to n log n.
/// Throws: Error kNoModel if there is no such model; kSeveralModels if more than one set of files
///   may be the model; kIncompleteModel if a file of a numbered set is absent. Their texts name
///   at most four files or sets.
[[nodiscard]] SAFETENSORS_API ModelFiles choose_model_files(std::vector<std::string> names,
                                                            const ModelChoice& choice,
                                                            const FolderQuestions& questions);

/// Returns the names of the files that a folder which cannot be listed is asked for, in pairs: an
/// index, and the single file. A pair matters only if no file of those before it exists.
[[nodiscard]] SAFETENSORS_API std::vector<std::string> model_probes(const ModelChoice& choice);

/// A model in a folder.
struct FoundModel : ModelFiles {
  std::filesystem::path folder{};
  std::optional<ShardIndex> content{};  ///< of the index

  /// Returns the path of a file, by its position in `files`.
  [[nodiscard]] SAFETENSORS_API std::filesystem::path path(std::size_t file) const;
  /// Call after files of the model were opened: then they are all of the model that was found. A
  /// save removes the index before it changes any file. Model does so itself.
  ///
  /// Throws: Error kFileChanged if the index has been replaced, removed or changed since it was
  ///   read. Nothing for a model without an index, or with one that was not read from a path.
  SAFETENSORS_API void check_index() const;
};

/// Finds the model that a path leads to: a folder; an index, whose name ends with ".json"; or a
/// file, which is then the only one. A choice is for folders.
///
/// names: those among which the model of a folder is chosen, for a folder that lacks some of its
///   files, such as a cache of downloads.
/// Throws: what choose_model_files() and ShardIndex::read() throw, where kNoModel names the folders
///   below that have a model; Error kIncompleteModel also while the files of a save are taking
///   their places; kIo if the folder cannot be read; kInvalidArgument for a choice without a
///   folder.
[[nodiscard]] SAFETENSORS_API FoundModel
find_model_files(const std::filesystem::path& path, const ModelChoice& choice = {},
                 const std::optional<std::vector<std::string>>& names = {});

/// A folder whose files the program opens itself, such as one of an archive, of a server, or in
/// memory.
struct ModelSource {
  /// Opens the file with a name, which is one of `names` or a file of an index. May be called by
  /// several threads at once, and again for a file that it could not open.
  ///
  /// Throws: Error whose os_error() is ENOENT if there is no such file. Functions that take a
  ///   ModelSource throw whatever it throws, and name the file in an Error that names none.
  using Open = std::function<std::shared_ptr<const ByteSource>(const std::string& name)>;

  std::filesystem::path folder{};  ///< what paths and errors call it; may be empty
  /// The names of the files, in any order. Names with a "/" are in folders below, where only an
  /// index leads; those of files to which an index leads may be absent.
  std::vector<std::string> names{};
  Open open{};

  /// Returns the path that errors have for a file.
  [[nodiscard]] SAFETENSORS_API std::filesystem::path path(const std::string& name) const;
  /// Opens the file that has this path().
  ///
  /// Throws: what `open` throws; Error kInvalidArgument if it is empty, or returns nullptr.
  [[nodiscard]] SAFETENSORS_API std::shared_ptr<const ByteSource> open_file(
      const std::filesystem::path& path) const;
};

/// Finds the model of a folder whose files the program opens, by the same rule. Opens its index
/// only, if there is one.
///
/// Throws: what choose_model_files() throws, naming the folder; what ModelSource::open_file() and
///   ShardIndex::read() throw.
[[nodiscard]] SAFETENSORS_API FoundModel find_model_files(const ModelSource& source,
                                                          const ModelChoice& choice = {});

}  // namespace safetensors
