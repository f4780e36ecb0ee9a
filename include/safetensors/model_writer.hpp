// Saving a model of several files, which replaces an older one as a whole. Not on Windows.
//
//     save_model("folder", tensors);
//
// docs/format.md, "Switch", describes the files that a save has in the folder, and their recovery.
#pragma once

#if !defined(_WIN32)

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "safetensors/buffer.hpp"
#include "safetensors/byte_sink.hpp"
#include "safetensors/export.hpp"
#include "safetensors/layout.hpp"
#include "safetensors/shard_plan.hpp"

namespace safetensors {

namespace detail {
class ModelParts;
}

/// Options of ModelWriter.
struct ModelWriterOptions {
  std::string name = "model";  ///< the first part of the files' names
  /// Return from commit() only when the model is on the disk. If a model is replaced, its files are
  /// flushed in any case.
  bool fsync = false;
  /// Called before each step. What it throws undoes the save or, once a file of the old model was
  /// replaced, leaves commit() when the new model is whole.
  Interrupt interrupt = {};
};

/// Writes the files of a model into a private folder, and then replaces the old model by them.
///
///     const ShardPlan plan = plan_shards(specs);
///     ModelWriter model("folder");
///     for (std::size_t i = 0; i < plan.shards.size(); ++i) {
///       FileWriter writer(model.make_shard(i + 1), plan_file(specs of plan.shards[i]));
///       ...
///       writer.commit();
///     }
///     model.commit(names of the tensors by file, plan.total_nbytes);
///
/// The destructor aborts a save that was not committed; in a forked child it does nothing.
///
/// Thread safety: one thread at a time calls members. The sinks may be used by any threads.
class SAFETENSORS_API ModelWriter {
 public:
  /// Recovers what an interrupted save has left, and reserves the folder for this save.
  ///
  /// folder: made if it does not exist; its parent must exist.
  /// Throws: Error kInvalidArgument if the name contains a separator, begins with a dot or is too
  ///   long, a folder that does not exist has the name of a file, or a switch of an earlier save
  ///   cannot be trusted; kIo, also if another process is saving to the folder; kNotRegularFile, or
  ///   what ShardIndex::read() throws, for the index of the old model.
  explicit ModelWriter(const std::filesystem::path& folder, ModelWriterOptions options = {});
  ModelWriter(ModelWriter&&) noexcept;
  ModelWriter& operator=(ModelWriter&&) noexcept;
  ~ModelWriter();

  /// Makes the file of a shard, from 1 on, with the rights that it keeps: those of the old model.
  ///
  /// before_commit: called with a path by which the complete file can be read.
  /// Throws: Error kInvalidArgument for a number of 0 or above kMaxShards; kIo, with EEXIST if it
  ///   was made before; kWriterClosed.
  /// Lifetime: the sink may outlive the writer, but must be committed before commit().
  [[nodiscard]] std::unique_ptr<ByteSink> make_shard(
      std::size_t number,
      const std::function<void(const std::filesystem::path&)>& before_commit = {});
  /// Adds a small file, such as config.json, that replaces one of this name together with the
  /// model.
  ///
  /// Throws: Error kInvalidArgument if the name is not that of a configuration, a tokenizer or a
  ///   licence; kIo; kWriterClosed.
  void add_companion(std::string_view name, std::span<const std::byte> bytes);
  /// Makes the files that were written the model, and returns their absolute paths.
  ///
  /// shards: the names of the tensors, by file: from 1 to kMaxShards files.
  /// total_nbytes: of all tensors.
  /// sums: the text of the sums (Sums::json()); empty for none. Old sums are removed.
  /// Called once.
  /// Throws: Error kDuplicateName if two tensors have the same name; kInvalidHeaderUtf8 for a name
  ///   that is not UTF-8; kInvalidArgument if a shard
  ///   was not made or its sink is not committed, or another program has changed the old model;
  ///   kIo; kWriterClosed; what the interrupt throws. After an exception,
  ///   * if is_committed() is false, the old model is whole, and abort() removes the rest;
  ///   * if is_committed() is true, the new model is whole, possibly without its sums;
  ///   * if it is kIncompleteModel, neither is: some files were renamed or removed, and the rest
  ///     could not be. recover() completes the save, unless another program has changed the model.
  std::vector<std::filesystem::path> commit(std::span<const std::vector<std::string_view>> shards,
                                            std::uint64_t total_nbytes, std::string_view sums = {});
  /// Returns whether a file has taken its place, which cannot be undone. In the interrupt of
  /// commit() it may still be false then.
  [[nodiscard]] bool is_committed() const noexcept;
  /// Removes everything that was written. Does nothing after commit() and in a forked child.
  ///
  /// Throws: Error kIo. Then it may be called again, or recover() removes the rest or, if commit()
  ///   had begun, completes the save.
  void abort();

 private:
  friend class detail::ModelParts;
  class State;
  std::unique_ptr<State> state_;
};

/// Options of save_model().
struct SaveModelOptions {
  std::uint64_t max_shard_nbytes = kDefaultShardSize;  ///< see plan_shards()
  std::string name = "model";                          ///< the first part of the files' names
  bool fsync = false;                                  ///< as in ModelWriterOptions
  /// Write the sums of the model, too: see docs/verify.md.
  bool sums = false;
  Interrupt interrupt = {};  ///< as in ModelWriterOptions; called during writes, too
  /// Called on the calling thread with the bytes of tensors that were written and of all tensors.
  /// In the last call they are equal, and the files do not have their names yet. What it throws
  /// undoes the save.
  std::function<void(std::uint64_t done, std::uint64_t total)> progress = {};
};

/// Saves a model to a folder: in one file, or in shards with an index. It replaces an older model
/// of the same name as a whole. Returns the absolute paths of the files, without the index.
///
/// folder: as for ModelWriter.
/// The tensors are divided in the order given. `metadata` is stored in each file.
/// Throws: what ModelWriter, plan_shards(), plan_layout(), `interrupt` and `progress` throw.
SAFETENSORS_API std::vector<std::filesystem::path> save_model(const std::filesystem::path& folder,
                                                              std::span<const TensorData> tensors,
                                                              const Metadata* metadata = nullptr,
                                                              const SaveModelOptions& options = {});

/// What a recovery did.
enum class Recovery : std::uint8_t {
  kClean,          ///< there was nothing to do
  kRolledBack,     ///< temporary files were removed
  kRolledForward,  ///< a new model has taken its place, or a change in place is complete
};

/// Completes or undoes saves of files and models, and changes in place, that a kill or a power
/// failure interrupted. The next save of the model, or change of the file, does this first, so a
/// program needs it only before it loads.
///
/// path: a file of the model, or a folder, all of whose models are recovered. What other users have
///   left in a folder, or made under such names, is left alone.
/// Throws: Error kIo, also if a process or another user is saving; kInvalidArgument if a process is
///   changing a file in place; this, kInvalidPatch or kNotRegularFile if a file that the recovery
///   would follow is another user's, is not a regular file, is damaged, or names other files, or if
///   `path` is a file that does not open although there was nothing to recover; kIo with ENOENT if
///   neither `path` nor another file of its model exists.
SAFETENSORS_API Recovery recover(const std::filesystem::path& path);

}  // namespace safetensors

#endif
