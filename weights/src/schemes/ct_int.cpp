// Integers of 1 to 8 bits in 32-bit words, as compressed-tensors writes them ("pack-quantized"):
//
//     weight_packed      I32 [.., N, words of K codes]
//     weight_scale       [.., N, G], [N], or one for all
//     weight_zero_point  I32 [.., words of N codes, G], packed down the rows; or plain integers
//     weight_g_idx       I32 [K]: the group of each column; all -1 if columns are in order
//     weight_shape       I64 [2]: N and K
//
//     value[i, k] = (code[i, k] - zero[i, group of k]) * scale[i, group of k]
//
// Codes and zero points are stored as code + 2^(bits - 1). Older files have 32 / bits codes in each
// word, where newer ones have no gaps: the number of words tells them apart.
#include <algorithm>
#include <string>
#include <utility>

#include "base/text.hpp"
#include "common/divide_up.hpp"
#include "common/fail.hpp"
#include "dequant/integers.hpp"
#include "dequant/scale_type.hpp"
#include "schemes/blocks.hpp"
#include "schemes/claims.hpp"
#include "schemes/scheme.hpp"

namespace safetensors::weights {
namespace {

using Shape = std::span<const std::uint64_t>;

/// Rows longer than this do not exist: sizes computed from it cannot overflow.
constexpr std::uint64_t kMaxColumns = std::uint64_t{1} << 40;

struct CtIntParts {
  const SourceTensor* packed;
  const SourceTensor* scale;
  const SourceTensor* zero;
  const SourceTensor* g_idx;
  const SourceTensor* shape;

  [[nodiscard]] std::vector<Part> list() const {
    return parts_of({packed, scale, zero, g_idx, shape});
  }
  [[nodiscard]] std::uint64_t rows() const { return packed->info->shape.end()[-2]; }
  [[nodiscard]] std::uint64_t words() const { return packed->info->shape.back(); }
  [[nodiscard]] bool has_one_scale() const { return is_single(scale->info->shape); }
  /// Returns the scales of a row. Requires: check_ct_scales().
  [[nodiscard]] std::uint64_t groups() const {
    const Shape scales = scale->info->shape;
    return scales.size() == packed->info->shape.size() ? scales.back() : 1;
  }
};

/// What the tensors and the configuration say about a weight. There may be a hundred thousand: what
/// follows from a shape is not kept.
struct CtIntLayout {
  Packing packing = Packing::dense;
  ZeroPoints zero_type = ZeroPoints::none;
  std::uint8_t bits = 4;
  std::uint64_t columns = 0;
  std::uint64_t group = 1;
};

/// Reads I64 or I32 numbers; nothing if the tensor has another type.
std::vector<std::int64_t> read_integers(const SourceTensor& tensor, const Interrupt& interrupt) {
  const std::size_t size = tensor.info->dtype == Dtype::kI64   ? 8
                           : tensor.info->dtype == Dtype::kI32 ? 4
                                                               : 0;
  std::vector<std::int64_t> values;
  if (size == 0) return values;
  const StoredBytes stored = tensor.bytes(interrupt);
  values.reserve(stored.bytes.size() / size);
  for (std::size_t i = 0; i < stored.bytes.size(); i += size) {
    std::uint64_t value = 0;
    for (std::size_t k = size; k-- > 0;) {
      value = value << 8 | std::to_integer<std::uint64_t>(stored.bytes[i + k]);
    }
    values.push_back(size == 8 ? static_cast<std::int64_t>(value)
                               : static_cast<std::int32_t>(static_cast<std::uint32_t>(value)));
  }
  return values;
}

/// Reads the scales of rows, or of everything if there is one for all. `stored` keeps the bytes.
PartBytes read_ct_scales(const SourceTensor& scale, std::uint64_t all_rows, RowRange rows,
                         StoredBytes& stored, const Interrupt& interrupt) {
  const bool is_one = is_single(scale.info->shape);
  const std::uint64_t row = is_one ? 0 : scale.info->nbytes() / all_rows;
  const std::uint64_t begin = rows.begin * row;
  stored = is_one ? scale.bytes(interrupt) : scale.bytes(begin, rows.end * row, interrupt);
  return {stored.bytes.data(), begin};
}

/// Checks the numbers of rows and columns in `weight_shape` against those of the parts.
void check_weight_shape(const CtIntParts& parts, std::uint64_t columns,
                        const Interrupt& interrupt) {
  if (parts.shape == nullptr) return;
  const std::vector<std::int64_t> claimed = read_integers(*parts.shape, interrupt);
  const Shape stack = parts.packed->info->shape.first(parts.packed->info->shape.size() - 1);
  const bool fits =
      claimed.size() == stack.size() + 1 && std::cmp_equal(claimed.back(), columns) &&
      std::equal(stack.begin(), stack.end(), claimed.begin(),
                 [](std::uint64_t a, std::int64_t b) { return std::cmp_equal(a, b); });
  if (!fits) {
    mismatch(parts.list(), "weight_shape says " + safetensors::shown(std::span(claimed)) +
                               ", the tensors " + std::to_string(parts.rows()) + " x " +
                               std::to_string(columns));
  }
}

class CtIntWeight final : public SchemeWeight {
 public:
  CtIntWeight(const CtIntParts& parts, const CtIntLayout& layout)
      : parts_(parts), layout_(layout) {}

  std::vector<Part> parts() const override { return parts_.list(); }

  void decode(const WeightInfo& info, RowRange rows, Output output, std::byte* to,
              const Interrupt& interrupt) const override {
    check_weight_shape(parts_, layout_.columns, interrupt);
    const std::uint64_t all = row_count(info.shape);
    IntegerMatrices from;
    from.packing = layout_.packing;
    from.bits = layout_.bits;
    from.matrix_rows = parts_.has_one_scale() ? all : parts_.rows();
    from.columns = layout_.columns;
    from.rows_per_scale = parts_.has_one_scale() ? all : 1;
    from.groups = parts_.groups();
    from.group = layout_.group;
    from.scale_type = scale_type_of(parts_.scale->info->dtype);
    from.zero_type = layout_.zero_type;
    const StoredBytes codes = read_rows(*parts_.packed, all, rows, interrupt);
    from.codes = {codes.bytes.data(), rows.begin * from.row_bytes()};
    from.codes_end = codes.bytes.data() + codes.bytes.size();
    StoredBytes scales;
    from.scales = read_ct_scales(*parts_.scale, all, rows, scales, interrupt);
    StoredBytes zeros;
    if (layout_.zero_type == ZeroPoints::packed) {
      const std::uint64_t row = from.groups * 4;
      const std::uint64_t last_bit = from.zero_bit(rows.end - 1) + layout_.bits - 1;
      const std::uint64_t end = (last_bit / 32 + 1) * row;
      from.zeros.begin = from.zero_bit(rows.begin) / 32 * row;
      zeros = parts_.zero->bytes(from.zeros.begin, end, interrupt);
      from.zeros.bytes = zeros.bytes.data();
    } else if (layout_.zero_type != ZeroPoints::none) {
      from.zeros = read_ct_scales(*parts_.zero, all, rows, zeros, interrupt);
    }
    const std::vector<std::uint32_t> order = group_of_column(interrupt);
    if (!order.empty()) from.group_of_column = order.data();
    dequantize_integers(from, rows.begin, rows.end - rows.begin, output, to, interrupt);
  }

 protected:
  void describe(WeightInfo& info) const override {
    info.shape = signed_shape(*parts_.packed);
    info.shape.back() = static_cast<std::int64_t>(layout_.columns);
    info.scheme = "ct_int";
    info.code = code::kCtInt;
    info.type_name = "int" + std::to_string(layout_.bits);
    info.scheme_params = {layout_.bits, layout_.zero_type == ZeroPoints::none,
                          parts_.has_one_scale() ? std::max<std::uint64_t>(parts_.rows(), 1) : 1,
                          layout_.group};
  }
  bool stores_rows() const noexcept override {
    return layout_.zero_type != ZeroPoints::packed && parts_.g_idx == nullptr &&
           parts_.shape == nullptr;
  }

 private:
  /// Returns the group of each column; nothing if they are in order.
  std::vector<std::uint32_t> group_of_column(const Interrupt& interrupt) const {
    std::vector<std::uint32_t> order;
    if (parts_.g_idx == nullptr) return order;
    const std::vector<std::int64_t> stored = read_integers(*parts_.g_idx, interrupt);
    if (std::ranges::all_of(stored, [](std::int64_t group) { return group == -1; })) return order;
    std::vector<std::uint64_t> members(parts_.groups(), 0);
    order.reserve(stored.size());
    for (const std::int64_t group : stored) {
      if (group < 0 || std::cmp_greater_equal(group, parts_.groups())) {
        mismatch(parts_.list(), "weight_g_idx has the group " + std::to_string(group) + " of " +
                                    std::to_string(parts_.groups()));
      }
      order.push_back(static_cast<std::uint32_t>(group));
      ++members[order.back()];
    }
    for (std::size_t group = 0; group < members.size(); ++group) {
      if (members[group] == layout_.group) continue;
      mismatch(parts_.list(), "weight_g_idx gives " + std::to_string(members[group]) +
                                  " columns to group " + std::to_string(group) + ", not " +
                                  std::to_string(layout_.group));
    }
    return order;
  }

  CtIntParts parts_;
  CtIntLayout layout_;
};

bool fits_words(const CtIntParts& parts, int bits, std::uint64_t columns) {
  return columns <= kMaxColumns && (words_of(Packing::dense, bits, columns) == parts.words() ||
                                    words_of(Packing::words, bits, columns) == parts.words());
}

/// Returns the columns that `weight_shape` states.
std::uint64_t claimed_columns(const CtIntParts& parts) {
  const std::vector<std::int64_t> claimed = read_integers(*parts.shape, {});
  const std::int64_t columns = claimed.empty() ? -1 : claimed.back();
  if (columns < 0 || std::cmp_greater(columns, kMaxColumns)) {
    mismatch(parts.list(), "weight_shape says " + safetensors::shown(std::span(claimed)));
  }
  return static_cast<std::uint64_t>(columns);
}

/// Finds the bits of a code where the configuration does not state them; 0 if several fit.
int find_ct_bits(const CtIntParts& parts) {
  if (parts.shape == nullptr) return 0;
  const std::uint64_t columns = claimed_columns(parts);
  int found = 0;
  for (int bits = 1; bits <= 8; ++bits) {
    if (words_of(Packing::dense, bits, columns) != parts.words()) continue;
    if (found != 0) return 0;
    found = bits;
  }
  return found;
}

/// Finds the length of a row: from the groups, else from `weight_shape`, else from the words.
std::uint64_t find_ct_columns(const CtIntParts& parts, const CtIntLayout& layout,
                              std::uint64_t group_size) {
  const int bits = layout.bits;
  const std::uint64_t width = layout.bits;
  if (group_size != 0 && parts.groups() <= kMaxColumns / group_size &&
      fits_words(parts, bits, parts.groups() * group_size)) {
    return parts.groups() * group_size;
  }
  if (parts.shape != nullptr) return claimed_columns(parts);
  if (parts.words() > kMaxColumns / 32) mismatch(parts.list(), "the rows are too long");
  const std::uint64_t columns = parts.words() * 32 / width;
  if (32 % width != 0) mismatch(parts.list(), "weight_shape is missing");
  return columns;
}

void find_ct_packing(const CtIntParts& parts, CtIntLayout& layout) {
  const bool is_dense = words_of(Packing::dense, layout.bits, layout.columns) == parts.words();
  const bool has_gaps = words_of(Packing::words, layout.bits, layout.columns) == parts.words();
  const std::string codes =
      std::to_string(layout.columns) + " codes of " + std::to_string(layout.bits) + " bits";
  if (!is_dense && !has_gaps) mismatch(parts.list(), "the rows are not those of " + codes);
  if (is_dense && has_gaps && 32 % layout.bits != 0 && parts.words() > 1) {
    mismatch(parts.list(), "the words of " + codes + " may or may not have gaps");
  }
  layout.packing = is_dense ? Packing::dense : Packing::words;
}

void check_ct_scales(const CtIntParts& parts) {
  if (!is_scale_type(parts.scale->info->dtype)) {
    mismatch(parts.list(), "scales are of the wrong type");
  }
  const Shape packed = parts.packed->info->shape;
  const Shape scale = parts.scale->info->shape;
  if (is_single(scale) || (packed.size() == 2 && std::ranges::equal(scale, packed.first(1)))) {
    return;
  }
  if (scale.size() != packed.size() || scale.back() == 0 || scale.back() > kMaxColumns ||
      !std::ranges::equal(scale.first(scale.size() - 1), packed.first(packed.size() - 1))) {
    mismatch(parts.list(), "scales must have the weight's rows");
  }
}

void find_ct_group_size(const CtIntParts& parts, CtIntLayout& layout, std::uint64_t stated) {
  layout.group = std::max<std::uint64_t>(layout.columns, 1);
  const bool is_row = parts.groups() == 1 && (stated == 0 || stated >= layout.columns);
  if (is_row) return;
  if (stated != 0) {
    if (divide_up(layout.columns, stated) != parts.groups()) {
      mismatch(parts.list(), "the configuration has groups of " + std::to_string(stated) +
                                 ", but rows of " + std::to_string(layout.columns) +
                                 " codes have " + std::to_string(parts.groups()) + " scales");
    }
    layout.group = stated;
    return;
  }
  if (layout.columns % parts.groups() != 0) {
    mismatch(parts.list(),
             "rows of " + std::to_string(layout.columns) + " codes are not equal groups");
  }
  layout.group = std::max<std::uint64_t>(layout.columns / parts.groups(), 1);
}

void find_ct_zeros(const CtIntParts& parts, CtIntLayout& layout, std::optional<bool> symmetric,
                   Checkpoint& checkpoint) {
  if (parts.zero == nullptr) {
    if (symmetric == false) {
      mismatch(parts.list(),
               "the configuration is not symmetric, but there is no weight_zero_point");
    }
    return;
  }
  if (symmetric == true) {
    checkpoint.remark(parts.packed->info->name,
                      "has zero points, although the configuration is symmetric");
  }
  const Dtype dtype = parts.zero->info->dtype;
  const Shape zero = parts.zero->info->shape;
  std::vector<std::uint64_t> packed(parts.packed->info->shape.begin(),
                                    parts.packed->info->shape.end());
  packed.end()[-2] = words_of(layout.packing, layout.bits, parts.rows());
  packed.end()[-1] = parts.groups();
  if (dtype == Dtype::kI32 && !parts.has_one_scale() && std::ranges::equal(zero, packed)) {
    layout.zero_type = ZeroPoints::packed;
  } else if (zero_type_of(dtype) != ZeroPoints::none &&
             std::ranges::equal(zero, Shape(parts.scale->info->shape))) {
    layout.zero_type = zero_type_of(dtype);
  } else {
    mismatch(parts.list(), "zero points do not fit");
  }
}

/// Checks what the configuration says against the kind of tensors.
void check_ct_config(const CtIntParts& parts, const QuantConfig& config, const CtGroup* group) {
  if (!config.method.empty() && config.method != "compressed-tensors") {
    mismatch(parts.list(), "the configuration has the method `" + clipped(config.method) +
                               "`, the tensors are those of compressed-tensors");
  }
  const std::string& format =
      group != nullptr && !group->format.empty() ? group->format : config.format;
  if (!format.empty() && format != "pack-quantized" && format != "mixed-precision") {
    mismatch(parts.list(), "the configuration has the format `" + clipped(format) +
                               "`, the tensors are those of pack-quantized");
  }
  if (group != nullptr && group->is_float == true) {
    mismatch(parts.list(), "the configuration has floats, the tensors are those of integers");
  }
}

}  // namespace

void claim_ct_int(const SourceTensor& packed, Checkpoint& checkpoint) {
  if (packed.info->dtype != Dtype::kI32) return;
  const std::string_view module = module_of(packed);
  const CtIntParts parts{&packed, checkpoint.find(module, ".weight_scale"),
                         checkpoint.find(module, ".weight_zero_point"),
                         checkpoint.find(module, ".weight_g_idx"),
                         checkpoint.find(module, ".weight_shape")};
  if (parts.scale == nullptr) return;
  if (packed.info->shape.size() < 2) mismatch(parts.list(), "the weight must be a matrix");
  if (parts.shape != nullptr && parts.shape->info->nbytes() > 64) {
    mismatch(parts.list(), "weight_shape must have a number for each axis");
  }
  const QuantConfig& config = checkpoint.quant();
  const CtGroup* group = config.groups.find(module);
  check_ct_config(parts, config, group);

  const int stated = (group != nullptr ? group->bits : config.bits).value_or(0);
  const int bits = stated != 0 ? stated : find_ct_bits(parts);
  if (bits == 0) {
    checkpoint.remark(packed.info->name, "has packed integers whose bits nothing states");
    checkpoint.refuse(packed, "packed integers, whose bits nothing states, are not decoded");
    return;
  }
  CtIntLayout layout;
  layout.bits = static_cast<std::uint8_t>(bits);
  check_ct_scales(parts);
  const auto group_size = static_cast<std::uint64_t>(std::max<std::int64_t>(
      (group != nullptr ? group->group_size : config.group_size).value_or(0), 0));
  layout.columns = find_ct_columns(parts, layout, group_size);
  find_ct_packing(parts, layout);
  find_ct_group_size(parts, layout, group_size);
  find_ct_zeros(parts, layout, group != nullptr ? group->symmetric : config.symmetric, checkpoint);
  if (parts.g_idx != nullptr &&
      (parts.g_idx->info->dtype != Dtype::kI32 || parts.g_idx->info->shape.size() != 1 ||
       parts.g_idx->info->shape[0] != layout.columns ||
       parts.groups() * layout.group != layout.columns)) {
    mismatch(parts.list(), "weight_g_idx must have a group for each column");
  }
  checkpoint.claim(packed, std::string(module) + ".weight",
                   std::make_unique<CtIntWeight>(parts, layout));
}

}  // namespace safetensors::weights
