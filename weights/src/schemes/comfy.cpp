// Weights of ComfyUI's quantised files, by their markers. The layouts are comfy-kitchen's; N and K
// are rows and columns, which files pad with zeros for nvfp4 and mxfp8.
//
//     nvfp4            codes               U8 [.., N, K / 2], the first of two in the high nibble
//                      weight_scale        F8_E4M3 in tiles, one for 16 columns
//                      weight_scale_2      F32, one or one for each matrix
//     mxfp8            codes               F8_E4M3 [.., N, K]
//                      weight_scale        E8M0 in tiles, one for 32 columns
//     int8_tensorwise  codes               I8 [.., N, K]
//                      weight_scale        F32, F16 or BF16, one for each row or one
//     convrot_w4a4     codes               I8 [N, K / 2], the first in the low nibble
//                      weight_scale        as above, one for each row
//     asym_w4a8_int8   codes               I8 [N, K / 2 or K * 3 / 4]
//                      weight_s_rel        F8_E4M3 or F32 [N, K / group]
//                      weight_s_channel    F32 [N]
//                      weight_codebook     F32 [16], for codes of 4 bits
//     awq_w4a16        codes               I8 [N, K / 2], the first in the low nibble
//                      weight_scale        F32, F16 or BF16 [K / 64, N]
//                      weight_zeros        as weight_scale
//
// src/dequant has the formulas: fp4.hpp, scaled.hpp, scale_tiles.hpp, rotated.hpp, grouped.hpp.
// The types float8_e4m3fn, float8_e5m2 and int8_tensorwise without convrot are those of others:
// only their marker is checked here.
#include <algorithm>
#include <bit>
#include <string>

#include "base/text.hpp"
#include "common/divide_up.hpp"
#include "dequant/scale_tiles.hpp"
#include "schemes/claims.hpp"
#include "schemes/comfy_markers.hpp"
#include "schemes/comfy_weight.hpp"

namespace safetensors::weights {
namespace {

using Shape = std::span<const std::uint64_t>;

std::uint64_t rounded_up(std::uint64_t size, std::uint64_t step) noexcept {
  return divide_up(size, step) * step;
}

/// Checks the tensors of a marked module, and claims them.
class ComfyClaim {
 public:
  ComfyClaim(const ComfyMarker& marker, Checkpoint& checkpoint)
      : marker_(marker), checkpoint_(checkpoint) {
    tensors_.codes = marker.weight;
    tensors_.scale = part(".weight_scale");
  }

  void nvfp4() {
    tensors_.kind = ComfyKind::nvfp4;
    tensors_.more = {part(".weight_scale_2"), part(".pre_quant_scale")};
    need({Dtype::kU8, Dtype::kI8}, {Dtype::kF8E4M3, Dtype::kU8});
    form_.columns = codes().back() * 2;
    check_tiles(16);
    const SourceTensor* global = tensors_.more[0];
    if (global == nullptr) bad("weight_scale_2 is missing");
    if (global->info->dtype != Dtype::kF32 || !is_whole_scale(*global, *tensors_.codes)) {
      bad("there must be one weight_scale_2 in F32, or one for each matrix");
    }
    check_column_scales(tensors_.list(), tensors_.more[1], form_.columns);
    finish(4);
  }

  void mxfp8() {
    tensors_.kind = ComfyKind::mxfp8;
    need({Dtype::kF8E4M3}, {Dtype::kF8E8M0, Dtype::kU8});
    form_.columns = codes().back();
    check_tiles(32);
    finish(8);
  }

  void rotated_int8() {
    tensors_.kind = ComfyKind::int8;
    need({Dtype::kI8}, {Dtype::kF32, Dtype::kF16, Dtype::kBF16});
    form_.columns = codes().back();
    const bool is_one = count_of(*tensors_.scale) == 1;
    if (!is_one && !has_row_scales(*tensors_.scale)) bad("there must be a scale for each row");
    form_.group = form_.columns;
    if (rotate()) finish(8);
  }

  void w4a4() {
    tensors_.kind = ComfyKind::w4a4;
    need({Dtype::kI8, Dtype::kU8}, {Dtype::kF32, Dtype::kF16, Dtype::kBF16});
    form_.columns = codes().back() * 2;
    if (!has_row_scales(*tensors_.scale)) bad("there must be a scale for each row");
    form_.group = form_.columns;
    if (rotate()) finish(4);
  }

  void w4a8() {
    tensors_.kind = ComfyKind::w4a8;
    tensors_.scale = part(".weight_s_rel");
    tensors_.more = {part(".weight_s_channel"), part(".weight_codebook")};
    need({Dtype::kI8, Dtype::kU8}, {Dtype::kF8E4M3, Dtype::kU8, Dtype::kF32});
    const Shape relative = tensors_.scale->info->shape;
    const SourceTensor* channel = tensors_.more[0];
    if (channel == nullptr) bad("weight_s_channel is missing");
    if (codes().size() != 2 || relative.size() != 2 || relative[0] != codes()[0] ||
        channel->info->dtype != Dtype::kF32 || !has_row_scales(*channel)) {
      bad("weight_s_rel and weight_s_channel must have the weight's rows");
    }
    form_.group = marker_.group_size.value_or(16);
    if (relative[1] > (std::uint64_t{1} << 32) / form_.group) bad("the rows are too long");
    form_.columns = relative[1] * form_.group;
    const std::uint64_t bits = form_.columns == 0 ? 0 : codes()[1] * 8 / form_.columns;
    if ((bits != 4 && bits != 6) || form_.columns % 4 != 0 ||
        codes()[1] != form_.columns / 2 + (bits == 6 ? form_.columns / 4 : 0)) {
      bad("rows of " + std::to_string(form_.columns) + " codes in groups of " +
          std::to_string(form_.group) + " have neither 4 nor 6 bits");
    }
    const SourceTensor* codebook = tensors_.more[1];
    if (codebook != nullptr &&
        (bits != 4 || codebook->info->dtype != Dtype::kF32 || count_of(*codebook) != 16)) {
      bad("weight_codebook must have 16 values in F32, for codes of 4 bits");
    }
    if (rotate()) finish(static_cast<std::uint8_t>(bits));
  }

  void awq() {
    tensors_.kind = ComfyKind::awq;
    tensors_.more[0] = part(".weight_zeros");
    need({Dtype::kI8, Dtype::kU8}, {Dtype::kF32, Dtype::kF16, Dtype::kBF16});
    form_.columns = codes().back() * 2;
    form_.group = marker_.group_size.value_or(64);
    const Shape scales = tensors_.scale->info->shape;
    const SourceTensor* zeros = tensors_.more[0];
    if (zeros == nullptr) bad("weight_zeros is missing");
    if (codes().size() != 2 || scales.size() != 2 || scales[1] != codes()[0] ||
        form_.columns % form_.group != 0 || scales[0] != form_.columns / form_.group ||
        zeros->info->dtype != tensors_.scale->info->dtype ||
        !std::ranges::equal(zeros->info->shape, scales)) {
      bad("scales and zeros must be transposed, with one for each " + std::to_string(form_.group) +
          " columns");
    }
    finish(4);
  }

  /// Checks a weight that another scheme decodes.
  void check_types(std::initializer_list<Dtype> codes) {
    need(codes, {Dtype::kF32, Dtype::kF16, Dtype::kBF16});
  }

 private:
  [[nodiscard]] const SourceTensor* part(std::string_view ending) const {
    return checkpoint_.find(marker_.module(), ending);
  }
  [[nodiscard]] Shape codes() const noexcept { return tensors_.codes->info->shape; }
  [[noreturn]] void bad(const std::string& what) const {
    mismatch(tensors_.list(), marker_.where + " says " + clipped(marker_.format) + ", but " + what);
  }

  void need(std::initializer_list<Dtype> code_types, std::initializer_list<Dtype> scale_types) {
    const auto is_one_of = [](const SourceTensor& tensor, std::initializer_list<Dtype> types) {
      return std::ranges::find(types, tensor.info->dtype) != types.end();
    };
    if (tensors_.scale == nullptr) bad("the scales are missing");
    if (!is_one_of(*tensors_.codes, code_types) || !is_one_of(*tensors_.scale, scale_types)) {
      bad("the types are others");
    }
    const std::size_t axes = codes().size();
    if (axes < 2 || axes > 3) bad("the weight must be a matrix, or a stack of matrices");
    if (tensors_.codes->info->nbytes() == 0) bad("the weight is empty");
    if (codes().back() > std::uint64_t{1} << 32) bad("the rows are too long");
  }

  /// Returns whether there is a scale for each row: [.., N] or [.., N, 1].
  [[nodiscard]] bool has_row_scales(const SourceTensor& scale) const {
    Shape shape = scale.info->shape;
    const Shape rows = codes().first(codes().size() - 1);
    if (shape.size() == codes().size() && shape.back() == 1) shape = shape.first(shape.size() - 1);
    return std::ranges::equal(shape, rows);
  }

  void check_tiles(std::uint64_t group) {
    form_.group = group;
    const Shape scales = tensors_.scale->info->shape;
    const std::uint64_t rows = rounded_up(codes().end()[-2], ScaleTiles::kRows);
    const std::uint64_t columns = rounded_up(form_.columns / group, ScaleTiles::kColumns);
    if (form_.columns % group != 0 || scales.size() != codes().size() || scales.end()[-2] != rows ||
        scales.back() != columns || (codes().size() == 3 && scales.front() != codes().front())) {
      bad("the scales are not those of tiles of 128 x 4: [.., " + std::to_string(rows) + ", " +
          std::to_string(columns) + "] were expected");
    }
  }

  /// Sets the rotation. Returns whether it is one that can be undone; else the module is refused.
  bool rotate() {
    const std::uint64_t size = marker_.rotation;
    const bool is_power_of_four = std::has_single_bit(size) && std::countr_zero(size) % 2 == 0;
    if (is_power_of_four && size >= 4 && size <= 1024 && form_.columns % size == 0) {
      form_.rotation = size;
      return true;
    }
    checkpoint_.refuse_module(*marker_.weight, marker_.where + " says " + clipped(marker_.format) +
                                                   " with rotations of " + std::to_string(size) +
                                                   " columns, which are not decoded for rows of " +
                                                   std::to_string(form_.columns));
    return false;
  }

  void finish(std::uint8_t bits) {
    form_.bits = bits;
    form_.rows = tensors_.stored_rows();
    cut_padding();
    checkpoint_.claim(*marker_.weight, std::string(marker_.weight->info->name),
                      comfy_weight(tensors_, form_));
    checkpoint_.settle(marker_.module());
  }

  /// Rows are padded to 16 or 32, which only the bias tells.
  void cut_padding() {
    const std::uint64_t step = tensors_.kind == ComfyKind::nvfp4   ? 16
                               : tensors_.kind == ComfyKind::mxfp8 ? 32
                                                                   : 1;
    const SourceTensor* bias = part(".bias");
    if (step == 1 || bias == nullptr || codes().size() != 2 || bias->info->shape.size() != 1)
      return;
    const std::uint64_t rows = bias->info->shape[0];
    if (rows < form_.rows && rounded_up(rows, step) == form_.rows) form_.rows = rows;
  }

  const ComfyMarker& marker_;
  Checkpoint& checkpoint_;
  ComfyTensors tensors_;
  ComfyForm form_;
};

void claim_marked(const ComfyMarker& marker, Checkpoint& checkpoint) {
  ComfyClaim claim(marker, checkpoint);
  const std::string& format = marker.format;
  if (format == "float8_e4m3fn") {
    claim.check_types({Dtype::kF8E4M3});
  } else if (format == "float8_e5m2") {
    claim.check_types({Dtype::kF8E5M2});
  } else if (format == "int8_tensorwise" && !marker.is_rotated) {
    claim.check_types({Dtype::kI8});
  } else if (format == "int8_tensorwise") {
    claim.rotated_int8();
  } else if (format == "nvfp4") {
    claim.nvfp4();
  } else if (format == "mxfp8") {
    claim.mxfp8();
  } else if (format == "convrot_w4a4") {
    claim.w4a4();
  } else if (format == "asym_w4a8_int8") {
    claim.w4a8();
  } else if (format == "awq_w4a16") {
    claim.awq();
  } else {
    checkpoint.refuse_module(
        *marker.weight, marker.where + " says the format \"" + clipped(format) +
                            "\", which is not decoded. get_tensor() reads the parts as stored");
  }
}

}  // namespace

void claim_comfy(Checkpoint& checkpoint) {
  for (const ComfyMarker& marker : read_comfy_markers(checkpoint)) {
    claim_marked(marker, checkpoint);
  }
}

}  // namespace safetensors::weights
