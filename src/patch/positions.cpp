#include "patch/positions.hpp"

#include <cstring>

#include "base/little_endian.hpp"

namespace safetensors::patch {
namespace {

constexpr std::size_t kSkipMost = 255;  // and continues: the next byte belongs to the same gap

/// Writes the gaps. Returns how many bytes they take; more than kMaxPositionBytes if too many, of
/// which not all are written then. Counts the runs, too.
std::size_t write_gaps(std::span<const std::uint16_t> at, std::byte* to,
                       std::size_t& runs) noexcept {
  std::size_t size = 0;
  std::size_t next = 0;
  runs = 0;
  for (const std::uint16_t position : at) {
    std::size_t skip = position - next;
    next = position + std::size_t{1};
    runs += skip != 0;
    for (; skip >= kSkipMost; skip -= kSkipMost) to[size++] = static_cast<std::byte>(kSkipMost);
    to[size++] = static_cast<std::byte>(skip);
  }
  runs += at.front() == 0;
  return size;
}

std::size_t count_runs(std::span<const std::uint16_t> at) noexcept {
  std::size_t runs = 1;
  for (std::size_t j = 1; j < at.size(); ++j) runs += at[j] != at[j - 1] + 1;
  return runs;
}

void write_runs(std::span<const std::uint16_t> at, std::byte* to) noexcept {
  for (std::size_t j = 0; j < at.size(); to += 4) {
    store_little(to, at[j]);
    do {
      ++j;
    } while (j < at.size() && at[j] == at[j - 1] + 1);
    store_little(to + 2, at[j - 1]);
  }
}

bool read_gaps(std::span<const std::byte> bytes, std::size_t count, std::size_t units,
               std::uint16_t* at) noexcept {
  std::size_t found = 0;
  std::size_t place = 0;
  // Writes no more positions than there are bytes, kMaxPositionBytes; their number and the last
  // one, which is the largest, are compared behind the loop.
  for (const std::byte byte : bytes) {
    const auto skip = static_cast<std::size_t>(byte);
    place += skip;
    at[found] = static_cast<std::uint16_t>(place);
    const bool is_change = skip != kSkipMost;
    found += is_change;
    place += is_change;
  }
  return !bytes.empty() && static_cast<std::size_t>(bytes.back()) != kSkipMost && found == count &&
         place <= units;
}

bool read_list(std::span<const std::byte> bytes, std::size_t count, std::size_t units,
               std::uint16_t* at) noexcept {
  if (bytes.size() != 2 * count) return false;
  for (std::size_t j = 0; j < count; ++j) at[j] = load_little<std::uint16_t>(&bytes[2 * j]);
  bool is_ascending = true;
  for (std::size_t j = 1; j < count; ++j) is_ascending &= at[j] > at[j - 1];
  return is_ascending && at[count - 1] < units;
}

bool read_bitmap(const Kernels& kernels, std::span<const std::byte> bytes, std::size_t count,
                 std::size_t units, std::uint16_t* at) noexcept {
  if (bytes.size() != (units + 7) / 8) return false;
  std::array<std::uint64_t, kBlockUnits / 64> words;
  const std::size_t whole = bytes.size() / 8;
  for (std::size_t i = 0; i < whole; ++i) words[i] = load_little<std::uint64_t>(&bytes[8 * i]);
  std::size_t word_count = whole;
  if (bytes.size() % 8 != 0) {
    std::array<std::byte, 8> rest{};
    std::memcpy(rest.data(), bytes.data() + 8 * whole, bytes.size() % 8);
    words[word_count++] = load_little<std::uint64_t>(rest.data());
  }
  return kernels.list_bits(words.data(), word_count, at) == count && at[count - 1] < units;
}

bool read_runs(std::span<const std::byte> bytes, std::size_t count, std::size_t units,
               std::uint16_t* at) noexcept {
  if (bytes.size() % 4 != 0) return false;
  std::size_t found = 0;
  std::size_t least = 0;
  for (std::size_t i = 0; i < bytes.size(); i += 4) {
    const std::size_t first = load_little<std::uint16_t>(&bytes[i]);
    const std::size_t last = load_little<std::uint16_t>(&bytes[i + 2]);
    if (first < least || last < first || last >= units) return false;
    for (std::size_t place = first; place <= last; ++place) {
      at[found++] = static_cast<std::uint16_t>(place);
    }
    least = last + 2;  // runs that touch would be one
  }
  return found == count;
}

}  // namespace

void write_positions(std::span<const std::uint16_t> at, const std::uint64_t* differs,
                     std::size_t units, PositionBytes& to) noexcept {
  std::size_t runs = 0;
  std::size_t gaps = kMaxPositionBytes + 1;
  if (at.size() <= kMaxPositionBytes) {
    gaps = write_gaps(at, to.bytes.data(), runs);
  } else {
    runs = count_runs(at);
  }
  const std::size_t bitmap = (units + 7) / 8;
  to.code = PositionCode::kBitmap;  // never takes too many
  to.size = bitmap;
  if (2 * at.size() <= to.size) {
    to.code = PositionCode::kPos16;
    to.size = 2 * at.size();
  }
  if (gaps <= to.size) {
    to.code = PositionCode::kGap8;
    to.size = gaps;
    if (4 * runs >= gaps) return;
  }
  if (4 * runs < to.size) {
    to.code = PositionCode::kRuns;
    to.size = 4 * runs;
    write_runs(at, to.bytes.data());
  } else if (to.code == PositionCode::kPos16) {
    for (std::size_t j = 0; j < at.size(); ++j) store_little(&to.bytes[2 * j], at[j]);
  } else {
    for (std::size_t i = 0; 8 * i < bitmap; ++i) store_little(&to.bytes[8 * i], differs[i]);
  }
}

void write_whole_run(std::size_t units, PositionBytes& to) noexcept {
  to.code = PositionCode::kRuns;
  to.size = 4;
  store_little(to.bytes.data(), std::uint16_t{0});
  store_little(to.bytes.data() + 2, static_cast<std::uint16_t>(units - 1));
}

bool read_positions(const Kernels& kernels, PositionCode code, std::span<const std::byte> bytes,
                    std::size_t count, std::size_t units, std::uint16_t* at) noexcept {
  if (count > units || bytes.size() > kMaxPositionBytes) return false;
  switch (code) {
    case PositionCode::kGap8:
      return read_gaps(bytes, count, units, at);
    case PositionCode::kPos16:
      return read_list(bytes, count, units, at);
    case PositionCode::kBitmap:
      return read_bitmap(kernels, bytes, count, units, at);
    case PositionCode::kRuns:
      return read_runs(bytes, count, units, at);
    case PositionCode::kSame:
      break;
  }
  return false;
}

}  // namespace safetensors::patch
