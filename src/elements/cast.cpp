#include "safetensors/cast.hpp"

#include <algorithm>
#include <array>
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
constexpr std::uint64_t kElementsAtOnce = (std::uint64_t{4} << 20) / sizeof(double);

void read_f64(std::span<const std::byte> from, std::span<float> to) noexcept {
  for (std::size_t i = 0; i < to.size(); ++i) {
    to[i] = static_cast<float>(load_little<double>(from.data() + sizeof(double) * i));
  }
}

void write_f64(std::span<const float> values, std::span<std::byte> to) noexcept {
  for (std::size_t i = 0; i < values.size(); ++i) {
    store_little(to.data() + sizeof(double) * i, static_cast<double>(values[i]));
  }
}

void check_castable(Dtype from, Dtype to) {
  if (is_castable(from) && is_castable(to)) return;
  fail(ErrorCode::kUnsupportedDtype,
       dtype_text(from) + " cannot be cast to " + dtype_text(to) +
           ": only F64, F32, F16, BF16, F8_E4M3 and F8_E5M2 are cast to each other");
}

}  // namespace

bool is_castable(Dtype dtype) noexcept {
  constexpr std::array kCastable{Dtype::kF64,  Dtype::kF32,    Dtype::kF16,
                                 Dtype::kBF16, Dtype::kF8E4M3, Dtype::kF8E5M2};
  return std::ranges::find(kCastable, dtype) != kCastable.end();
}

void cast_elements(Dtype from_dtype, std::span<const std::byte> from, Dtype to_dtype,
                   std::span<std::byte> to) {
  check_castable(from_dtype, to_dtype);
  const std::size_t from_size = bit_size(from_dtype) / 8;
  const std::size_t to_size = bit_size(to_dtype) / 8;
  const std::size_t count = from.size() / from_size;
  if (from.size() % from_size != 0 || to.size() % to_size != 0 || to.size() / to_size != count) {
    fail(ErrorCode::kInvalidArgument,
         counted(from.size(), "byte") + " of " + dtype_text(from_dtype) + " and " +
             grouped(to.size()) + " of " + dtype_text(to_dtype) + " are not as many elements");
  }
  std::array<float, kChunk> floats;
  for (std::size_t begin = 0; begin < count; begin += kChunk) {
    const std::size_t length = std::min(kChunk, count - begin);
    const std::span<float> values = std::span(floats).first(length);
    const std::span<const std::byte> in = from.subspan(begin * from_size, length * from_size);
    const std::span<std::byte> out = to.subspan(begin * to_size, length * to_size);
    if (from_dtype == Dtype::kF64) {
      read_f64(in, values);
    } else {
      to_float(from_dtype, in, values);
    }
    if (to_dtype == Dtype::kF64) {
      write_f64(values, out);
    } else {
      from_float(to_dtype, values, out);
    }
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
