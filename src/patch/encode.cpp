// Writes records: what differs between two tensors.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <memory>

#include "base/little_endian.hpp"
#include "patch/kernels.hpp"
#include "patch/positions.hpp"
#include "patch/row.hpp"
#include "patch/shape.hpp"
#include "safetensors/error.hpp"
#include "safetensors/parallel.hpp"
#include "safetensors/patch.hpp"

namespace safetensors {
namespace {

using patch::kBlockUnits;
using patch::Row;
using patch::ValueCode;
using Bytes = std::span<const std::byte>;

/// What the encoder of one block needs.
struct EncodeScratch {
  std::array<std::uint64_t, kBlockUnits / 64> differs;
  std::array<std::uint16_t, patch::kPositionRoom> at;
  patch::PositionBytes positions;
  std::array<std::byte, 8 * kBlockUnits> old;
  std::array<std::byte, 8 * kBlockUnits> now;
  std::array<std::byte, kBlockUnits> steps;
};

/// What the blocks of one task add to the record and the values.
struct EncodedBlocks {
  std::vector<std::byte> stream;
  std::vector<std::byte> values;
  std::uint64_t changed = 0;
};

void append(std::vector<std::byte>& to, Bytes bytes) {
  to.insert(to.end(), bytes.begin(), bytes.end());
}

class BlockEncoder {
 public:
  BlockEncoder(std::size_t unit, bool set_values)
      : kernels_(patch::best_kernels()),
        units_(kernels_.of_unit(unit)),
        unit_(unit),
        may_add_(!set_values && unit > 1),
        scratch_(std::make_unique_for_overwrite<EncodeScratch>()) {}

  /// Returns the row of a block, and appends the rest of it.
  Row encode(Bytes base, Bytes target, EncodedBlocks& to) {
    EncodeScratch& s = *scratch_;
    const std::size_t count = base.size() / unit_;
    std::size_t changed = units_.compare(base.data(), target.data(), count, s.differs.data());
    if (changed == 0) return {};
    (void)kernels_.list_bits(s.differs.data(), (count + 63) / 64, s.at.data());
    patch::write_positions(std::span(s.at).first(changed), s.differs.data(), count, s.positions);
    if (s.positions.size + changed * unit_ > base.size() + 4) {
      patch::write_whole_run(count, s.positions);
      changed = count;
      std::memcpy(s.old.data(), base.data(), base.size());
      std::memcpy(s.now.data(), target.data(), base.size());
    } else {
      units_.gather(base.data(), s.at.data(), changed, s.old.data());
      units_.gather(target.data(), s.at.data(), changed, s.now.data());
    }
    Row row{.positions = s.positions.code,
            .position_bytes = static_cast<std::uint16_t>(s.positions.size),
            .last = static_cast<std::uint16_t>(changed - 1),
            .check = kernels_.xxh3_64(s.old.data(), changed * unit_)};
    append(to.stream, std::span(s.positions.bytes).first(s.positions.size));
    to.changed += changed;
    if (may_add_) {
      const std::size_t wide = units_.subtract(s.old.data(), s.now.data(), changed, s.steps.data());
      if (changed + wide * unit_ < changed * unit_) {
        row.values = ValueCode::kAdd8;
        row.wide = static_cast<std::uint16_t>(wide);
        append(to.stream, std::span(s.steps).first(changed));
        append(to.values, std::span(s.old).first(wide * unit_));
        return row;
      }
    }
    append(to.values, std::span(s.now).first(changed * unit_));
    return row;
  }

 private:
  const patch::Kernels& kernels_;
  const patch::UnitKernels& units_;
  std::size_t unit_;
  bool may_add_;
  std::unique_ptr<EncodeScratch> scratch_;
};

[[noreturn]] void refuse_argument(const std::string& text) {
  fail(ErrorCode::kInvalidArgument, text);
}

void require_size(Dtype dtype, std::span<const std::uint64_t> shape, Bytes tensor) {
  const std::optional<std::uint64_t> nbytes =
      bit_size(dtype) == 0 ? std::nullopt : patch::nbytes_of(shape, bit_size(dtype));
  if (!nbytes || shape.size() > patch::kMaxDims)
    refuse_argument("no tensor has this dtype and shape");
  if (tensor.size() != *nbytes) {
    refuse_argument("the tensor has " + std::to_string(tensor.size()) + " bytes, its shape " +
                    std::to_string(*nbytes));
  }
}

/// Returns the algorithm of a digest, which is computed if it is not given.
DigestAlgorithm algorithm_of(const std::optional<Digest>& given) {
  return given ? given->algorithm() : DigestAlgorithm::kXxh3_128;
}

void require_one_algorithm(DigestAlgorithm base, DigestAlgorithm target) {
  if (base != target) refuse_argument("the digests of base and target are of two algorithms");
}

/// Stores a digest in 32 bytes, of which those behind it are zeros.
void store_digest(std::byte* to, const std::optional<Digest>& digest) {
  if (digest) std::ranges::copy(digest->bytes(), to);
}

/// Stores the check of a record whose other bytes are complete.
void store_check(std::vector<std::byte>& record, Bytes values) {
  Xxh3Hasher hasher;
  hasher.update(std::span(record).subspan(patch::kKindAt));
  hasher.update(values);
  store_little(record.data() + patch::kCheckAt, hasher.xxh3_64());
}

std::vector<std::byte> make_head(PatchKind kind, std::size_t size) {
  std::vector<std::byte> record(size);
  record[patch::kKindAt] = static_cast<std::byte>(kind);
  return record;
}

}  // namespace

EncodedPatch encode_patch(Dtype dtype, std::span<const std::uint64_t> shape, Bytes base,
                          Bytes target, const PatchOptions& options, const Interrupt& interrupt) {
  require_size(dtype, shape, base);
  require_size(dtype, shape, target);
  require_one_algorithm(algorithm_of(options.base), algorithm_of(options.target));
  const std::size_t unit = patch::unit_of(dtype);
  const std::size_t units = base.size() / unit;
  const auto rows = static_cast<std::size_t>(patch::blocks_of(units));
  const std::size_t rows_at = patch::kHeadSize + 8 * shape.size();
  std::vector<std::byte> record = make_head(PatchKind::kBlocks, rows_at + patch::kRowSize * rows);

  std::array<std::optional<Digest>, 2> digests = {options.base, options.target};
  const auto add_digest = [&](std::size_t i) {
    if (!digests[i])
      digests[i] = tensor_digest(DigestAlgorithm::kXxh3_128, dtype, shape, i == 0 ? base : target);
  };
  const std::size_t step = patch::blocks_per_task(unit);
  std::vector<EncodedBlocks> tasks((rows + step - 1) / step);
  // A digest is the work of one thread, so others compare meanwhile. Equal tensors need none, which
  // is likely if the first half has no change.
  const std::size_t middle = tasks.size() / 2;
  std::atomic<bool> has_change = false;
  parallel_for(
      tasks.size() + 2, base.size(),
      [&](std::size_t number) {
        if (number == middle || number == middle + 1) {
          if (has_change) add_digest(number - middle);
          return;
        }
        const std::size_t task = number < middle ? number : number - 2;
        BlockEncoder encoder(unit, options.set_values);
        for (std::size_t row = task * step; row < std::min(rows, (task + 1) * step); ++row) {
          const std::size_t begin = row * kBlockUnits * unit;
          const std::size_t size = std::min(kBlockUnits * unit, base.size() - begin);
          store_row(
              record.data() + rows_at + row * patch::kRowSize,
              encoder.encode(base.subspan(begin, size), target.subspan(begin, size), tasks[task]));
        }
        if (tasks[task].changed != 0) has_change = true;
      },
      interrupt);

  EncodedPatch encoded;
  std::size_t stream_size = 0;
  std::size_t values_size = 0;
  for (const EncodedBlocks& task : tasks) {
    encoded.changed += task.changed;
    stream_size += task.stream.size();
    values_size += task.values.size();
  }
  if (encoded.changed == 0) return encoded;
  record.reserve(record.size() + stream_size);
  encoded.values.reserve(values_size);
  for (const EncodedBlocks& task : tasks) {
    append(record, task.stream);
    append(encoded.values, task.values);
  }

  parallel_for(2, 2 * base.size(), add_digest, interrupt);

  record[patch::kUnitAt] = static_cast<std::byte>(unit);
  record[patch::kFlagsAt] = std::byte{patch::kHasBase} |
                            (patch::is_sub_byte(dtype) ? std::byte{patch::kSubByte} : std::byte{});
  store_little(record.data() + patch::kDimsAt, static_cast<std::uint32_t>(shape.size()));
  store_little(record.data() + patch::kUnitsAt, std::uint64_t{units});
  store_little(record.data() + patch::kRowsAt, std::uint64_t{rows});
  store_digest(record.data() + patch::kBaseAt, digests[0]);
  store_digest(record.data() + patch::kTargetAt, digests[1]);
  encoded.base = digests[0];
  encoded.target = digests[1];
  for (std::size_t i = 0; i < shape.size(); ++i) {
    store_little(record.data() + patch::kHeadSize + 8 * i, shape[i]);
  }
  store_check(record, encoded.values);
  encoded.record = std::move(record);
  return encoded;
}

std::vector<std::byte> whole_patch(Dtype dtype, std::span<const std::uint64_t> shape, Bytes target,
                                   const PatchOptions& options) {
  require_size(dtype, shape, target);
  if (options.base) require_one_algorithm(algorithm_of(options.base), algorithm_of(options.target));
  std::vector<std::byte> record = make_head(PatchKind::kWhole, patch::kHeadSize);
  if (options.base) {
    record[patch::kFlagsAt] = std::byte{patch::kHasBase};
    store_digest(record.data() + patch::kBaseAt, options.base);
  }
  store_digest(record.data() + patch::kTargetAt,
               options.target ? *options.target
                              : tensor_digest(DigestAlgorithm::kXxh3_128, dtype, shape, target));
  store_check(record, target);
  return record;
}

std::vector<std::byte> removed_patch(const Digest& base) {
  std::vector<std::byte> record = make_head(PatchKind::kRemoved, patch::kHeadSize);
  record[patch::kFlagsAt] = std::byte{patch::kHasBase};
  store_digest(record.data() + patch::kBaseAt, base);
  store_check(record, {});
  return record;
}

}  // namespace safetensors
