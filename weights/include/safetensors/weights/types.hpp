// Element and storage types of weights, and the description of a tensor.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "safetensors/export.hpp"

namespace safetensors::weights {

/// The formats that the weight layer reads.
enum class Format : std::uint8_t { hf_safetensors, mlx_safetensors, gguf };

/// How a tensor's values are stored.
enum class Storage : std::uint8_t {
  raw,         ///< one value after another
  mlx_pack,    ///< words of packed values, with scales and perhaps biases beside them
  ggml_block,  ///< blocks of values, each with its own scales
  scheme,      ///< tensors of a quantisation scheme, see WeightInfo::scheme
};

/// The modes of quantisation of MLX.
enum class QuantMode : std::uint8_t { affine, mxfp4, mxfp8, nvfp4 };

/// Each returns the spelling of an enumerator, such as "gguf"; an empty text for other values.
[[nodiscard]] SAFETENSORS_API std::string_view name(Format format) noexcept;
[[nodiscard]] SAFETENSORS_API std::string_view name(Storage storage) noexcept;
[[nodiscard]] SAFETENSORS_API std::string_view name(QuantMode mode) noexcept;

/// Returns the mode with this name, if there is one.
[[nodiscard]] SAFETENSORS_API std::optional<QuantMode> parse_quant_mode(
    std::string_view text) noexcept;

/// Parameters of an MLX pack.
struct QuantParams {
  QuantMode mode = QuantMode::affine;
  int bits = 4;         ///< of one value
  int group_size = 64;  ///< values along the last axis that share a scale
  friend bool operator==(const QuantParams&, const QuantParams&) = default;
};

/// Effective type of a tensor, as get_dtype() returns it: ggml's number if ggml has the type, else
/// a number from 99 on that ggml does not use. MLX packs have one code for each mode and number of
/// bits; WeightInfo::quant has the group size. Schemes have one code each; WeightInfo::type_name
/// and scheme_params have the details.
namespace code {
inline constexpr std::uint32_t kF32 = 0, kF16 = 1, kI8 = 24, kI16 = 25, kI32 = 26, kI64 = 27,
                               kF64 = 28, kBF16 = 30;
inline constexpr std::uint32_t kMlxQ3 = 99, kMlxQ4 = 100, kMlxQ8 = 101, kMlxQ6 = 102, kMlxQ2 = 103,
                               kMlxQ5 = 104, kMlxQ1 = 105, kMlxMxfp4 = 110, kMlxMxfp8 = 111,
                               kMlxNvfp4 = 112;
inline constexpr std::uint32_t kFp8 = 120, kMxfp8 = 121, kMxfp4 = 122, kNvfp4 = 123, kCtInt = 124,
                               kInt8 = 125, kAwq = 126, kGptq = 127, kBnbNf4 = 128, kBnbFp4 = 129,
                               kBnbInt8 = 130, kTorchao = 131, kComfy = 132, kMxfp6 = 133,
                               kInt4 = 134, kQuanto = 135;
inline constexpr std::uint32_t kBool = 200, kU8 = 201, kU16 = 202, kU32 = 203, kU64 = 204,
                               kF8E4M3 = 205, kF8E5M2 = 206, kF8E8M0 = 207, kF8E4M3FNUZ = 208,
                               kF8E5M2FNUZ = 209, kC64 = 210, kF4 = 211, kF6E2M3 = 212,
                               kF6E3M2 = 213;
}  // namespace code

/// Parameters of a weight that a quantisation scheme stores. Each block of `group_rows` rows and
/// `group_columns` columns of a matrix has a scale; blocks at the edges may be smaller.
struct SchemeParams {
  std::uint8_t bits = 0;  ///< of one value
  bool symmetric = true;  ///< false: a zero point is subtracted from the codes
  std::uint64_t group_rows = 1;
  std::uint64_t group_columns = 0;
  friend bool operator==(const SchemeParams&, const SchemeParams&) = default;
};

/// Describes a tensor without its data.
///
/// Lifetime: `source` refers to memory of the provider, also in a copy.
struct WeightInfo {
  std::string name;                 ///< canonical name, or the source name if no rule maps it
  std::string_view source;          ///< name in the file
  std::vector<std::int64_t> shape;  ///< slowest axis first; the last axis of a pack is its
                                    ///< number of values, not of words
  Storage storage = Storage::raw;
  bool is_decoded = true;            ///< false: codes of a scheme that is not decoded
  std::uint32_t code = 0;            ///< effective type, see `code`
  std::string type_name;             ///< for example "mlx_q4", "Q4_K", "F16"
  std::optional<QuantParams> quant;  ///< of a pack
  std::uint32_t scales_code = 0;     ///< of a pack: type of the scales in get_tensor's buffer
  std::uint64_t stored_bytes = 0;    ///< in the file; of a pack or scheme with all its parts
  /// The scheme of Storage::scheme, such as "fp8"; else empty. The text is a constant.
  std::string_view scheme;
  SchemeParams scheme_params{};  ///< of Storage::scheme
};

/// A tensor of the file that belongs to a weight.
struct WeightPart {
  std::string role;                 ///< last component of the name: "weight", "weight_scale_inv"
  std::string source;               ///< name in the file, which get_stored() accepts
  std::uint32_t code = 0;           ///< type as stored, see `code`
  std::string type_name;            ///< likewise, such as "F8_E4M3"
  std::vector<std::int64_t> shape;  ///< as stored
  std::uint64_t stored_bytes = 0;
};

/// The old name of WeightInfo. Will be removed in the next version.
using TensorInfo [[deprecated("use WeightInfo")]] = WeightInfo;

}  // namespace safetensors::weights
