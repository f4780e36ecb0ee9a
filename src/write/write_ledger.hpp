// Which bytes of a file's tensors were written.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "safetensors/layout.hpp"
#include "safetensors/writer.hpp"

namespace safetensors {

/// The tensors of a file that FileWriter writes: where they are, and how much of each was written.
///
/// Thread safety: only nbytes_written() may be called while another thread changes the ledger.
class WriteLedger {
 public:
  /// Throws: Error kInvalidArgument unless plan_file() or plan_layout() made the plan.
  explicit WriteLedger(LayoutPlan plan);
  /// For tensors that are added, the first one at offset `begin`.
  WriteLedger(const Metadata* metadata, std::uint64_t begin);

  /// Returns whether the tensors are added: their plan then has no prologue.
  [[nodiscard]] bool is_added() const noexcept { return added_ != nullptr; }
  [[nodiscard]] const LayoutPlan& plan() const noexcept { return plan_; }
  /// Returns the size of a tensor that may be added.
  /// Throws: Error kWrittenTwice (the name), kOverflow, and what plan_file throws.
  [[nodiscard]] std::uint64_t check_add(const TensorSpec& spec) const;
  /// Adds a tensor after the others, and returns its index. If it throws, which only a lack of
  /// memory causes, the ledger must not be used any more.
  /// Requires: check_add(), which returned `nbytes`.
  std::size_t add(const TensorSpec& spec, std::uint64_t nbytes);
  /// Returns the prologue of the tensors that were added, padded to `room` bytes, or to more whole
  /// blocks if it is longer.
  /// Throws: Error kHeaderTooLarge.
  [[nodiscard]] std::string prologue_of_added(std::uint64_t room) const;

  /// Throws: Error kInvalidArgument if there is no such tensor.
  [[nodiscard]] const TensorPlace& place(std::size_t tensor) const;
  /// Returns the name of a tensor, for errors: reads the header.
  [[nodiscard]] std::string name(std::size_t tensor) const;
  /// Returns the tensor with the byte at this offset of the file.
  /// Requires: the offset is in the data section.
  [[nodiscard]] std::size_t tensor_at(std::uint64_t offset) const;

  /// Throws: Error kInvalidArgument unless a source of this size has the tensor's bytes at `begin`.
  void check_source(std::size_t tensor, std::uint64_t begin, std::uint64_t source_nbytes) const;
  /// Adjacent tensors of a source that are adjacent in the file, too.
  struct Run {
    std::uint64_t from;
    std::uint64_t nbytes;
    std::uint64_t to;
  };
  [[nodiscard]] std::vector<Run> runs_of(std::span<const TensorCopy> tensors) const;

  /// Throws: Error kWrittenTwice unless so many bytes of the tensor may still be written.
  void check_free(std::size_t tensor, std::uint64_t nbytes, bool is_whole) const;
  /// Marks bytes of a tensor as written. Requires: check_free().
  void mark(std::size_t tensor, std::uint64_t nbytes);
  /// Marks all of these tensors as written, or none if check_free() throws for one of them.
  void mark_all(std::span<const std::size_t> tensors);
  /// Returns the tensors that are not completely written, in file order.
  [[nodiscard]] std::vector<std::size_t> missing() const;
  /// Throws: Error kMissingTensors, with the names of up to five of the missing tensors.
  [[noreturn]] void fail_missing(std::span<const std::size_t> missing) const;
  /// Throws: Error kMissingTensors, for the byte at this offset, which overlapping parts left out.
  [[noreturn]] void fail_overlap(std::uint64_t offset) const;
  [[nodiscard]] std::uint64_t nbytes_written() const noexcept { return nbytes_written_.load(); }

 private:
  struct Added {
    struct Tensor {
      std::string name;
      std::vector<std::uint64_t> shape;
      Dtype dtype;
    };
    std::optional<Metadata> metadata;
    std::vector<Tensor> tensors;
    std::unordered_set<std::string> names;
  };

  LayoutPlan plan_;
  std::unique_ptr<Added> added_;
  std::vector<std::uint64_t> written_;  // bytes of each tensor
  std::vector<bool> is_begun_;
  std::atomic<std::uint64_t> nbytes_written_ = 0;
};

/// Returns WriterOptions::header_room as whole blocks. Throws: Error kHeaderTooLarge.
[[nodiscard]] std::uint64_t header_room(std::uint64_t nbytes);

/// Returns how errors name a tensor.
[[nodiscard]] std::string quoted_tensor(const std::string& name);

}  // namespace safetensors
