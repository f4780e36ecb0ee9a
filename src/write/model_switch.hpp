// The switch: replaces the files of a model by others as a whole (docs/format.md, "Switch").
#pragma once

#include <atomic>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/posix/held_file.hpp"
#include "safetensors/buffer.hpp"
#include "safetensors/detail/folder.hpp"
#include "write/switch_record.hpp"

namespace safetensors {

/// The private folder of a save, whose switch is locked until commit() or abort().
class ModelSwitch {
 public:
  /// Makes both.
  ///
  /// interrupt: called when the folder was made, before the switch is.
  /// Throws: Error kIo if another process, or another user, is saving a model with this name.
  ModelSwitch(detail::Folder folder, std::string name, const Interrupt& interrupt);

  /// Returns the private folder, and its name in its parent.
  [[nodiscard]] const detail::OwnPlace& parts() const noexcept { return parts_; }
  /// Returns whether neither commit() nor abort() has ended the save.
  [[nodiscard]] bool is_open() const noexcept { return file_ && !is_committed_; }
  /// Returns whether a file has taken its place, so that only the new model can become whole.
  [[nodiscard]] bool is_committed() const noexcept { return is_committed_; }

  /// Throws: Error kInvalidArgument unless the files of all shards were made and are complete;
  ///   kIo.
  void check_shards(std::size_t shards) const;

  /// Makes the parts the model.
  ///
  /// shards: how many there are.
  /// fsync: whether to flush all files, also if none is replaced.
  /// companions: the names of small files that are replaced, too.
  /// interrupt: called before each step. What it throws before is_committed() leaves the old model
  ///   whole; later, it is thrown when the new one is whole.
  /// Requires: check_shards(), and the index is there if there are several.
  /// Throws: Error kIo; kInvalidArgument if another program has changed the old model;
  ///   kIncompleteModel if is_committed(), but the rest failed.
  void commit(std::size_t shards, bool fsync, std::vector<std::string> companions,
              const Interrupt& interrupt);
  /// Removes the parts. Returns false if there is nothing to undo, or no way. May be called again
  /// when it has thrown.
  ///
  /// Throws: Error kIo, also if another process recovers what an earlier call has left.
  bool abort();

 private:
  [[nodiscard]] io::HeldFile make();
  [[nodiscard]] bool has_others() const;
  void check_places(const FileIdentities& old, const std::vector<std::string>& targets,
                    const std::vector<std::string>& companions) const;
  void flush_parts(std::size_t shards, bool has_sums, const std::vector<std::string>& companions,
                   const Interrupt& interrupt) const;
  void fill(std::string_view text) const;
  void take_places(const SwitchRecord& record, bool durable, const Interrupt& interrupt);
  /// Returns whether no file was removed or renamed: the old index is the first. Another program
  /// may have changed the old files, which is why the save is refused.
  [[nodiscard]] bool is_untouched(const SwitchRecord& record) const;

  detail::Folder folder_;
  std::string name_;
  detail::OwnPlace parts_;
  std::optional<io::HeldFile> file_;    // the switch; nothing after commit() and abort()
  std::optional<SwitchRecord> record_;  // when the switch is complete
  bool is_durable_ = false;             // the switch is flushed
  bool is_left_ = false;                // abort() has failed
  std::atomic<bool> is_committed_ = false;
};

}  // namespace safetensors
