#include "safetensors/cast.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>

#include "base/little_endian.hpp"
#include "base/text.hpp"
#include "format/dtype_text.hpp"
#include "safetensors/buffer.hpp"
#include "safetensors/error.hpp"
#include "safetensors/from_float.hpp"
#include "safetensors/to_float.hpp"

namespace safetensors {
namespace {

constexpr std::size_t kChunk = std::size_t{1} << 12;  // floats between the two conversions
constexpr std::array kCastable{Dtype::kF64,  Dtype::kF32,    Dtype::kF16,
                               Dtype::kBF16, Dtype::kF8E4M3, Dtype::kF8E5M2};
constexpr std::uint64_t kElementsAtOnce = (std::uint64_t{4} << 20) / sizeof(double);

template <typename Number, typename Float>
void read_numbers(std::span<const std::byte> from, std::span<Float> to) noexcept {
  for (std::size_t i = 0; i < to.size(); ++i) {
    to[i] = static_cast<Float>(load_little<Number>(from.data() + sizeof(Number) * i));
  }
}

/// Reads F64, integers and booleans, which to_float() does not. Returns false for other dtypes.
template <typename Float>
bool read_others(Dtype dtype, std::span<const std::byte> from, std::span<Float> to) noexcept {
  switch (dtype) {
    case Dtype::kF64:
      read_numbers<double>(from, to);
      return true;
    case Dtype::kU64:
      read_numbers<std::uint64_t>(from, to);
      return true;
    case Dtype::kI64:
      read_numbers<std::int64_t>(from, to);
      return true;
    case Dtype::kU32:
      read_numbers<std::uint32_t>(from, to);
      return true;
    case Dtype::kI32:
      read_numbers<std::int32_t>(from, to);
      return true;
    case Dtype::kU16:
      read_numbers<std::uint16_t>(from, to);
      return true;
    case Dtype::kI16:
      read_numbers<std::int16_t>(from, to);
      return true;
    case Dtype::kU8:
      read_numbers<std::uint8_t>(from, to);
      return true;
    case Dtype::kI8:
      read_numbers<std::int8_t>(from, to);
      return true;
    case Dtype::kBool:
      for (std::size_t i = 0; i < to.size(); ++i) {
        to[i] = from[i] == std::byte{0} ? Float{0} : Float{1};
      }
      return true;
    default:
      return false;
  }
}

template <typename Float>
void write_f64(std::span<const Float> values, std::span<std::byte> to) noexcept {
  for (std::size_t i = 0; i < values.size(); ++i) {
    store_little(to.data() + sizeof(double) * i, static_cast<double>(values[i]));
  }
}

/// Returns "F64, F32 and so on": the castable types.
std::string castable_names() {
  std::string text;
  for (std::size_t i = 0; i < kCastable.size(); ++i) {
    if (i != 0) text += i + 1 == kCastable.size() ? " and " : ", ";
    text += name(kCastable[i]);
  }
  return text;
}

[[noreturn]] void fail_cast(Dtype from, Dtype to, const std::string& why) {
  fail(ErrorCode::kUnsupportedDtype,
       dtype_text(from) + " cannot be cast to " + dtype_text(to) + ": " + why);
}

/// Throws unless elements of one dtype can be cast to another. Names the dtype at fault.
void check_cast(Dtype from, Dtype to) {
  if (from == Dtype::kC64 || from == Dtype::kF6E3M2 || from == Dtype::kF6E2M3 ||
      name(from).empty()) {
    fail_cast(from, to, "no cast reads it");
  }
  if (!is_castable(to)) {
    fail_cast(from, to, "casts lead to " + castable_names() + " only");
  }
}

/// Casts a few elements.
void cast_some(Dtype from_dtype, std::span<const std::byte> from, Dtype to_dtype,
               std::span<std::byte> to, std::size_t count) {
  if (to_dtype == Dtype::kF64) {  // integers keep more digits than a float has
    std::array<double, kChunk> doubles;
    const std::span<double> values = std::span(doubles).first(count);
    if (read_others(from_dtype, from, values)) {
      write_f64<double>(values, to);
      return;
    }
  }
  std::array<float, kChunk> floats;
  // Floats of this machine need no second copy.
  const bool is_direct = to_dtype == Dtype::kF32 && std::endian::native == std::endian::little &&
                         reinterpret_cast<std::uintptr_t>(to.data()) % alignof(float) == 0;
  const std::span<float> values = is_direct ? std::span(reinterpret_cast<float*>(to.data()), count)
                                            : std::span(floats).first(count);
  if (!read_others(from_dtype, from, values)) to_float(from_dtype, from, values);
  if (is_direct) return;
  if (to_dtype == Dtype::kF64) {
    write_f64<float>(values, to);
  } else {
    from_float(to_dtype, values, to);
  }
}

}  // namespace

bool is_castable(Dtype dtype) noexcept {
  return std::ranges::find(kCastable, dtype) != kCastable.end();
}

void check_castable(Dtype from, Dtype to) {
  if (is_castable(from) && is_castable(to)) return;
  fail_cast(from, to, "only " + castable_names() + " are cast to each other");
}

void cast_elements(Dtype from_dtype, std::span<const std::byte> from, Dtype to_dtype,
                   std::span<std::byte> to) {
  if (from_dtype != to_dtype || name(from_dtype).empty()) check_cast(from_dtype, to_dtype);
  const std::uint64_t from_bits = bit_size(from_dtype);
  const std::uint64_t to_bits = bit_size(to_dtype);
  const std::uint64_t count = from.size() * std::uint64_t{8} / from_bits;
  if (from.size() * std::uint64_t{8} % from_bits != 0 ||
      to.size() * std::uint64_t{8} % to_bits != 0 ||
      to.size() * std::uint64_t{8} / to_bits != count) {
    fail(ErrorCode::kInvalidArgument,
         counted(from.size(), "byte") + " of " + dtype_text(from_dtype) + " and " +
             grouped(to.size()) + " of " + dtype_text(to_dtype) + " are not as many elements");
  }
  if (from_dtype == to_dtype) {
    if (!to.empty()) std::memcpy(to.data(), from.data(), to.size());
    return;
  }
  const auto part = [](auto all, std::uint64_t begin, std::uint64_t length, std::uint64_t bits) {
    return all.subspan(static_cast<std::size_t>(begin * bits / 8),
                       static_cast<std::size_t>(length * bits / 8));
  };
  for (std::uint64_t begin = 0; begin < count; begin += kChunk) {  // even: F4 has two in a byte
    const std::uint64_t length = std::min<std::uint64_t>(kChunk, count - begin);
    cast_some(from_dtype, part(from, begin, length, from_bits), to_dtype,
              part(to, begin, length, to_bits), static_cast<std::size_t>(length));
  }
}

void copy_cast(FileWriter& writer, const ByteSource& source, const TensorCast& tensor) {
  check_castable(tensor.from, tensor.to);
  const std::shared_ptr<const ByteSource> kept = source.keep_open();
  const ByteSource& from = kept ? *kept : source;
  const std::uint64_t from_size = bit_size(tensor.from) / 8;
  const std::uint64_t to_size = bit_size(tensor.to) / 8;
  const auto most = static_cast<std::size_t>(std::min(kElementsAtOnce, tensor.count));
  const Buffer read(most * static_cast<std::size_t>(from_size));
  const Buffer cast(most * static_cast<std::size_t>(to_size));
  for (std::uint64_t begin = 0; begin < tensor.count; begin += kElementsAtOnce) {
    const auto length = static_cast<std::size_t>(std::min(kElementsAtOnce, tensor.count - begin));
    const std::span<std::byte> in =
        read.bytes().first(length * static_cast<std::size_t>(from_size));
    const std::span<std::byte> out = cast.bytes().first(length * static_cast<std::size_t>(to_size));
    from.read_at(tensor.copy.begin + begin * from_size, in);
    cast_elements(tensor.from, in, tensor.to, out);
    writer.write_at(tensor.copy.tensor, begin * to_size, out);
  }
  (void)from.descriptor();  // throws if the source has changed
}

}  // namespace safetensors
