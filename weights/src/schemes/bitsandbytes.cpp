// bitsandbytes. NF4 and FP4: codes of the flattened weight, two in each byte, with a scale for each
// block of them; the shape is in JSON, as the bytes of a tensor.
//
//     M.weight                                    codes, of any type and shape with the right size
//     M.weight.absmax                             scales: F32; nested: U8
//     M.weight.quant_map                          F32 [16], the table of the type
//     M.weight.nested_absmax, .nested_quant_map   F32; [256]; only if nested
//     M.weight.quant_state.bitsandbytes__nf4      U8: quant_type, blocksize, shape, nested_offset
//     ...
//
// INT8: M.weight I8 [N, K] and M.SCB F32 [N], the largest magnitude of each row:
//
//     value[i, k] = (code * SCB[i]) * 1 / 127
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "base/checked.hpp"
#include "base/text.hpp"
#include "common/divide_up.hpp"
#include "common/fail.hpp"
#include "dequant/chunks.hpp"
#include "dequant/ggml_types.hpp"
#include "dequant/table4.hpp"
#include "schemes/claims.hpp"
#include "schemes/conv1d.hpp"
#include "schemes/embedded_json.hpp"
#include "schemes/scheme.hpp"

namespace safetensors::weights {
namespace {

constexpr std::uint64_t kTableSize = 16;
constexpr std::uint64_t kMapSize = 256;

/// The tensors of a module; those of nested scales may be absent.
struct Bnb4Parts {
  const SourceTensor* weight = nullptr;
  const SourceTensor* absmax = nullptr;
  const SourceTensor* quant_map = nullptr;
  const SourceTensor* nested_absmax = nullptr;
  const SourceTensor* nested_quant_map = nullptr;
  const SourceTensor* quant_state = nullptr;

  [[nodiscard]] std::vector<Part> list() const {
    std::vector<Part> parts =
        parts_of({weight, absmax, quant_map, nested_absmax, nested_quant_map});
    parts.push_back({"quant_state", quant_state});
    return parts;
  }
};

/// What quant_state says.
struct Bnb4State {
  bool is_nf4 = true;
  std::uint32_t block_size = 0;
  std::uint32_t nested_block_size = 0;  ///< 0: not nested
  float nested_offset = 0;
  std::vector<std::int64_t> shape;
};

class Bnb4Weight final : public SchemeWeight {
 public:
  Bnb4Weight(const Bnb4Parts& tensors, Bnb4State state)
      : tensors_(tensors), state_(std::move(state)) {}

  std::vector<Part> parts() const override { return tensors_.list(); }

  void decode(const WeightInfo& info, RowRange rows, Output output, std::byte* to,
              const Interrupt& interrupt) const override {
    check_table(interrupt);
    const std::uint64_t columns = row_length(info.shape);
    const std::uint64_t begin = rows.begin * columns;
    const std::uint64_t end = rows.end * columns;
    const StoredBytes codes = tensors_.weight->bytes(begin / 2, (end + 1) / 2, interrupt);
    const std::uint64_t scale_nbytes = is_nested() ? 1 : sizeof(float);
    const std::uint64_t first_block = begin / state_.block_size;
    const StoredBytes scales = tensors_.absmax->bytes(
        first_block * scale_nbytes, divide_up(end, state_.block_size) * scale_nbytes, interrupt);
    TableCodes from;
    from.table = &table();
    from.codes = codes.bytes.data();
    from.begin = begin;
    from.block_size = state_.block_size;
    from.scales.scales = scales.bytes.data();
    from.scales.first_block = first_block;
    StoredBytes map;
    StoredBytes outer;
    if (is_nested()) {
      map = tensors_.nested_quant_map->bytes(interrupt);
      check_map(map.bytes);
      outer = tensors_.nested_absmax->bytes(interrupt);
      from.scales.map = map.bytes.data();
      from.scales.outer = outer.bytes.data();
      from.scales.outer_block = state_.nested_block_size;
      from.scales.offset = state_.nested_offset;
    }
    dequantize_table4(from, end - begin, output, to, interrupt);
  }

 protected:
  void describe(WeightInfo& info) const override {
    info.shape = state_.shape;
    info.scheme = state_.is_nf4 ? "bnb_nf4" : "bnb_fp4";
    info.code = state_.is_nf4 ? code::kBnbNf4 : code::kBnbFp4;
    info.type_name = info.scheme;
    info.scheme_params = {4, true, 1, state_.block_size};
  }
  bool stores_rows() const noexcept override { return false; }

 private:
  [[nodiscard]] bool is_nested() const noexcept { return state_.nested_block_size != 0; }
  [[nodiscard]] const FloatTable& table() const noexcept {
    return state_.is_nf4 ? kNf4Values : kFp4Values;
  }

  static float float_at(std::span<const std::byte> bytes, std::size_t index) {
    float value = 0;
    best_kernels().blocks[ggml::kF32](
        reinterpret_cast<const std::uint8_t*>(bytes.data()) + index * sizeof value, 1, &value);
    return value;
  }

  void check_table(const Interrupt& interrupt) const {
    const StoredBytes stored = tensors_.quant_map->bytes(interrupt);
    for (std::size_t i = 0; i < kTableSize; ++i) {
      const float value = float_at(stored.bytes, i);
      if (value == table().values[i]) continue;
      fail(Errc::quant_mismatch, tensors_.quant_map->file->path(), tensors_.quant_map->info->name,
           "value " + std::to_string(i) + " is " + std::to_string(value) + ", and that of " +
               (state_.is_nf4 ? "nf4" : "fp4") + " is " + std::to_string(table().values[i]));
    }
  }

  void check_map(std::span<const std::byte> map) const {
    for (std::size_t i = 0; i < kMapSize; ++i) {
      if (std::isfinite(float_at(map, i))) continue;
      fail(Errc::quant_mismatch, tensors_.nested_quant_map->file->path(),
           tensors_.nested_quant_map->info->name, "value " + std::to_string(i) + " is not finite");
    }
  }

  Bnb4Parts tensors_;
  Bnb4State state_;
};

[[noreturn]] void refuse_state(const SourceTensor& tensor, const std::string& what) {
  fail(Errc::quant_mismatch, tensor.file->path(), tensor.info->name, what);
}

std::uint32_t block_size_of(const Json& json, std::string_view key, const SourceTensor& tensor) {
  const Json* value = json.find(key);
  const std::int64_t* size = value == nullptr ? nullptr : value->as_int64();
  if (size == nullptr || *size < 32 || *size > 4096 ||
      !std::has_single_bit(static_cast<std::uint64_t>(*size))) {
    refuse_state(tensor, std::string(key) + " is not a power of two from 32 to 4096");
  }
  return static_cast<std::uint32_t>(*size);
}

/// Reads quant_state. Its text comes from the file: sizes in it are only compared with others.
Bnb4State read_state(const Json& json, bool is_nf4, const SourceTensor& tensor) {
  Bnb4State state;
  state.is_nf4 = is_nf4;
  const std::string wanted = is_nf4 ? "nf4" : "fp4";
  const Json* type = json.find("quant_type");
  if (type == nullptr || type->as_string() == nullptr || *type->as_string() != wanted) {
    refuse_state(tensor, "quant_type is not \"" + wanted + "\"");
  }
  state.block_size = block_size_of(json, "blocksize", tensor);
  if (const Json* size = json.find("nested_blocksize"); size != nullptr && !size->is_null()) {
    state.nested_block_size = block_size_of(json, "nested_blocksize", tensor);
    const Json* offset = json.find("nested_offset");
    const auto number = offset == nullptr ? std::nullopt : offset->as_number();
    // Converting a number outside F32 is undefined. A NaN is not within either.
    if (!number || !(std::abs(*number) <= double{std::numeric_limits<float>::max()})) {
      refuse_state(tensor, "nested_offset is not a number in F32");
    }
    state.nested_offset = static_cast<float>(*number);
  }
  const Json* shape = json.find("shape");
  const Json::Array* axes = shape == nullptr ? nullptr : shape->as_array();
  if (axes == nullptr || axes->empty() || axes->size() > 8) {
    refuse_state(tensor, "shape is not a list of axes");
  }
  for (const Json& axis : *axes) {
    const std::int64_t* size = axis.as_int64();
    if (size == nullptr || *size < 1) {
      refuse_state(tensor, "shape is not a list of positive integers");
    }
    state.shape.push_back(*size);
  }
  return state;
}

bool has(const SourceTensor* tensor, Dtype dtype, std::uint64_t count) noexcept {
  const std::uint64_t nbytes = bit_size(dtype) / 8;
  return tensor->info->dtype == dtype && tensor->info->nbytes() % nbytes == 0 &&
         tensor->info->nbytes() / nbytes == count;
}

/// Checks types and sizes of all parts against each other.
void check_bnb_4bit(const Bnb4Parts& parts, const Bnb4State& state) {
  const auto bad = [&](const std::string& what) { mismatch(parts.list(), what); };
  std::uint64_t values = 1;
  for (const std::int64_t axis : state.shape) {
    const auto product = checked_multiply(values, static_cast<std::uint64_t>(axis));
    if (!product) {
      mismatch(parts.list(), "the product of quant_state's shape does not fit in 64 bits");
    }
    values = *product;
  }
  if (parts.weight->info->nbytes() != divide_up(values, 2)) {
    bad("quant_state's shape has " + grouped(values) + " values, the weight " +
        grouped(parts.weight->info->nbytes()) + " bytes");
  }
  const bool is_nested = state.nested_block_size != 0;
  if (is_nested != (parts.nested_absmax != nullptr) ||
      is_nested != (parts.nested_quant_map != nullptr)) {
    bad("quant_state and the tensors disagree about nested scales");
  }
  const std::uint64_t blocks = divide_up(values, state.block_size);
  if (!has(parts.absmax, is_nested ? Dtype::kU8 : Dtype::kF32, blocks)) {
    bad("absmax must have one scale, " + std::string(is_nested ? "U8" : "F32") +
        ", for each block of " + std::to_string(state.block_size) + " values");
  }
  if (!has(parts.quant_map, Dtype::kF32, kTableSize)) bad("quant_map must be 16 numbers in F32");
  if (!is_nested) return;
  if (!has(parts.nested_absmax, Dtype::kF32, divide_up(blocks, state.nested_block_size))) {
    bad("nested_absmax must have one scale in F32 for each block of " +
        std::to_string(state.nested_block_size) + " scales");
  }
  if (!has(parts.nested_quant_map, Dtype::kF32, kMapSize)) {
    bad("nested_quant_map must be 256 numbers in F32");
  }
}

class BnbInt8Weight final : public SchemeWeight {
 public:
  BnbInt8Weight(const SourceTensor& weight, const SourceTensor& scb, const SourceTensor* format)
      : weight_(weight), scb_(scb), format_(format) {}

  std::vector<Part> parts() const override { return parts_of({&weight_, &scb_, format_}); }

  void decode(const WeightInfo& info, RowRange rows, Output output, std::byte* to,
              const Interrupt& interrupt) const override {
    check_format(interrupt);
    const std::uint64_t all = row_count(info.shape);
    const std::uint64_t columns = row_length(info.shape);
    const StoredBytes codes = read_rows(weight_, all, rows, interrupt);
    const StoredBytes scales = read_rows(scb_, all, rows, interrupt);
    const Kernels& kernels = best_kernels();
    const auto* from = reinterpret_cast<const std::uint8_t*>(codes.bytes.data());
    const auto* factors = reinterpret_cast<const std::uint8_t*>(scales.bytes.data());
    decode_rows(kernels, rows.end - rows.begin, columns, output, to, interrupt,
                [&](std::uint64_t row, std::uint64_t begin, std::size_t count, float* values) {
                  float factor = 0;
                  kernels.blocks[ggml::kF32](factors + row * sizeof factor, 1, &factor);
                  kernels.scaled_i8(from + row * columns + begin, count, factor, kPart, values);
                });
  }

 protected:
  void describe(WeightInfo& info) const override {
    info.shape = signed_shape(weight_);
    info.scheme = "bnb_int8";
    info.code = code::kBnbInt8;
    info.type_name = info.scheme;
    info.scheme_params = {8, true, 1, row_length(info.shape)};
  }
  bool stores_rows() const noexcept override { return format_ == nullptr; }

 private:
  /// 1 / 127, as bitsandbytes writes it.
  static constexpr float kPart = 7.874015718698502e-3F;

  /// Layouts other than rows, for the tensor cores of some devices, have other numbers.
  void check_format(const Interrupt& interrupt) const {
    if (format_ == nullptr) return;
    const int format = std::to_integer<int>(format_->bytes(interrupt).bytes.front());
    if (format == 0) return;
    fail(Errc::unsupported, format_->file->path(), format_->info->name,
         "weights quantised by bitsandbytes are decoded in the format 0 (rows) only, not " +
             std::to_string(format));
  }

  const SourceTensor& weight_;
  const SourceTensor& scb_;
  const SourceTensor* format_;
};

}  // namespace

void claim_bnb_4bit(const SourceTensor& quant_state, Checkpoint& checkpoint) {
  const std::string_view name = quant_state.info->name;
  const std::string_view weight = name.substr(0, name.rfind(".quant_state."));
  const Bnb4Parts parts{checkpoint.find(weight, {}),
                        checkpoint.find(weight, ".absmax"),
                        checkpoint.find(weight, ".quant_map"),
                        checkpoint.find(weight, ".nested_absmax"),
                        checkpoint.find(weight, ".nested_quant_map"),
                        &quant_state};
  if (parts.weight == nullptr || parts.absmax == nullptr || parts.quant_map == nullptr) {
    mismatch(parts.list(), "weight, absmax or quant_map is missing");
  }
  if (quant_state.info->dtype != Dtype::kU8) mismatch(parts.list(), "quant_state must be U8");
  if (quant_state.info->nbytes() > kMaxDescription) {
    mismatch(parts.list(), "quant_state is longer than 64 KiB");
  }
  const StoredBytes text = quant_state.bytes({});
  const Json json = parse_description(
      {reinterpret_cast<const char*>(text.bytes.data()), text.bytes.size()}, quant_state);
  Bnb4State state = read_state(json, name.ends_with("nf4"), quant_state);
  check_bnb_4bit(parts, state);
  claim_linear(quant_state, *parts.weight, std::string(weight),
               std::make_unique<Bnb4Weight>(parts, std::move(state)), checkpoint);
}

void claim_bnb_int8(const SourceTensor& scb, Checkpoint& checkpoint) {
  const std::string_view module = module_of(scb);
  const SourceTensor* weight = checkpoint.find(module, ".weight");
  if (weight == nullptr) return;
  const Part parts[] = {part_of(*weight), part_of(scb)};
  const auto& shape = weight->info->shape;
  if (weight->info->dtype != Dtype::kI8 || shape.size() != 2 || shape[0] == 0 ||
      !has(&scb, Dtype::kF32, shape[0])) {
    mismatch(parts, "the weight must be a matrix of I8, and SCB have one F32 for each of its rows");
  }
  const SourceTensor* format = checkpoint.find(module, ".weight_format");
  if (format != nullptr && !has(format, Dtype::kU8, 1)) {
    mismatch(std::array{part_of(*weight), part_of(*format)}, "weight_format must be one U8");
  }
  claim_linear(scb, *weight, std::string(weight->info->name),
               std::make_unique<BnbInt8Weight>(*weight, scb, format), checkpoint);
}

}  // namespace safetensors::weights
