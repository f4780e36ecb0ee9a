#include "patch/record.hpp"

#include <algorithm>
#include <utility>

#include "base/little_endian.hpp"
#include "base/text.hpp"
#include "patch/positions.hpp"
#include "patch/shape.hpp"
#include "safetensors/error.hpp"
#include "safetensors/parallel.hpp"

namespace safetensors {

using patch::PositionCode;
using patch::Row;
using patch::ValueCode;

namespace {

bool are_zeros(std::span<const std::byte> bytes) noexcept {
  return std::ranges::all_of(bytes, [](std::byte byte) { return byte == std::byte{}; });
}

std::uint8_t byte_at(std::span<const std::byte> record, std::size_t at) noexcept {
  return static_cast<std::uint8_t>(record[at]);
}

/// Returns the count of a code of positions.
std::uint64_t& count_of(PatchCodes& codes, PositionCode code) noexcept {
  switch (code) {
    case PositionCode::kGap8:
      return codes.gap8;
    case PositionCode::kPos16:
      return codes.pos16;
    case PositionCode::kBitmap:
      return codes.bitmap;
    case PositionCode::kRuns:
      return codes.runs;
    case PositionCode::kSame:
      break;
  }
  return codes.same;
}

}  // namespace

std::string_view name(PatchKind kind) noexcept {
  switch (kind) {
    case PatchKind::kRemoved:
      return "removed";
    case PatchKind::kWhole:
      return "whole";
    case PatchKind::kBlocks:
      return "blocks";
  }
  return {};
}

void PatchRecord::State::refuse(const std::string& reason) const {
  const std::string what =
      label.empty() ? "the patch" : "the patch of tensor `" + clipped(label) + "`";
  fail(ErrorCode::kInvalidPatch, what + " is invalid: " + reason, {.subject = label});
}

void PatchRecord::State::refuse_block(const Block& block, const char* reason) const {
  refuse("block " + grouped(block.index) + ": " + reason);
}

PatchRecord::State::State(std::span<const std::byte> record, std::span<const std::byte> all_values,
                          Dtype dtype_of_values, DigestAlgorithm algorithm, std::string name,
                          const Interrupt& interrupt)
    : values(all_values), label(std::move(name)), dtype(dtype_of_values) {
  if (record.size() < patch::kHeadSize) {
    refuse("the record has " + std::to_string(record.size()) + " bytes, fewer than its head");
  }
  if (byte_at(record, patch::kKindAt) > static_cast<std::uint8_t>(PatchKind::kBlocks)) {
    refuse("unknown kind " + std::to_string(byte_at(record, patch::kKindAt)));
  }
  kind = static_cast<PatchKind>(record[patch::kKindAt]);
  const bool has_blocks = kind == PatchKind::kBlocks;
  if (!has_blocks && record.size() != patch::kHeadSize) refuse("bytes follow the record's head");
  const std::uint8_t flags = byte_at(record, patch::kFlagsAt);
  const bool may_be_new = kind == PatchKind::kWhole;
  const unsigned known = patch::kHasBase | (has_blocks ? patch::kSubByte : 0U);
  if ((flags & ~known) != 0 || (!may_be_new && (flags & patch::kHasBase) == 0)) {
    refuse("flags " + std::to_string(flags) + " do not belong to its kind");
  }
  if (record[patch::kZeroAt] != std::byte{}) refuse("byte 11 is not 0");
  unit = byte_at(record, patch::kUnitAt);
  const bool is_unit = unit == 1 || unit == 2 || unit == 4 || unit == 8;
  if (has_blocks ? !is_unit : unit != 0) refuse("unit " + std::to_string(unit));
  if (!has_blocks && !are_zeros(record.subspan(patch::kDimsAt, patch::kBaseAt - patch::kDimsAt))) {
    refuse("a record without blocks has a shape, units or rows");
  }
  if (kind == PatchKind::kRemoved && !values.empty()) refuse("a removed tensor has values");

  Xxh3Hasher hasher;
  hasher.update(record.subspan(patch::kKindAt));
  hasher.update(values);
  if (hasher.xxh3_64() != load_little<std::uint64_t>(record.data() + patch::kCheckAt)) {
    refuse("it is damaged: the check of the record and its values does not hold");
  }
  read_digests(record, algorithm);
  if (!has_blocks) return;
  const std::span<const std::byte> rest = read_shape(record);
  read_rows(record, rest);
  check_blocks(interrupt);
}

void PatchRecord::State::read_digests(std::span<const std::byte> record,
                                      DigestAlgorithm algorithm) {
  const std::size_t size = algorithm == DigestAlgorithm::kSha256 ? 32 : 16;
  const auto read = [&](std::size_t at, bool is_there) -> std::optional<Digest> {
    const auto field = record.subspan(at, patch::kDigestSize);
    if (!are_zeros(field.subspan(is_there ? size : 0))) {
      refuse("a digest is longer than those of the algorithm, or there should be none");
    }
    if (!is_there) return std::nullopt;
    return Digest(algorithm, field.first(size));
  };
  base = read(patch::kBaseAt, (byte_at(record, patch::kFlagsAt) & patch::kHasBase) != 0);
  target = read(patch::kTargetAt, kind != PatchKind::kRemoved);
}

std::span<const std::byte> PatchRecord::State::read_shape(std::span<const std::byte> record) {
  const std::size_t ndim = load_little<std::uint32_t>(record.data() + patch::kDimsAt);
  const std::span<const std::byte> rest = record.subspan(patch::kHeadSize);
  if (ndim > patch::kMaxDims) refuse(std::to_string(ndim) + " dimensions");
  if (rest.size() / 8 < ndim) refuse("the record ends within the shape");
  for (std::size_t i = 0; i < ndim; ++i) {
    shape.push_back(load_little<std::uint64_t>(rest.data() + 8 * i));
  }
  units = load_little<std::uint64_t>(record.data() + patch::kUnitsAt);
  const bool is_packed = (byte_at(record, patch::kFlagsAt) & patch::kSubByte) != 0;
  if (is_packed ? !patch::is_sub_byte(dtype) && dtype != Dtype::kU8
                : patch::is_sub_byte(dtype) || patch::unit_of(dtype) != unit) {
    refuse("its values are " + std::string(name(dtype)) + ", its units have " +
           std::to_string(unit) + " bytes" + (is_packed ? " of a sub-byte type" : ""));
  }
  // The values of sub-byte types are U8, so the shape says which elements it may be.
  const auto fits = [&](unsigned bits) {
    const std::optional<std::uint64_t> nbytes = patch::nbytes_of(shape, bits);
    if (!nbytes || *nbytes % unit != 0 || *nbytes / unit != units) return false;
    element_bits = bits;
    return true;
  };
  const bool is_known = !is_packed || patch::is_sub_byte(dtype);
  if (unit != 1 && is_packed) refuse("units of a sub-byte type have 1 byte");
  if (is_known ? !fits(bit_size(dtype)) : !fits(4) && !fits(6)) {
    refuse("its shape is not that of " + grouped(units) + " units");
  }
  return rest.subspan(8 * ndim);
}

void PatchRecord::State::read_rows(std::span<const std::byte> record,
                                   std::span<const std::byte> rest) {
  const std::uint64_t rows = load_little<std::uint64_t>(record.data() + patch::kRowsAt);
  if (rows != patch::blocks_of(units)) refuse("it has rows for another number of units");
  if (rows > rest.size() / patch::kRowSize) refuse("the record ends within the rows");
  stream = rest.subspan(static_cast<std::size_t>(rows) * patch::kRowSize);
  std::uint64_t stream_size = 0;
  std::uint64_t value_units = 0;
  for (std::uint64_t i = 0; i < rows; ++i) {
    const Block block{i, stream_size, value_units, changed,
                      patch::load_row(rest.data() + static_cast<std::size_t>(i) * patch::kRowSize)};
    const Row& row = block.row;
    if (row.positions > PositionCode::kRuns) refuse_block(block, "unknown code of positions");
    ++count_of(codes, row.positions);
    if (row.positions == PositionCode::kSame) {
      if (row != Row()) refuse_block(block, "it does not change, and its row is not zeros");
      continue;
    }
    if (row.values > (unit == 1 ? ValueCode::kSet : ValueCode::kAdd8)) {
      refuse_block(block, "unknown code of values");
    }
    if (row.position_bytes > patch::kMaxPositionBytes) refuse_block(block, "too many positions");
    if (row.count() > units_of(block)) refuse_block(block, "more units change than it has");
    if (row.values == ValueCode::kSet && row.wide != 0) {
      refuse_block(block, "it has wide differences, but no differences");
    }
    ++(row.values == ValueCode::kSet ? codes.set : codes.add8);
    stream_size += row.position_bytes + row.narrow();
    value_units += row.stored();
    changed += row.count();
    blocks.push_back(block);
  }
  if (stream_size != stream.size()) refuse("its blocks have other bytes than the record");
  if (values.size() % unit != 0 || values.size() / unit != value_units) {
    refuse("its blocks have other values than there are");
  }
}

void PatchRecord::State::check_blocks(const Interrupt& interrupt) const {
  for_each_block(interrupt, [&](const Block& block, Scratch& scratch) {
    read_positions(block, scratch.at.data());
    const auto steps = steps_of(block);
    if (block.row.values == ValueCode::kAdd8 &&
        std::ranges::count(steps, std::byte{0x80}) != block.row.wide) {
      refuse_block(block, "more or fewer wide differences than it says");
    }
  });
}

void PatchRecord::State::require_blocks() const {
  if (kind != PatchKind::kBlocks) {
    fail(ErrorCode::kInvalidArgument, "a patch of a whole or removed tensor has no blocks",
         {.subject = label});
  }
}

std::size_t PatchRecord::State::units_of(const Block& block) const noexcept {
  return static_cast<std::size_t>(
      std::min<std::uint64_t>(patch::kBlockUnits, units - block.index * patch::kBlockUnits));
}

std::string PatchRecord::State::text_of(const Block& block) const {
  // Of sub-byte types, those that have a bit in the block.
  const std::uint64_t begin = block.index * patch::kBlockUnits * unit;
  const std::uint64_t end = begin + units_of(block) * unit;
  return "block " + grouped(block.index) + " (elements " + grouped(begin * 8 / element_bits) +
         " to " + grouped((end * 8 + element_bits - 1) / element_bits) + ")";
}

std::span<const std::byte> PatchRecord::State::steps_of(const Block& block) const noexcept {
  return stream.subspan(static_cast<std::size_t>(block.stream_at) + block.row.position_bytes,
                        block.row.narrow());
}

std::span<const std::byte> PatchRecord::State::stored_of(const Block& block) const noexcept {
  return values.subspan(static_cast<std::size_t>(block.value_at) * unit, block.row.stored() * unit);
}

void PatchRecord::State::read_positions(const Block& block, std::uint16_t* at) const {
  const auto bytes =
      stream.subspan(static_cast<std::size_t>(block.stream_at), block.row.position_bytes);
  if (!patch::read_positions(kernels, block.row.positions, bytes, block.row.count(),
                             units_of(block), at)) {
    refuse_block(block, "its positions are not ascending numbers of its units, as many as it says");
  }
}

PatchRecord::PatchRecord(std::span<const std::byte> record, std::span<const std::byte> values,
                         Dtype dtype, DigestAlgorithm algorithm, std::string label,
                         const Interrupt& interrupt)
    : state_(std::make_shared<const State>(record, values, dtype, algorithm, std::move(label),
                                           interrupt)) {}

PatchKind PatchRecord::kind() const noexcept { return state_->kind; }
const std::optional<Digest>& PatchRecord::base() const& noexcept { return state_->base; }
const std::optional<Digest>& PatchRecord::target() const& noexcept { return state_->target; }
std::span<const std::uint64_t> PatchRecord::shape() const& noexcept { return state_->shape; }
std::size_t PatchRecord::unit() const noexcept { return state_->unit; }
std::uint64_t PatchRecord::units() const noexcept { return state_->units; }
std::uint64_t PatchRecord::changed() const noexcept { return state_->changed; }
const PatchCodes& PatchRecord::codes() const& noexcept { return state_->codes; }

}  // namespace safetensors
