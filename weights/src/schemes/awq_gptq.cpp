// AWQ (gemm) and GPTQ: codes in words of 32 bits, and scales and zeros for groups of columns. Both
// store the weight [N, K] transposed:
//
//               awq           gptq
//     qweight   [K, N / 8]    [K * bits / 32, N]
//     qzeros    [G, N / 8]    [G, N * bits / 32]     I32; awq: may be absent
//     scales    [G, N]        [G, N]                 F16, BF16 or F32
//     g_idx                   [K], may be absent     I32: the group of each column
//
// src/dequant/columns.hpp has the formula and the order of the codes.
#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "base/checked.hpp"
#include "base/text.hpp"
#include "common/divide_up.hpp"
#include "common/fail.hpp"
#include "dequant/columns.hpp"
#include "dequant/scale_type.hpp"
#include "schemes/claims.hpp"
#include "schemes/conv1d.hpp"
#include "schemes/scheme.hpp"

namespace safetensors::weights {
namespace {

/// The tensors of a module; the last two may be absent.
struct ColumnParts {
  const SourceTensor* qweight = nullptr;
  const SourceTensor* scales = nullptr;
  const SourceTensor* qzeros = nullptr;
  const SourceTensor* g_idx = nullptr;

  [[nodiscard]] std::vector<Part> list() const {
    return parts_of({qweight, scales, qzeros, g_idx});
  }
};

/// What shapes and configuration say.
struct ColumnForm {
  ColumnLayout layout = ColumnLayout::awq;
  std::uint8_t bits = 4;
  std::uint8_t added_to_zeros = 0;
  std::uint64_t columns = 0;
  std::uint64_t group_size = 0;
};

std::uint64_t rows_of(const SourceTensor& matrix) noexcept { return matrix.info->shape[0]; }
std::uint64_t columns_of(const SourceTensor& matrix) noexcept { return matrix.info->shape[1]; }

class ColumnWeight final : public SchemeWeight {
 public:
  ColumnWeight(const ColumnParts& tensors, const ColumnForm& form)
      : tensors_(tensors), form_(form) {}

  std::vector<Part> parts() const override { return tensors_.list(); }

  void decode(const WeightInfo& /*info*/, RowRange rows, Output output, std::byte* to,
              const Interrupt& interrupt) const override {
    const std::vector<std::uint32_t> group_of = groups_of_columns(interrupt);
    const bool is_awq = form_.layout == ColumnLayout::awq;
    const auto bits = std::uint64_t{form_.bits};
    const StoredColumns words =
        is_awq ? words_of(*tensors_.qweight, rows, kAwqRows, 1, interrupt)
               : tensors_.qweight->columns(4 * rows.begin, 4 * rows.end, interrupt);
    const std::uint64_t scale_nbytes = bit_size(tensors_.scales->info->dtype) / 8;
    const StoredColumns scales =
        tensors_.scales->columns(scale_nbytes * rows.begin, scale_nbytes * rows.end, interrupt);
    StoredColumns zeros;
    if (tensors_.qzeros != nullptr) {
      zeros = words_of(*tensors_.qzeros, rows, kZeroRows, bits, interrupt);
    }
    ColumnCodes codes;
    codes.layout = form_.layout;
    codes.bits = form_.bits;
    codes.columns = form_.columns;
    codes.groups = rows_of(*tensors_.scales);
    codes.group_size = form_.group_size;
    codes.group_of = group_of;
    codes.words = {words.stored.bytes.data(), words.stride};
    codes.zeros = {zeros.stored.bytes.data(), zeros.stride};
    codes.scales = {scales.stored.bytes.data(), scales.stride};
    codes.first_row = rows.begin;
    codes.added_to_zeros = form_.added_to_zeros;
    codes.scale_type = scale_type_of(tensors_.scales->info->dtype);
    dequantize_columns(codes, rows.end - rows.begin, output, to, interrupt);
  }

 protected:
  void describe(WeightInfo& info) const override {
    const bool is_awq = form_.layout == ColumnLayout::awq;
    // Both fit: they are at most the number of codes in the file.
    info.shape = {static_cast<std::int64_t>(columns_of(*tensors_.scales)),
                  static_cast<std::int64_t>(form_.columns)};
    info.scheme = is_awq ? "awq" : "gptq";
    info.code = is_awq ? code::kAwq : code::kGptq;
    info.type_name = std::string(info.scheme) + "_q" + std::to_string(form_.bits);
    info.scheme_params = {form_.bits, tensors_.qzeros == nullptr, 1, form_.group_size};
  }
  bool stores_rows() const noexcept override { return false; }

 private:
  /// Reads the words that hold rows; `per_rows` rows are `words` words.
  static StoredColumns words_of(const SourceTensor& tensor, RowRange rows, std::uint64_t per_rows,
                                std::uint64_t words, const Interrupt& interrupt) {
    const std::uint64_t begin = rows.begin / per_rows * words;
    const std::uint64_t end = divide_up(rows.end, per_rows) * words;
    return tensor.columns(4 * begin, 4 * std::min(end, columns_of(tensor)), interrupt);
  }

  /// Returns g_idx, or nothing if each column is in the group that its number says.
  std::vector<std::uint32_t> groups_of_columns(const Interrupt& interrupt) const {
    std::vector<std::uint32_t> groups;
    if (tensors_.g_idx == nullptr) return groups;
    const StoredBytes stored = tensors_.g_idx->bytes(interrupt);
    groups.resize(static_cast<std::size_t>(form_.columns));
    bool is_plain = true;
    std::uint32_t most = 0;
    for (std::size_t k = 0; k < groups.size(); ++k) {
      std::uint32_t group = 0;
      for (std::size_t i = 0; i < 4; ++i) {
        group |= std::to_integer<std::uint32_t>(stored.bytes[4 * k + i]) << (8 * i);
      }
      groups[k] = group;
      most = std::max(most, group);
      is_plain = is_plain && group == k / form_.group_size;
    }
    if (most >= rows_of(*tensors_.scales)) refuse_groups(groups);
    if (is_plain) groups.clear();
    return groups;
  }

  [[noreturn]] void refuse_groups(const std::vector<std::uint32_t>& groups) const {
    const std::uint64_t count = rows_of(*tensors_.scales);
    const auto bad = std::ranges::find_if(groups, [&](std::uint32_t g) { return g >= count; });
    fail(Errc::quant_mismatch, tensors_.g_idx->file->path(), tensors_.g_idx->info->name,
         "column " + std::to_string(bad - groups.begin()) + " is in group " +
             std::to_string(static_cast<std::int32_t>(*bad)) + " of " + std::to_string(count));
  }

  ColumnParts tensors_;
  ColumnForm form_;
};

bool is_words(const SourceTensor* tensor) noexcept {
  return tensor == nullptr ||
         (tensor->info->dtype == Dtype::kI32 && tensor->info->shape.size() == 2);
}

bool is_scales(const SourceTensor& tensor) noexcept {
  return tensor.info->shape.size() == 2 && is_scale_type(tensor.info->dtype);
}

/// Returns the layout that the shapes show, and with it K and the bits. The bits of gptq follow
/// from qzeros: N * bits / 32 words.
ColumnForm form_by_shapes(const ColumnParts& parts) {
  const auto bad = [&](const std::string& what) { mismatch(parts.list(), what); };
  ColumnForm form;
  const std::uint64_t rows = columns_of(*parts.scales);
  if (rows == 0 || rows_of(*parts.scales) == 0) bad("a weight needs scales");
  const std::uint64_t words = columns_of(*parts.qweight);
  if (words < rows) {
    if (rows % 8 != 0 || words != rows / 8) {
      bad("the columns of qweight are neither those of scales nor an eighth of them");
    }
    form.columns = rows_of(*parts.qweight);
    if (parts.qzeros != nullptr && columns_of(*parts.qzeros) != words) {
      bad("qzeros and qweight differ in their columns");
    }
  } else {
    form.layout = ColumnLayout::gptq;
    if (words != rows) bad("qweight and scales differ in their columns");
    if (parts.qzeros == nullptr) bad("qzeros are missing");
    const std::uint64_t zeros = columns_of(*parts.qzeros);
    for (std::uint8_t bits = 2; bits <= 8; ++bits) {
      if (rows * bits == zeros * 32) form.bits = bits;
    }
    if (rows * form.bits != zeros * 32) bad("the columns of qzeros fit no number of bits");
    const auto codes = checked_multiply(rows_of(*parts.qweight), 32);
    if (!codes || *codes % form.bits != 0) {
      mismatch(parts.list(), "the rows of qweight are no whole codes");
    }
    form.columns = *codes / form.bits;
  }
  if (form.columns == 0) bad("the weight has no columns");
  if (parts.qzeros != nullptr && rows_of(*parts.qzeros) != rows_of(*parts.scales)) {
    bad("qzeros and scales differ in their rows");
  }
  return form;
}

/// Completes the form by the configuration, which must not contradict it.
void apply_config(const ColumnParts& parts, const QuantConfig& quant, ColumnForm& form) {
  const auto bad = [&](const std::string& what) { mismatch(parts.list(), what); };
  const std::string method = form.layout == ColumnLayout::awq ? "awq" : "gptq";
  if (!quant.method.empty() && quant.method != method) {
    bad("the shapes are those of " + method + ", and the configuration says " +
        clipped(quant.method));
  }
  // With rules for single modules, the shapes alone decide.
  if (quant.bits && *quant.bits != form.bits && !quant.has_rules) {
    bad("the shapes are those of " + std::to_string(form.bits) +
        " bits, and the configuration says " + std::to_string(*quant.bits));
  }
  const std::uint64_t groups = rows_of(*parts.scales);
  if (quant.group_size) {
    const std::uint64_t size =
        *quant.group_size < 0 ? form.columns : static_cast<std::uint64_t>(*quant.group_size);
    if (divide_up(form.columns, size) == groups) {
      form.group_size = size;
      return;
    }
    if (!quant.has_rules) {
      bad("rows of " + std::to_string(form.columns) + " values in groups of " +
          std::to_string(size) + ", as the configuration says, do not have " +
          std::to_string(groups) + " groups");
    }
  }
  if (form.columns % groups != 0) {
    bad("rows of " + std::to_string(form.columns) + " values are not " + std::to_string(groups) +
        " equal groups");
  }
  form.group_size = form.columns / groups;
}

}  // namespace

void claim_awq_gptq(const SourceTensor& qweight, Checkpoint& checkpoint) {
  const std::string_view module = module_of(qweight);
  const QuantConfig& quant = checkpoint.quant();
  const std::string& variant = quant.variant;
  const bool is_known = variant.empty() || variant == "gemm" || variant == "gptq" ||
                        (variant == "gptq_v2" && quant.method == "gptq");
  if (!is_known && (quant.method == "awq" || quant.method == "gptq")) {
    checkpoint.refuse(qweight,
                      "scheme \"" + quant.method + " (" + clipped(variant) + ")\" is not decoded");
    return;
  }
  if (!quant.method.empty() && quant.method != "awq" && quant.method != "gptq") return;
  const ColumnParts parts{&qweight, checkpoint.find(module, ".scales"),
                          checkpoint.find(module, ".qzeros"), checkpoint.find(module, ".g_idx")};
  if (parts.scales == nullptr) return;
  if (!is_words(parts.qweight) || !is_words(parts.qzeros) || !is_scales(*parts.scales)) {
    if (quant.method.empty()) return;
    mismatch(parts.list(), "qweight and qzeros must be matrices of I32, scales one of floats");
  }
  if (quant.method.empty() && columns_of(qweight) == columns_of(*parts.scales)) {
    checkpoint.remark(qweight.info->name,
                      "gptq without a configuration, which says what its zeros mean");
    return;
  }
  ColumnForm form = form_by_shapes(parts);
  apply_config(parts, quant, form);
  if (form.layout == ColumnLayout::gptq) {
    if (form.bits > 4 && form.bits != 8) {
      checkpoint.refuse(qweight,
                        "scheme \"gptq (" + std::to_string(form.bits) + " bits)\" is not decoded");
      return;
    }
    form.added_to_zeros = variant == "gptq_v2" ? 0 : 1;
    if (parts.g_idx != nullptr &&
        (parts.g_idx->info->dtype != Dtype::kI32 || parts.g_idx->info->shape.size() != 1 ||
         parts.g_idx->info->shape[0] != form.columns)) {
      mismatch(parts.list(), "g_idx must be I32, with one group for each column");
    }
  } else if (parts.g_idx != nullptr) {
    mismatch(parts.list(), "awq has no g_idx");
  }
  claim_linear(qweight, qweight, std::string(module) + ".weight",
               std::make_unique<ColumnWeight>(parts, form), checkpoint);
}

}  // namespace safetensors::weights
