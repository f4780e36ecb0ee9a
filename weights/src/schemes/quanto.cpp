// optimum-quanto. A module always has input_scale and output_scale, which are no parts.
//
//     8 bits     weight._data         I8 or F8 [N, K]
//                weight._scale        F16, BF16 or F32 [N, 1]
//     4, 2 bits  weight._data._data   U8 [ceil(R * bits / 8), group], R = N * K / group
//                weight._scale        F16, BF16 or F32 [R, 1]
//                weight._shift        the scale's type; or I8, U8
//                (src/dequant/distant_rows.hpp)
//
// Weights of 8 bits are those of the schemes fp8 and int8. Those of 4 and 2 bits do not have their
// shape in the file: the bias tells the number of rows.
#include <string>
#include <vector>

#include "base/text.hpp"
#include "common/divide_up.hpp"
#include "dequant/distant_rows.hpp"
#include "dequant/scale_type.hpp"
#include "schemes/claims.hpp"
#include "schemes/parts.hpp"
#include "schemes/scheme.hpp"

namespace safetensors::weights {
namespace {

struct QuantoParts {
  const SourceTensor* data;
  const SourceTensor* scale;
  const SourceTensor* shift;
  std::uint64_t rows = 0;
  std::uint64_t columns = 0;
  std::uint8_t bits = 4;

  [[nodiscard]] std::vector<Part> list() const { return parts_of({data, scale, shift}); }
  [[nodiscard]] std::uint64_t group() const noexcept { return data->info->shape[1]; }
  [[nodiscard]] std::uint64_t lines() const noexcept { return data->info->shape[0]; }
};

class QuantoWeight final : public SchemeWeight {
 public:
  explicit QuantoWeight(const QuantoParts& parts) : parts_(parts) {}

  std::vector<Part> parts() const override { return parts_.list(); }

  void decode(const WeightInfo& /*info*/, RowRange rows, Output output, std::byte* to,
              const Interrupt& interrupt) const override {
    const std::uint64_t group = parts_.group();
    const std::uint64_t lines = parts_.lines();
    const std::uint64_t in_row = parts_.columns / group;
    const RowRange groups{rows.begin * in_row, rows.end * in_row};
    // The lines of these groups, or all if they begin anew within the range.
    RowRange read{groups.begin % lines, (groups.end - 1) % lines + 1};
    if (groups.end - groups.begin >= lines || read.begin >= read.end) read = {0, lines};
    const StoredBytes codes = parts_.data->bytes(read.begin * group, read.end * group, interrupt);
    const std::vector<float> scales = floats_of(parts_.scale, interrupt, groups);
    const std::vector<float> shifts = floats_of(parts_.shift, interrupt, groups);
    DistantRows from;
    from.bits = parts_.bits;
    from.columns = parts_.columns;
    from.group = group;
    from.lines = lines;
    from.codes = {codes.bytes.data(), read.begin * group};
    from.scales = scales.data();
    from.shifts = shifts.data();
    from.shifts_codes = !is_scale_type(parts_.shift->info->dtype);
    dequantize_distant(from, rows.begin, rows.end - rows.begin, output, to, interrupt);
  }

 protected:
  void describe(WeightInfo& info) const override {
    // Both fit: their product is the number of codes in the file.
    info.shape = {static_cast<std::int64_t>(parts_.rows),
                  static_cast<std::int64_t>(parts_.columns)};
    info.scheme = "quanto";
    info.code = code::kQuanto;
    info.type_name = "quanto_q" + std::to_string(parts_.bits);
    info.scheme_params = {parts_.bits, false, 1, parts_.group()};
  }
  bool stores_rows() const noexcept override { return false; }

 private:
  QuantoParts parts_;
};

bool is_shift(Dtype dtype) noexcept {
  return is_scale_type(dtype) || dtype == Dtype::kI8 || dtype == Dtype::kU8;
}

}  // namespace

void claim_quanto(const SourceTensor& data, Checkpoint& checkpoint) {
  std::string_view weight = data.info->name;
  weight.remove_suffix(std::string_view("._data").size());
  const SourceTensor* scale = checkpoint.find(weight, "._scale");
  if (scale == nullptr || !is_scale_type(scale->info->dtype)) return;
  if (data.info->dtype == Dtype::kI8) {
    claim_integers(data, *scale, std::string(weight), checkpoint);
  } else {
    claim_floats(data, *scale, std::string(weight), checkpoint);
  }
}

void claim_quanto_packed(const SourceTensor& data, Checkpoint& checkpoint) {
  std::string_view weight = data.info->name;
  weight.remove_suffix(std::string_view("._data._data").size());
  QuantoParts parts{&data, checkpoint.find(weight, "._scale"), checkpoint.find(weight, "._shift")};
  if (data.info->dtype != Dtype::kU8 || parts.scale == nullptr || parts.shift == nullptr ||
      !is_scale_type(parts.scale->info->dtype) || !is_shift(parts.shift->info->dtype)) {
    return;
  }
  const auto& shape = data.info->shape;
  const std::uint64_t groups = count_of(*parts.scale);
  if (shape.size() != 2 || shape[0] == 0 || shape[1] == 0 || groups == 0 ||
      count_of(*parts.shift) != groups || parts.scale->info->shape.empty() ||
      parts.scale->info->shape[0] != groups) {
    mismatch(parts.list(), "there must be a scale and a shift for each group");
  }
  if (groups <= 2) {
    checkpoint.refuse_module(data,
                             "optimum-quanto's weights of one or two groups may have 4 or 2 "
                             "bits, which the file does not say");
    return;
  }
  if (shape[0] == divide_up(groups, 2)) {
    parts.bits = 4;
  } else if (shape[0] == divide_up(groups, 4)) {
    parts.bits = 2;
  } else {
    mismatch(parts.list(), "the lines fit neither 4 nor 2 bits");
  }
  const std::string_view module = module_with_parts(weight);
  const SourceTensor* bias = checkpoint.find(module, ".bias");
  if (bias == nullptr || bias->info->shape.size() != 1) {
    checkpoint.refuse_module(data, "optimum-quanto's weights of " + std::to_string(parts.bits) +
                                       " bits are decoded beside a bias only: the number of rows "
                                       "is not in the file");
    return;
  }
  // No overflow: the codes are in the file.
  const std::uint64_t values = groups * shape[1];
  parts.rows = bias->info->shape[0];
  if (parts.rows == 0 || values % parts.rows != 0 || values / parts.rows % shape[1] != 0) {
    mismatch(parts.list(),
             std::to_string(parts.rows) + " rows, as the bias has, do not have whole groups");
  }
  parts.columns = values / parts.rows;
  checkpoint.claim(data, std::string(weight), std::make_unique<QuantoWeight>(parts));
}

}  // namespace safetensors::weights
