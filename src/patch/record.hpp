// A record that was checked.
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "patch/kernels.hpp"
#include "patch/row.hpp"
#include "patch/shape.hpp"
#include "safetensors/parallel.hpp"
#include "safetensors/patch.hpp"

namespace safetensors {

struct PatchRecord::State {
  /// A block that changes, and where its bytes are.
  struct Block {
    std::uint64_t index;
    std::uint64_t stream_at;
    std::uint64_t value_at;  // in units
    std::uint64_t first;     // how many units change in the blocks before it
    patch::Row row;
  };

  /// What the decoder of one block needs.
  struct Scratch {
    std::array<std::uint16_t, patch::kPositionRoom> at;
    std::array<std::byte, 8 * patch::kBlockUnits> units;
  };

  /// Checks everything. See PatchRecord's constructor.
  State(std::span<const std::byte> record, std::span<const std::byte> values, Dtype dtype,
        DigestAlgorithm algorithm, std::string label, const Interrupt& interrupt);

  [[noreturn]] void refuse(const std::string& reason) const;
  [[noreturn]] void refuse_block(const Block& block, const char* reason) const;
  /// Throws Error kInvalidArgument unless this is a record of blocks.
  void require_blocks() const;
  /// Throws Error kWrongBase unless the tensor has the size of the base's.
  void require_size(std::span<const std::byte> tensor) const;

  /// Returns how many units the block has.
  [[nodiscard]] std::size_t units_of(const Block& block) const noexcept;
  /// Returns which units of the tensor are the block's, as a text: with their elements.
  [[nodiscard]] std::string text_of(const Block& block) const;
  /// Returns the bytes of the tensor that are the block's.
  template <typename Byte>
  [[nodiscard]] std::span<Byte> bytes_of(const Block& block,
                                         std::span<Byte> tensor) const noexcept {
    return tensor.subspan(static_cast<std::size_t>(block.index) * patch::kBlockUnits * unit,
                          units_of(block) * unit);
  }
  /// Returns the signed bytes of a block.
  [[nodiscard]] std::span<const std::byte> steps_of(const Block& block) const noexcept;
  /// Returns the units that the values have for a block.
  [[nodiscard]] std::span<const std::byte> stored_of(const Block& block) const noexcept;

  /// Writes the block's positions to `at`. Throws Error kInvalidPatch if they are not valid.
  void read_positions(const Block& block, std::uint16_t* at) const;
  /// Makes new units of the base's, which `scratch` has. Throws likewise.
  void add_steps(const Block& block, Scratch& scratch) const;

  /// Runs `task(block, scratch)` for all blocks that change, by several threads if they are many.
  /// Takes the memory that it needs before the first task: what writes to a tensor does not stop
  /// half-way because there is no more.
  template <typename Task>
  void for_each_block(const Interrupt& interrupt, const Task& task) const {
    const std::size_t step = patch::blocks_per_task(unit);
    const auto reserve = std::make_unique_for_overwrite<Scratch>();
    std::mutex mutex;  // of the reserve
    parallel_for((blocks.size() + step - 1) / step,
                 blocks.size() * std::uint64_t{patch::kBlockUnits} * unit,
                 [&](std::size_t number) {
                   std::unique_ptr<Scratch> own;
                   std::unique_lock lock(mutex, std::try_to_lock);
                   if (!lock) own.reset(new (std::nothrow) Scratch);
                   if (!lock && !own) lock.lock();
                   Scratch& scratch = own ? *own : *reserve;
                   const std::size_t end = std::min(blocks.size(), (number + 1) * step);
                   for (std::size_t i = number * step; i < end; ++i) task(blocks[i], scratch);
                 },
                 interrupt);
  }

  /// Returns the first block of which the tensor has other units than the base.
  [[nodiscard]] const Block* first_other(std::span<const std::byte> tensor,
                                         const Interrupt& interrupt) const;
  /// Returns whether the tensor is the target's.
  [[nodiscard]] bool is_applied(std::span<const std::byte> tensor, const Hash& hash,
                                const Interrupt& interrupt) const;

  std::span<const std::byte> stream;
  std::span<const std::byte> values;
  std::string label;
  std::vector<std::uint64_t> shape;
  std::vector<Block> blocks;  // those that change
  std::optional<Digest> base;
  std::optional<Digest> target;
  std::uint64_t units = 0;
  std::uint64_t changed = 0;
  PatchCodes codes;
  Dtype dtype;
  PatchKind kind = PatchKind::kRemoved;
  std::size_t unit = 0;
  unsigned element_bits = 0;
  const patch::Kernels& kernels = patch::best_kernels();

 private:
  void read_digests(std::span<const std::byte> record, DigestAlgorithm algorithm);
  std::span<const std::byte> read_shape(std::span<const std::byte> record);
  void read_rows(std::span<const std::byte> record, std::span<const std::byte> rest);
  void check_blocks(const Interrupt& interrupt) const;
};

}  // namespace safetensors
