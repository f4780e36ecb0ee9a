#include "names/tables.hpp"

#include <cstddef>
#include <iterator>

namespace safetensors::weights {
namespace {

struct CanonicalRow {
  std::uint16_t end;
};
struct GgufRow {
  std::uint16_t end;
  std::uint16_t canonical;
};
using HfRow = GgufRow;
struct ArchitectureRow {
  std::uint16_t end;
  RopeRule rope;
  Conversion conversion;
  bool fuses_gate_and_up;
};
struct ModelTypeRow {
  std::uint16_t end;
  RopeRule rope;
  NormRule norm;
  bool norms_tell;
};

#include "names/tables.inc"

/// A table as in tables.inc: without pointers, it takes no relocations and little memory.
template <typename Row, std::size_t count, std::size_t nbytes>
struct TextTable {
  const char (&text)[nbytes];
  const Row (&rows)[count];

  [[nodiscard]] constexpr std::string_view text_of(std::size_t row) const noexcept {
    const std::size_t begin = row == 0 ? 0 : rows[row - 1].end;
    return {text + begin, rows[row].end - begin};
  }
  /// Returns nullptr if there is no such row.
  [[nodiscard]] constexpr const Row* find(std::string_view key) const noexcept {
    std::size_t begin = 0;
    std::size_t end = count;
    while (begin < end) {
      const std::size_t middle = begin + (end - begin) / 2;
      if (text_of(middle) < key) {
        begin = middle + 1;
      } else {
        end = middle;
      }
    }
    return begin < count && text_of(begin) == key ? &rows[begin] : nullptr;
  }
};

// Clang 16 cannot deduce the template arguments of an aggregate.
template <typename Row, std::size_t count, std::size_t nbytes>
TextTable(const char (&)[nbytes], const Row (&)[count]) -> TextTable<Row, count, nbytes>;

constexpr TextTable kCanonical{kCanonicalText, kCanonicalRows};
constexpr TextTable kGguf{kGgufText, kGgufRows};
constexpr TextTable kHf{kHfText, kHfRows};
constexpr TextTable kArchitectures{kArchitectureText, kArchitectureRows};
constexpr TextTable kModelTypes{kModelTypeText, kModelTypeRows};

template <typename Table>
std::optional<std::string_view> canonical_of(const Table& table, std::string_view module) noexcept {
  const auto* const row = table.find(module);
  if (row == nullptr) return std::nullopt;
  const bool is_left_out = row->canonical == std::size(kCanonicalRows);
  return is_left_out ? std::string_view() : kCanonical.text_of(row->canonical);
}

}  // namespace

std::optional<std::string_view> find_gguf_name(std::string_view module) noexcept {
  return canonical_of(kGguf, module);
}

std::optional<std::string_view> find_hf_name(std::string_view module) noexcept {
  return canonical_of(kHf, module);
}

std::string_view reason_of(Conversion conversion) noexcept {
  switch (conversion) {
    case Conversion::same:
    case Conversion::reordered_rows:
    case Conversion::raised_norms:
      return {};
    case Conversion::latent:
      return "kv_b is split, and k_b is transposed";
    case Conversion::delta_net:
      return "value heads are reordered, norms are one higher, and A is -exp(A_log)";
    case Conversion::state_space:
      return "A is -exp(A_log), and tensors of the state space are reshaped";
    case Conversion::fused_qkv:
      return "the rows of the fused q, k and v are regrouped";
    case Conversion::grouped_rows:
      return "rows of q and k are reordered by n_heads / n_kv_heads";
    case Conversion::gpt_oss:
      return "experts are transposed, and their gate and up rows are separated";
    case Conversion::transposed:
      return "matrices are transposed";
    case Conversion::multiplied:
      return "weights are multiplied by factors that the file does not have";
    case Conversion::unrecorded:
      return "what the conversion to GGUF changes is not recorded";
  }
  return {};
}

std::optional<GgufArchitecture> find_gguf_architecture(std::string_view name) noexcept {
  const ArchitectureRow* const row = kArchitectures.find(name);
  if (row == nullptr) return std::nullopt;
  return GgufArchitecture{row->rope, row->conversion, row->fuses_gate_and_up};
}

std::optional<HfModelType> find_hf_model_type(std::string_view name) noexcept {
  const ModelTypeRow* const row = kModelTypes.find(name);
  if (row == nullptr) return std::nullopt;
  return HfModelType{row->rope, row->norm, row->norms_tell};
}

}  // namespace safetensors::weights
