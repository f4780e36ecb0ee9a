// Reads records of patches one unit at a time, by the rules of the format and nothing else: what
// the library's decoder is compared with.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "safetensors/digest.hpp"
#include "safetensors/dtype.hpp"
#include "safetensors/patch.hpp"

namespace test {

using PatchBytes = std::vector<std::byte>;

/// Returns the little-endian number at `at`; the caller has looked that it is there.
inline std::uint64_t number_at(std::span<const std::byte> bytes, std::size_t at, std::size_t size) {
  std::uint64_t number = 0;
  for (std::size_t i = size; i-- > 0;) {
    number = number << 8 | std::to_integer<std::uint64_t>(bytes[at + i]);
  }
  return number;
}

inline void put_number(std::span<std::byte> bytes, std::size_t at, std::size_t size,
                       std::uint64_t number) {
  for (std::size_t i = 0; i < size; ++i) {
    bytes[at + i] = static_cast<std::byte>(number >> (8 * i) & 0xFF);
  }
}

inline std::uint64_t xxh3_of(std::span<const std::byte> first,
                             std::span<const std::byte> second = {}) {
  safetensors::Xxh3Hasher hasher;
  hasher.update(first);
  hasher.update(second);
  return hasher.xxh3_64();
}

/// Makes the record's check hold, as a writer who means harm would.
inline void seal(PatchBytes& record, std::span<const std::byte> values) {
  if (record.size() >= 8) put_number(record, 0, 8, xxh3_of(std::span(record).subspan(8), values));
}

/// A record of blocks and its values, whose digests are XXH3-128.
class NaivePatch {
 public:
  struct Change {
    std::uint64_t unit;
    bool is_step;
    std::uint64_t number;  // the new unit, or what is added to the old one
  };
  struct Block {
    std::size_t row_at;
    std::vector<Change> changes;
  };

  NaivePatch(std::span<const std::byte> record, std::span<const std::byte> values,
             safetensors::Dtype dtype)
      : record_(record), values_(values) {
    is_valid_ = read(dtype);
  }

  [[nodiscard]] bool is_valid() const { return is_valid_; }
  [[nodiscard]] std::uint64_t units() const { return units_; }
  [[nodiscard]] std::size_t unit() const { return unit_; }

  /// Returns the number of the unit in a tensor.
  [[nodiscard]] std::uint64_t unit_at(std::span<const std::byte> tensor, std::uint64_t at) const {
    return number_at(tensor, static_cast<std::size_t>(at) * unit_, unit_);
  }

  /// Returns a copy of the tensor with all changes, whatever the checks say.
  [[nodiscard]] PatchBytes applied(std::span<const std::byte> tensor) const {
    PatchBytes result(tensor.begin(), tensor.end());
    for (const Block& block : blocks_) {
      for (const Change& change : block.changes) {
        const std::uint64_t old = change.is_step ? unit_at(tensor, change.unit) : 0;
        put_number(result, static_cast<std::size_t>(change.unit) * unit_, unit_,
                   old + change.number);
      }
    }
    return result;
  }

  /// Returns XXH3-64 of the units that the block changes.
  [[nodiscard]] std::uint64_t check_of(const Block& block,
                                       std::span<const std::byte> tensor) const {
    PatchBytes units;
    for (const Change& change : block.changes) {
      const auto bytes = tensor.subspan(static_cast<std::size_t>(change.unit) * unit_, unit_);
      units.insert(units.end(), bytes.begin(), bytes.end());
    }
    return xxh3_of(units);
  }

  [[nodiscard]] bool is_base(std::span<const std::byte> tensor) const {
    return std::ranges::all_of(blocks_, [&](const Block& block) {
      return check_of(block, tensor) == number_at(record_, block.row_at + 8, 8);
    });
  }

  /// Returns a record whose blocks have this tensor as their base.
  [[nodiscard]] PatchBytes rebased(std::span<const std::byte> tensor) const {
    PatchBytes record(record_.begin(), record_.end());
    for (const Block& block : blocks_) {
      put_number(record, block.row_at + 8, 8, check_of(block, tensor));
    }
    seal(record, values_);
    return record;
  }

 private:
  [[nodiscard]] std::uint64_t field(std::size_t at, std::size_t size) const {
    return number_at(record_, at, size);
  }

  bool read(safetensors::Dtype dtype) {
    if (record_.size() < 96 || field(8, 1) != 2 || field(11, 1) != 0) return false;
    if (field(0, 8) != xxh3_of(record_.subspan(8), values_)) return false;
    unit_ = static_cast<std::size_t>(field(9, 1));
    const bool is_packed = field(10, 1) == 3;
    if (field(10, 1) != 1 && !is_packed) return false;
    for (const std::size_t behind : {48U, 56U, 80U, 88U}) {
      if (field(behind, 8) != 0) return false;
    }
    const std::uint64_t ndim = field(12, 4);
    if (ndim > 64 || record_.size() < 96 + 8 * ndim) return false;
    units_ = field(16, 8);
    const unsigned bits = safetensors::bit_size(dtype);
    const bool fits =
        is_packed ? unit_ == 1 && (bits < 8 ? has_units(ndim, bits)
                                            : dtype == safetensors::Dtype::kU8 &&
                                                  (has_units(ndim, 4) || has_units(ndim, 6)))
                  : bits == 8 * unit_ && has_units(ndim, bits);
    if (!fits) return false;
    const std::uint64_t rows = field(24, 8);
    const auto rows_at = static_cast<std::size_t>(96 + 8 * ndim);
    if (rows != units_ / 65536 + (units_ % 65536 != 0)) return false;
    if (rows > (record_.size() - rows_at) / 16) return false;
    place_ = rows_at + 16 * static_cast<std::size_t>(rows);
    for (std::uint64_t i = 0; i < rows; ++i) {
      if (!read_block(i, rows_at + 16 * static_cast<std::size_t>(i))) return false;
    }
    return place_ == record_.size() && taken_ == values_.size();
  }

  /// Whether a tensor of the record's shape has its units.
  [[nodiscard]] bool has_units(std::uint64_t ndim, unsigned bits) const {
    constexpr std::uint64_t kMax = ~std::uint64_t{0};
    std::uint64_t product = 1;
    for (std::size_t i = 0; i < ndim; ++i) {
      const std::uint64_t dim = field(96 + 8 * i, 8);
      if (dim != 0 && product > kMax / dim) return false;
      product *= dim;
    }
    if (product > kMax / bits) return false;
    product *= bits;
    return product % (8 * unit_) == 0 && product / (8 * unit_) == units_;
  }

  /// Returns the next bytes of the stream; fewer if there are not as many.
  std::span<const std::byte> take(std::size_t size) {
    size = std::min(size, record_.size() - place_);
    place_ += size;
    return record_.subspan(place_ - size, size);
  }

  bool read_block(std::uint64_t number, std::size_t row) {
    const std::uint64_t code = field(row, 1);
    const std::uint64_t values_code = field(row + 1, 1);
    const auto size = static_cast<std::size_t>(field(row + 2, 2));
    const auto count = static_cast<std::size_t>(field(row + 4, 2)) + 1;
    const std::uint64_t wide = field(row + 6, 2);
    if (code == 0) return field(row, 8) == 0 && field(row + 8, 8) == 0;
    const std::uint64_t n = std::min<std::uint64_t>(65536, units_ - number * 65536);
    if (code > 4 || values_code > (unit_ > 1 ? 1U : 0U) || size > 8192 || count > n) return false;
    if (values_code == 0 && wide != 0) return false;
    const auto bytes = take(size);
    if (bytes.size() != size) return false;
    Block block{row, {}};
    std::vector<std::uint64_t> at;
    if (!read_positions(code, bytes, n, at) || at.size() != count) return false;
    for (std::size_t i = 0; i < count; ++i) {
      if (at[i] >= n || (i > 0 && at[i] <= at[i - 1])) return false;
    }
    const auto steps = take(values_code == 1 ? count : 0);
    if (steps.size() != (values_code == 1 ? count : 0)) return false;
    std::uint64_t found = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const bool is_step = values_code == 1 && steps[i] != std::byte{0x80};
      std::uint64_t value = 0;
      if (is_step) {
        value = static_cast<std::uint64_t>(
            std::int64_t{static_cast<std::int8_t>(std::to_integer<std::uint8_t>(steps[i]))});
      } else {
        if (values_.size() - taken_ < unit_) return false;
        value = number_at(values_, taken_, unit_);
        taken_ += unit_;
        ++found;
      }
      block.changes.push_back({number * 65536 + at[i], is_step, value});
    }
    if (values_code == 1 && found != wide) return false;
    blocks_.push_back(std::move(block));
    return true;
  }

  static bool read_positions(std::uint64_t code, std::span<const std::byte> bytes, std::uint64_t n,
                             std::vector<std::uint64_t>& at) {
    std::uint64_t place = 0;
    if (code == 1) {
      for (const std::byte byte : bytes) {
        place += std::to_integer<std::uint64_t>(byte);
        if (byte != std::byte{255}) at.push_back(place++);
      }
      return !bytes.empty() && bytes.back() != std::byte{255};
    }
    if (code == 2) {
      if (bytes.size() % 2 != 0) return false;
      for (std::size_t i = 0; i < bytes.size(); i += 2) at.push_back(number_at(bytes, i, 2));
      return true;
    }
    if (code == 3) {
      for (std::size_t i = 0; i < 8 * bytes.size(); ++i) {
        if ((std::to_integer<unsigned>(bytes[i / 8]) >> (i % 8) & 1) != 0) at.push_back(i);
      }
      return bytes.size() == (n + 7) / 8;
    }
    if (bytes.size() % 4 != 0) return false;
    for (std::size_t i = 0; i < bytes.size(); i += 4) {
      const std::uint64_t first = number_at(bytes, i, 2);
      const std::uint64_t last = number_at(bytes, i + 2, 2);
      if (first > last || (i > 0 && first < place + 2)) return false;
      for (std::uint64_t each = first; each <= last; ++each) at.push_back(each);
      place = last;
    }
    return true;
  }

  std::span<const std::byte> record_;
  std::span<const std::byte> values_;
  std::vector<Block> blocks_;
  std::uint64_t units_ = 0;
  std::size_t unit_ = 0;
  std::size_t place_ = 0;  // in the record
  std::size_t taken_ = 0;  // of the values
  bool is_valid_ = false;
};

}  // namespace test
