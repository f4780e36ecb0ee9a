// torchao: the tensors of an object of Python, and its other attributes as JSON in the metadata of
// the file, under the name of the weight. The tensors of `M.weight` are M._weight_qdata,
// M._weight_scale ..., in older files M.weight:qdata ...
//
//     _type                      qdata                  scale          value
//     Float8Tensor               F8 [.., N, K]          F32 or 16 bit  q * s
//     Int8Tensor, IntxUnpacked-
//       ToInt8Tensor             I8 [.., N, K]          F32 or 16 bit  (q - zero_point) * s *
//                                                                      act_pre_scale
//     MXTensor                   F8 [.., N, K] or
//                                U8 [.., N, K / 2]      E8M0           q * s
//     NVFP4Tensor                U8 [.., N, K / 2]      E4M3           q * (s * per_tensor_scale)
//
// scale has the axes of the weight, each divided by the length of a block. With is_swizzled_scales,
// the scales of a matrix of MXTensor and NVFP4Tensor are in tiles (scale_tiles.hpp).
#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "base/text.hpp"
#include "common/fail.hpp"
#include "dequant/fp4.hpp"
#include "dequant/integers.hpp"
#include "dequant/scale_tiles.hpp"
#include "dequant/scale_type.hpp"
#include "dequant/scaled.hpp"
#include "schemes/claims.hpp"
#include "schemes/embedded_json.hpp"
#include "schemes/parts.hpp"
#include "schemes/scheme.hpp"

namespace safetensors::weights {
namespace {

enum class AoKind : std::uint8_t { float8, integers, mxfp8, mxfp4, nvfp4 };

/// The tensors of a weight that decoding needs; the last may be absent.
struct AoTensors {
  const SourceTensor* qdata = nullptr;
  const SourceTensor* scale = nullptr;
  const SourceTensor* offset = nullptr;  ///< zero_point or per_tensor_scale
  /// Scales of activations. They are kept with the weight.
  std::array<const SourceTensor*, 2> others{};
  /// act_pre_scale, by which inputs are multiplied: it multiplies the columns of the weight.
  const SourceTensor* columns = nullptr;
  std::size_t prefix = 0;  ///< length of the names before "qdata", "scale" ...

  [[nodiscard]] std::vector<Part> list() const {
    std::vector<Part> parts;
    for (const SourceTensor* tensor : {qdata, scale, offset, others[0], others[1], columns}) {
      if (tensor != nullptr) parts.push_back({tensor->info->name.substr(prefix), tensor});
    }
    return parts;
  }
};

/// How the weight divides into blocks that share a scale.
struct AoBlocks {
  std::uint64_t rows = 1;
  std::uint64_t columns = 1;
  bool is_single = false;  ///< one scale for all matrices
  ScaleTiles tiles{};      ///< if the scales are in tiles
};

bool is_fp4(AoKind kind) noexcept { return kind == AoKind::mxfp4 || kind == AoKind::nvfp4; }

/// Returns the shape of the values. Two codes of four bits are one U8.
std::vector<std::uint64_t> shape_of(const SourceTensor& qdata, AoKind kind) {
  const auto& stored = qdata.info->shape;
  std::vector<std::uint64_t> shape(stored.begin(), stored.end());
  const bool has_bytes = is_fp4(kind) && qdata.info->dtype == Dtype::kU8;
  if (has_bytes && !shape.empty()) shape.back() *= 2;
  return shape;
}

/// Returns the bytes of a part before the first of these rows, if each row has as many.
std::uint64_t bytes_before(const SourceTensor& part, std::uint64_t all, RowRange rows) {
  return part.info->nbytes() / all * rows.begin;
}

class AoWeight final : public SchemeWeight {
 public:
  AoWeight(const AoTensors& tensors, AoKind kind, const AoBlocks& blocks)
      : tensors_(tensors), blocks_(blocks), kind_(kind) {}

  std::vector<Part> parts() const override { return tensors_.list(); }

  void decode(const WeightInfo& info, RowRange rows, Output output, std::byte* to,
              const Interrupt& interrupt) const override {
    const std::uint64_t all = row_count(info.shape);
    const StoredBytes codes = read_rows(*tensors_.qdata, all, rows, interrupt);
    const std::uint64_t begin = bytes_before(*tensors_.qdata, all, rows);
    // Rows that have scales of their own need no others.
    const ScaleTiles& tiles = blocks_.tiles;
    const bool has_own = blocks_.rows == 1 && !blocks_.is_single && !tiles.used();
    const bool has_own_offsets = has_own && kind_ == AoKind::integers;
    StoredBytes scales;
    std::uint64_t scale_begin = 0;
    if (tiles.used()) {
      scale_begin = tiles.band_of(rows.begin);
      scales = tensors_.scale->bytes(scale_begin, tiles.band_of(rows.end - 1) + tiles.band_bytes(),
                                     interrupt);
    } else if (has_own) {
      scale_begin = bytes_before(*tensors_.scale, all, rows);
      scales = read_rows(*tensors_.scale, all, rows, interrupt);
    } else {
      scales = tensors_.scale->bytes(interrupt);
    }
    StoredBytes offsets;
    std::uint64_t offset_begin = 0;
    if (tensors_.offset != nullptr) {
      offsets = has_own_offsets ? read_rows(*tensors_.offset, all, rows, interrupt)
                                : tensors_.offset->bytes(interrupt);
      offset_begin = has_own_offsets ? bytes_before(*tensors_.offset, all, rows) : 0;
    }
    const std::uint64_t count = rows.end - rows.begin;
    // One scale for all makes all rows those of one matrix.
    const std::uint64_t matrix =
        blocks_.is_single ? all : static_cast<std::uint64_t>(info.shape.end()[-2]);
    const std::uint64_t block_rows = blocks_.is_single ? all : blocks_.rows;
    const std::uint64_t columns = row_length(info.shape);
    switch (kind_) {
      case AoKind::float8:
      case AoKind::mxfp8: {
        ScaledRows from;
        from.type = tensors_.qdata->info->dtype;
        from.scale_type = tiles.used() ? Dtype::kF8E8M0 : tensors_.scale->info->dtype;
        from.tiles = tiles;
        from.codes = codes.bytes.data();
        from.scales = scales.bytes.data();
        from.columns = columns;
        from.first_row = has_own ? 0 : rows.begin;
        from.matrix_rows = has_own ? count : matrix;
        from.block_rows = block_rows;
        from.block_columns = blocks_.columns;
        dequantize_scaled(from, count, output, to, interrupt);
        return;
      }
      case AoKind::integers: {
        const std::vector<float> factors = floats_of(tensors_.columns, interrupt);
        IntegerMatrices from;
        if (!factors.empty()) from.column_scales = factors.data();
        from.packing = Packing::bytes;
        from.bits = 8;
        from.matrix_rows = matrix;
        from.columns = columns;
        from.rows_per_scale = block_rows;
        from.groups = columns / blocks_.columns;
        from.group = blocks_.columns;
        from.scale_type = scale_type_of(tensors_.scale->info->dtype);
        if (tensors_.offset != nullptr) {
          from.zero_type = zero_type_of(tensors_.offset->info->dtype);
        }
        from.codes = {codes.bytes.data(), begin};
        from.codes_end = codes.bytes.data() + codes.bytes.size();
        from.scales = {scales.bytes.data(), scale_begin};
        from.zeros = {offsets.bytes.data(), offset_begin};
        dequantize_integers(from, rows.begin, count, output, to, interrupt);
        return;
      }
      case AoKind::mxfp4:
      case AoKind::nvfp4: {
        static constexpr std::byte kOne[4] = {{}, {}, std::byte{0x80}, std::byte{0x3F}};  // 1.0F
        Fp4Matrices from;
        from.scale = kind_ == AoKind::mxfp4 ? Fp4Scale::e8m0 : Fp4Scale::e4m3_multiplied;
        from.tiles = tiles;
        from.columns = columns;
        from.codes = {codes.bytes.data(), begin};
        from.scales = {scales.bytes.data(), scale_begin};
        from.global_scales = {tensors_.offset != nullptr ? offsets.bytes.data() : kOne, 0};
        from.rows_per_global_scale = all;
        dequantize_fp4(from, rows.begin, count, output, to, interrupt);
        return;
      }
    }
  }

 protected:
  void describe(WeightInfo& info) const override {
    constexpr std::string_view kNames[] = {"torchao_fp8", "torchao_int8", "torchao_mxfp8",
                                           "torchao_mxfp4", "torchao_nvfp4"};
    info.shape.clear();
    for (const std::uint64_t size : shape_of(*tensors_.qdata, kind_)) {
      info.shape.push_back(static_cast<std::int64_t>(size));  // fits: bytes of the file
    }
    info.scheme = "torchao";
    info.code = code::kTorchao;
    info.type_name = kNames[static_cast<std::size_t>(kind_)];
    const bool symmetric = kind_ != AoKind::integers || tensors_.offset == nullptr;
    const std::uint8_t bits = is_fp4(kind_) ? 4 : 8;
    info.scheme_params = {bits, symmetric, blocks_.rows, blocks_.columns};
  }
  bool stores_rows() const noexcept override {
    const bool has_whole = kind_ == AoKind::nvfp4 && tensors_.offset != nullptr;
    return !blocks_.is_single && !blocks_.tiles.used() && !has_whole &&
           tensors_.columns == nullptr &&
           std::ranges::count(tensors_.others, nullptr) == std::ssize(tensors_.others);
  }

 private:
  AoTensors tensors_;
  AoBlocks blocks_;
  AoKind kind_;
};

/// The description of a weight, which comes from the file.
class Description {
 public:
  Description(Json json, const SourceTensor& qdata) : json_(std::move(json)), qdata_(qdata) {}

  [[nodiscard]] const std::string& type() const {
    const Json* type = json_.find("_type");
    if (type == nullptr || type->as_string() == nullptr) bad("it has no _type");
    return *type->as_string();
  }
  /// Returns an attribute, or nullptr.
  [[nodiscard]] const Json* find(std::string_view key) const {
    const Json* data = json_.find("_data");
    return data == nullptr ? nullptr : data->find(key);
  }
  /// Returns the name of a type of torch: {"_type": "torch.dtype", "_data": "bfloat16"}.
  [[nodiscard]] std::string dtype(std::string_view key) const {
    const Json* object = find(key);
    const Json* name = object == nullptr ? nullptr : object->find("_data");
    if (name == nullptr || name->as_string() == nullptr) bad(std::string(key) + " is no type");
    return *name->as_string();
  }
  [[nodiscard]] bool is_swizzled() const {
    const Json* value = find("is_swizzled_scales");
    if (value == nullptr || value->is_null()) return false;
    if (value->as_bool() == nullptr) bad("is_swizzled_scales is no boolean");
    return *value->as_bool();
  }
  [[noreturn]] void bad(const std::string& what) const {
    fail(Errc::quant_mismatch, qdata_.file->path(), qdata_.info->name,
         "its description by torchao: " + what);
  }

 private:
  Json json_;
  const SourceTensor& qdata_;
};

bool is_one_of(Dtype dtype, std::initializer_list<Dtype> types) noexcept {
  return std::ranges::find(types, dtype) != types.end();
}

bool fits_types(const AoTensors& tensors, AoKind kind) noexcept {
  const Dtype codes = tensors.qdata->info->dtype;
  const Dtype scale = tensors.scale->info->dtype;
  const bool is_float = is_scale_type(scale);
  const bool is_power = is_one_of(scale, {Dtype::kF8E8M0, Dtype::kU8});
  switch (kind) {
    case AoKind::float8:
      return is_f8(codes) && is_float;
    case AoKind::integers:
      return codes == Dtype::kI8 && is_float &&
             (tensors.offset == nullptr ||
              zero_type_of(tensors.offset->info->dtype) != ZeroPoints::none);
    case AoKind::mxfp8:
      return is_one_of(codes, {Dtype::kF8E4M3, Dtype::kF8E5M2}) && is_power;
    case AoKind::mxfp4:
      return is_one_of(codes, {Dtype::kU8, Dtype::kF4}) && is_power;
    case AoKind::nvfp4:
      break;
  }
  return is_one_of(codes, {Dtype::kU8, Dtype::kF4}) && scale == Dtype::kF8E4M3 &&
         (tensors.offset == nullptr || (tensors.offset->info->dtype == Dtype::kF32 &&
                                        tensors.offset->info->nbytes() == sizeof(float)));
}

/// Returns the blocks of a matrix whose scales are in tiles: the description states their length.
AoBlocks find_tiles_of(const AoTensors& tensors, AoKind kind, const Description& description) {
  const std::vector<std::uint64_t> shape = shape_of(*tensors.qdata, kind);
  const Json* stated = description.find("block_size");
  const std::int64_t* size = stated == nullptr ? nullptr : stated->as_int64();
  if (size == nullptr || *size < 1) description.bad("block_size is no positive integer");
  const auto group = static_cast<std::uint64_t>(*size);
  if (shape.front() == 0 || shape.back() == 0 || shape.back() % group != 0) {
    mismatch(tensors.list(), "scales must divide qdata evenly");
  }
  AoBlocks blocks{1, group, false, {shape.front(), shape.back() / group}};
  if (tensors.scale->info->nbytes() != blocks.tiles.matrix_bytes()) {
    mismatch(tensors.list(), "the scales are not those of tiles of 128 x 4: " +
                                 std::to_string(blocks.tiles.matrix_bytes()) + " bytes");
  }
  return blocks;
}

/// Returns the blocks that the shapes show, checked against those that the description states.
AoBlocks find_blocks_of(const AoTensors& tensors, AoKind kind, const Description& description) {
  const bool has_bytes = kind != AoKind::float8 && kind != AoKind::integers;
  if (has_bytes && description.is_swizzled()) return find_tiles_of(tensors, kind, description);
  const auto bad = [&](const std::string& what) { mismatch(tensors.list(), what); };
  const std::vector<std::uint64_t> shape = shape_of(*tensors.qdata, kind);
  const auto& scales = tensors.scale->info->shape;
  if (shape.size() < 2 || std::ranges::find(shape, 0U) != shape.end()) {
    bad("qdata must be a matrix, or a stack of matrices");
  }
  AoBlocks blocks;
  std::vector<std::uint64_t> lengths = shape;  // of a block along each axis
  blocks.is_single = std::ranges::all_of(scales, [](std::uint64_t size) { return size == 1; });
  if (!blocks.is_single) {
    if (scales.size() != shape.size()) bad("scale must have the axes of qdata");
    for (std::size_t i = 0; i < shape.size(); ++i) {
      if (scales[i] == 0 || shape[i] % scales[i] != 0) bad("scales must divide qdata evenly");
      lengths[i] = shape[i] / scales[i];
      if (i + 2 < shape.size() && lengths[i] != 1) bad("matrices of a stack must have own scales");
    }
  }
  blocks.rows = lengths.end()[-2];
  blocks.columns = lengths.back();
  if (kind == AoKind::integers && tensors.offset != nullptr &&
      !std::ranges::equal(tensors.offset->info->shape, scales)) {
    bad("zero_point must have the shape of scale");
  }
  const Json* stated = description.find("block_size");
  if (stated == nullptr || stated->is_null()) return blocks;
  std::vector<std::uint64_t> sizes;
  if (const Json::Array* list = stated->as_array()) {
    for (const Json& size : *list) {
      const std::int64_t* number = size.as_int64();
      if (number == nullptr || *number < 1) description.bad("block_size has no positive integers");
      sizes.push_back(static_cast<std::uint64_t>(*number));
    }
  } else {
    const std::int64_t* number = stated->as_int64();
    if (number == nullptr || *number < 1) description.bad("block_size is no positive integer");
    sizes.assign(shape.size(), 1);
    sizes.back() = static_cast<std::uint64_t>(*number);
  }
  if (sizes != lengths) {
    bad("the shapes are those of blocks " +
        safetensors::shown(std::span<const std::uint64_t>(lengths)) + ", and block_size says " +
        safetensors::shown(std::span<const std::uint64_t>(sizes)));
  }
  return blocks;
}

/// Returns how a type of torchao is decoded, or nothing and why not.
std::optional<AoKind> ao_kind_of(const Description& description, std::size_t axes,
                                 std::string& refusal) {
  const std::string& type = description.type();
  refusal = "torchao " + clipped(type);
  if (type == "Float8Tensor") return AoKind::float8;
  if (type == "Int8Tensor" || type == "IntxUnpackedToInt8Tensor") return AoKind::integers;
  if (type != "MXTensor" && type != "NVFP4Tensor") return std::nullopt;
  if (description.is_swizzled() && axes != 2) {
    refusal += " (swizzled scales of a stack)";
    return std::nullopt;
  }
  if (type == "NVFP4Tensor") return AoKind::nvfp4;
  const std::string element = description.dtype("elem_dtype");
  if (element == "float8_e4m3fn" || element == "float8_e5m2") return AoKind::mxfp8;
  if (element == "float4_e2m1fn_x2") return AoKind::mxfp4;
  refusal += " (" + clipped(element) + ")";
  return std::nullopt;
}

/// The name of a weight, and how the names of its tensors begin.
struct AoNames {
  std::string weight;
  std::string_view prefix;
};

AoNames names_of(std::string_view qdata) {
  const std::string_view prefix = qdata.substr(0, qdata.size() - std::string_view("qdata").size());
  if (prefix.ends_with(':')) return {std::string(prefix.substr(0, prefix.size() - 1)), prefix};
  // "M._weight_" belongs to "M.weight".
  const std::size_t dot = prefix.rfind('.');
  const std::size_t begin = dot == std::string_view::npos ? 0 : dot + 1;
  if (prefix.size() < begin + 3 || prefix[begin] != '_') return {};
  std::string weight(prefix.substr(0, begin));
  weight += prefix.substr(begin + 1, prefix.size() - begin - 2);
  return {std::move(weight), prefix};
}

}  // namespace

void claim_torchao(const SourceTensor& qdata, Checkpoint& checkpoint) {
  const AoNames names = names_of(qdata.info->name);
  if (names.weight.empty()) return;
  const Checkpoint::Metadata& metadata = checkpoint.metadata_of(qdata);
  const auto text = metadata.find(names.weight);
  if (text == metadata.end() || !metadata.contains("tensor_names")) return;
  const Description description(parse_description(text->second, qdata), qdata);
  std::string refusal;
  const auto kind = ao_kind_of(description, qdata.info->shape.size(), refusal);
  if (!kind) {
    checkpoint.refuse(qdata, "scheme \"" + refusal + "\" is not decoded");
    return;
  }
  AoTensors tensors;
  tensors.qdata = &qdata;
  tensors.scale = checkpoint.find(names.prefix, "scale");
  tensors.offset =
      checkpoint.find(names.prefix, *kind == AoKind::nvfp4 ? "per_tensor_scale" : "zero_point");
  tensors.prefix = names.prefix.size();
  if (*kind == AoKind::nvfp4) {
    tensors.others[0] = checkpoint.find(names.prefix, "act_per_tensor_scale");
  } else {
    tensors.others = {checkpoint.find(names.prefix, "act_quant_scale"),
                      checkpoint.find(names.prefix, "act_quant_zero_point")};
    if (*kind == AoKind::integers) tensors.columns = checkpoint.find(names.prefix, "act_pre_scale");
  }
  if (tensors.scale == nullptr) mismatch(tensors.list(), "scale is missing");
  if (!fits_types(tensors, *kind)) {
    mismatch(tensors.list(), "these are not the types of " + refusal);
  }
  const AoBlocks blocks = find_blocks_of(tensors, *kind, description);
  check_column_scales(tensors.list(), tensors.columns, qdata.info->shape.back());
  if (is_fp4(*kind)) {
    const std::uint64_t group = *kind == AoKind::mxfp4 ? 32 : 16;
    // One byte of scales for each `group` codes of half a byte.
    const bool fits =
        blocks.tiles.used() || tensors.scale->info->nbytes() * group == qdata.info->nbytes() * 2;
    if (blocks.columns != group || !fits) {
      checkpoint.refuse(qdata, "scheme \"" + refusal + " (blocks of " +
                                   std::to_string(blocks.rows) + " x " +
                                   std::to_string(blocks.columns) + ")\" is not decoded");
      return;
    }
  }
  checkpoint.claim(qdata, names.weight, std::make_unique<AoWeight>(tensors, *kind, blocks));
}

}  // namespace safetensors::weights
