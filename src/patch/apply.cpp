// Applies records, and looks whether they can be applied.
#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/text.hpp"
#include "patch/record.hpp"
#include "safetensors/error.hpp"

namespace safetensors {

using patch::ValueCode;

using Bytes = std::span<const std::byte>;

void PatchRecord::State::add_steps(const Block& block, Scratch& scratch) const {
  const Bytes stored = stored_of(block);
  const std::size_t used =
      kernels.of_unit(unit).add(scratch.units.data(), steps_of(block).data(), block.row.count(),
                                stored.data(), stored.size() / unit);
  if (used != block.row.wide) refuse_block(block, "it was changed after it was checked");
}

void PatchRecord::State::require_size(Bytes tensor) const {
  if (tensor.size() % unit == 0 && tensor.size() / unit == units) return;
  fail(ErrorCode::kWrongBase,
       "tensor `" + clipped(label) + "` has " + grouped(tensor.size()) +
           " bytes, the patch is for " + grouped(units) + " units of " + std::to_string(unit),
       {.subject = label});
}

const PatchRecord::State::Block* PatchRecord::State::first_other(Bytes tensor,
                                                                 const Interrupt& interrupt) const {
  std::atomic<const Block*> found{nullptr};
  for_each_block(interrupt, [&](const Block& block, Scratch& scratch) {
    const Block* const other = found;
    if (other != nullptr && other < &block) return;
    read_positions(block, scratch.at.data());
    const std::size_t count = block.row.count();
    kernels.of_unit(unit).gather(bytes_of(block, tensor).data(), scratch.at.data(), count,
                                 scratch.units.data());
    if (kernels.xxh3_64(scratch.units.data(), count * unit) == block.row.check) return;
    const Block* before = found;
    while ((before == nullptr || &block < before) && !found.compare_exchange_weak(before, &block)) {
    }
  });
  return found;
}

bool PatchRecord::State::is_applied(Bytes tensor, const Hash& hash,
                                    const Interrupt& interrupt) const {
  if (codes.add8 == 0) {
    std::atomic<bool> is_equal = true;
    for_each_block(interrupt, [&](const Block& block, Scratch& scratch) {
      if (!is_equal) return;
      read_positions(block, scratch.at.data());
      kernels.of_unit(unit).gather(bytes_of(block, tensor).data(), scratch.at.data(),
                                   block.row.count(), scratch.units.data());
      const Bytes stored = stored_of(block);
      if (std::memcmp(scratch.units.data(), stored.data(), stored.size()) != 0) is_equal = false;
    });
    return is_equal;
  }
  if (hash) return hash() == target;
  if (!target || target->algorithm() != DigestAlgorithm::kXxh3_128) return false;
  return tensor_digest(DigestAlgorithm::kXxh3_128, dtype, shape, tensor, {}, interrupt) == target;
}

PatchState PatchRecord::check(Bytes tensor, const Hash& hash, const Interrupt& interrupt) const {
  state_->require_blocks();
  state_->require_size(tensor);
  const State::Block* const other = state_->first_other(tensor, interrupt);
  if (other == nullptr) return PatchState::kBase;
  if (state_->is_applied(tensor, hash, interrupt)) return PatchState::kApplied;
  fail(ErrorCode::kWrongBase,
       "tensor `" + clipped(state_->label) +
           "` is not the base of the patch: " + state_->text_of(*other) + " has other values",
       {.subject = state_->label});
}

void PatchRecord::apply(std::span<std::byte> tensor, const Hash& hash,
                        const Interrupt& interrupt) const {
  if (check(tensor, hash, interrupt) == PatchState::kApplied) {
    fail(ErrorCode::kPatchApplied,
         "the patch was applied to tensor `" + clipped(state_->label) + "` already",
         {.subject = state_->label});
  }
  const patch::UnitKernels& units = state_->kernels.of_unit(state_->unit);
  // An interrupt here would leave a half.
  state_->for_each_block({}, [&](const State::Block& block, State::Scratch& scratch) {
    std::byte* const bytes = state_->bytes_of(block, tensor).data();
    const std::size_t count = block.row.count();
    state_->read_positions(block, scratch.at.data());
    if (block.row.values == ValueCode::kSet) {
      units.scatter(bytes, scratch.at.data(), count, state_->stored_of(block).data());
      return;
    }
    units.gather(bytes, scratch.at.data(), count, scratch.units.data());
    state_->add_steps(block, scratch);
    units.scatter(bytes, scratch.at.data(), count, scratch.units.data());
  });
}

void PatchRecord::overwrite(std::span<std::byte> tensor) const {
  state_->require_blocks();
  state_->require_size(tensor);
  if (state_->codes.add8 != 0) {
    fail(ErrorCode::kInvalidArgument, "a patch with differences needs the base",
         {.subject = state_->label});
  }
  const patch::UnitKernels& units = state_->kernels.of_unit(state_->unit);
  state_->for_each_block({}, [&](const State::Block& block, State::Scratch& scratch) {
    state_->read_positions(block, scratch.at.data());
    units.scatter(state_->bytes_of(block, tensor).data(), scratch.at.data(), block.row.count(),
                  state_->stored_of(block).data());
  });
}

void PatchRecord::positions(std::span<std::int64_t> to) const {
  state_->require_blocks();
  if (to.size() != state_->changed) {
    fail(ErrorCode::kInvalidArgument,
         "there are " + grouped(state_->changed) + " positions, and room for " + grouped(to.size()),
         {.subject = state_->label});
  }
  state_->for_each_block({}, [&](const State::Block& block, State::Scratch& scratch) {
    state_->read_positions(block, scratch.at.data());
    std::int64_t* const out = to.data() + block.first;
    const auto begin = static_cast<std::int64_t>(block.index * patch::kBlockUnits);
    for (std::size_t j = 0; j < block.row.count(); ++j) out[j] = begin + scratch.at[j];
  });
}

void PatchRecord::new_units(Bytes base, std::span<std::byte> to) const {
  state_->require_blocks();
  const std::size_t unit = state_->unit;
  if (to.size() % unit != 0 || to.size() / unit != state_->changed) {
    fail(ErrorCode::kInvalidArgument,
         grouped(state_->changed) + " units of " + std::to_string(unit) +
             " bytes change, and there is room for " + grouped(to.size()) + " bytes",
         {.subject = state_->label});
  }
  if (base.empty() && state_->codes.add8 != 0) {
    fail(ErrorCode::kInvalidArgument,
         "the patch has differences, so its new values need the base; one made with "
         "values=\"set\" does not",
         {.subject = state_->label});
  }
  if (!base.empty() && check(base) != PatchState::kBase) {
    fail(ErrorCode::kPatchApplied,
         "the patch was applied to tensor `" + clipped(state_->label) + "` already",
         {.subject = state_->label});
  }
  const patch::UnitKernels& units = state_->kernels.of_unit(unit);
  state_->for_each_block({}, [&](const State::Block& block, State::Scratch& scratch) {
    const std::size_t count = block.row.count();
    std::byte* const out = to.data() + static_cast<std::size_t>(block.first) * unit;
    if (block.row.values == ValueCode::kSet) {
      std::memcpy(out, state_->stored_of(block).data(), count * unit);
      return;
    }
    state_->read_positions(block, scratch.at.data());
    units.gather(state_->bytes_of(block, base).data(), scratch.at.data(), count,
                 scratch.units.data());
    state_->add_steps(block, scratch);
    std::memcpy(out, scratch.units.data(), count * unit);
  });
}

}  // namespace safetensors
