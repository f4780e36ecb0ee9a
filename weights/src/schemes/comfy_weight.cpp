#include "schemes/comfy_weight.hpp"

#include <string>

#include "dequant/fp4.hpp"
#include "dequant/grouped.hpp"
#include "dequant/rotated.hpp"
#include "dequant/scale_type.hpp"
#include "dequant/scaled.hpp"

namespace safetensors::weights {
namespace {

using Shape = std::span<const std::uint64_t>;

class ComfyWeight final : public SchemeWeight {
 public:
  ComfyWeight(const ComfyTensors& tensors, const ComfyForm& form)
      : tensors_(tensors), form_(form) {}

  std::vector<Part> parts() const override { return tensors_.list(); }

  void decode(const WeightInfo& /*info*/, RowRange rows, Output output, std::byte* to,
              const Interrupt& interrupt) const override {
    switch (tensors_.kind) {
      case ComfyKind::nvfp4:
        return decode_nvfp4(rows, output, to, interrupt);
      case ComfyKind::mxfp8:
        return decode_mxfp8(rows, output, to, interrupt);
      case ComfyKind::int8:
      case ComfyKind::w4a4:
      case ComfyKind::w4a8:
        return decode_rotated(rows, output, to, interrupt);
      case ComfyKind::awq:
        return decode_awq(rows, output, to, interrupt);
    }
  }

 protected:
  void describe(WeightInfo& info) const override {
    constexpr std::string_view kNames[] = {"nvfp4", "mxfp8", "int8_rotated", "w4a4", "w4a8", "awq"};
    info.shape = signed_shape(*tensors_.codes);
    info.shape.back() = static_cast<std::int64_t>(form_.columns);
    if (info.shape.size() == 2) info.shape.front() = static_cast<std::int64_t>(form_.rows);
    info.scheme = "comfy";
    info.code = code::kComfy;
    info.type_name = "comfy_" + std::string(kNames[static_cast<std::size_t>(tensors_.kind)]);
    info.scheme_params = {form_.bits, tensors_.kind != ComfyKind::awq, 1, form_.group};
  }
  bool stores_rows() const noexcept override { return false; }

 private:
  [[nodiscard]] StoredBytes codes(RowRange rows, const Interrupt& interrupt) const {
    return read_rows(*tensors_.codes, tensors_.stored_rows(), rows, interrupt);
  }
  [[nodiscard]] ScaleTiles tiles() const noexcept {
    return {tensors_.codes->info->shape.end()[-2], form_.columns / form_.group};
  }
  /// Reads the tiles that have scales of these rows.
  [[nodiscard]] StoredBytes bands(const ScaleTiles& tiles, RowRange rows,
                                  const Interrupt& interrupt) const {
    return tensors_.scale->bytes(tiles.band_of(rows.begin),
                                 tiles.band_of(rows.end - 1) + tiles.band_bytes(), interrupt);
  }

  void decode_nvfp4(RowRange rows, Output output, std::byte* to, const Interrupt& interrupt) const {
    const StoredBytes read = codes(rows, interrupt);
    Fp4Matrices from;
    from.scale = Fp4Scale::e4m3_multiplied;
    from.high_first = true;
    from.columns = form_.columns;
    from.tiles = tiles();
    const StoredBytes scales = bands(from.tiles, rows, interrupt);
    const StoredBytes global = tensors_.more[0]->bytes(interrupt);
    const std::vector<float> columns = floats_of(tensors_.more[1], interrupt);
    from.codes = {read.bytes.data(), rows.begin * (form_.columns / 2)};
    from.scales = {scales.bytes.data(), from.tiles.band_of(rows.begin)};
    from.global_scales = {global.bytes.data(), 0};
    from.rows_per_global_scale = tensors_.stored_rows() / (global.bytes.size() / sizeof(float));
    from.column_scales = columns.empty() ? nullptr : columns.data();
    dequantize_fp4(from, rows.begin, rows.end - rows.begin, output, to, interrupt);
  }

  void decode_mxfp8(RowRange rows, Output output, std::byte* to, const Interrupt& interrupt) const {
    const StoredBytes read = codes(rows, interrupt);
    ScaledRows from;
    from.type = tensors_.codes->info->dtype;
    from.scale_type = Dtype::kF8E8M0;
    from.tiles = tiles();
    const StoredBytes scales = bands(from.tiles, rows, interrupt);
    from.codes = read.bytes.data();
    from.scales = scales.bytes.data();
    from.columns = form_.columns;
    from.first_row = rows.begin;
    from.matrix_rows = from.tiles.matrix_rows;
    from.block_columns = form_.group;
    dequantize_scaled(from, rows.end - rows.begin, output, to, interrupt);
  }

  void decode_rotated(RowRange rows, Output output, std::byte* to,
                      const Interrupt& interrupt) const {
    const StoredBytes read = codes(rows, interrupt);
    RotatedRows from;
    from.codes = read.bytes.data();
    from.columns = form_.columns;
    from.rotation = form_.rotation;
    const bool is_w4a8 = tensors_.kind == ComfyKind::w4a8;
    const SourceTensor& scale = is_w4a8 ? *tensors_.more[0] : *tensors_.scale;
    const bool is_one = count_of(scale) == 1 && tensors_.stored_rows() != 1;
    const std::vector<float> scales =
        is_one ? floats_of(&scale, interrupt) : floats_of(&scale, interrupt, rows);
    from.scales = scales.data();
    from.scale_step = is_one ? 0 : 1;
    StoredBytes relative;
    std::vector<float> codebook;
    if (is_w4a8) {
      from.packing = form_.bits == 4 ? RotatedCodes::four : RotatedCodes::six;
      relative = read_rows(*tensors_.scale, tensors_.stored_rows(), rows, interrupt);
      codebook = floats_of(tensors_.more[1], interrupt);
      from.relative = relative.bytes.data();
      from.relative_is_f32 = tensors_.scale->info->dtype == Dtype::kF32;
      from.group = form_.group;
      from.codebook = codebook.empty() ? nullptr : codebook.data();
    } else {
      from.packing = tensors_.kind == ComfyKind::w4a4 ? RotatedCodes::nibbles : RotatedCodes::bytes;
    }
    dequantize_rotated(from, rows.end - rows.begin, output, to, interrupt);
  }

  void decode_awq(RowRange rows, Output output, std::byte* to, const Interrupt& interrupt) const {
    const StoredBytes read = codes(rows, interrupt);
    const Dtype type = tensors_.scale->info->dtype;
    const std::uint64_t size = bit_size(type) / 8;
    const StoredColumns scales =
        tensors_.scale->columns(size * rows.begin, size * rows.end, interrupt);
    const StoredColumns zeros =
        tensors_.more[0]->columns(size * rows.begin, size * rows.end, interrupt);
    GroupedRows from;
    from.packing = GroupedPacking::nibbles;
    from.codes = read.bytes.data();
    from.columns = form_.columns;
    from.group = form_.group;
    from.scale_type = scale_type_of(type);
    from.scales = scales.stored.bytes.data();
    from.offsets = zeros.stored.bytes.data();
    from.row_step = size;
    from.group_step = scales.stride;
    dequantize_grouped(from, rows.end - rows.begin, output, to, interrupt);
  }

  ComfyTensors tensors_;
  ComfyForm form_;
};

}  // namespace

std::unique_ptr<StoredWeight> comfy_weight(const ComfyTensors& tensors, const ComfyForm& form) {
  return std::make_unique<ComfyWeight>(tensors, form);
}

}  // namespace safetensors::weights
