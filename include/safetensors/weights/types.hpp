// Element and storage types of weights, and the description of a tensor.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace safetensors::weights {

/// The formats that the weight layer reads.
enum class Format : std::uint8_t { hf_safetensors, mlx_safetensors, gguf };

/// How a tensor's values are stored.
enum class Storage : std::uint8_t {
  raw,         ///< one value after another
  mlx_pack,    ///< words of packed values, with scales and perhaps biases beside them
  ggml_block,  ///< blocks of values, each with its own scales
};

/// The modes of quantisation of MLX.
enum class QuantMode : std::uint8_t { affine, mxfp4, mxfp8, nvfp4 };

/// Parameters of an MLX pack.
struct QuantParams {
  QuantMode mode = QuantMode::affine;
  int bits = 4;         ///< of one value
  int group_size = 64;  ///< values along the last axis that share a scale
  friend bool operator==(const QuantParams&, const QuantParams&) = default;
};

/// Effective type of a tensor, as get_dtype() returns it: ggml's number if ggml has the type, else
/// a number from 99 on that ggml does not use. MLX packs have one code for each mode and number of
/// bits; WeightInfo::quant has the group size.
namespace code {
inline constexpr std::uint32_t kF32 = 0, kF16 = 1, kI8 = 24, kI16 = 25, kI32 = 26, kI64 = 27,
                               kF64 = 28, kBF16 = 30;
inline constexpr std::uint32_t kMlxQ3 = 99, kMlxQ4 = 100, kMlxQ8 = 101, kMlxQ6 = 102, kMlxQ2 = 103,
                               kMlxQ5 = 104, kMlxQ1 = 105, kMlxMxfp4 = 110, kMlxMxfp8 = 111,
                               kMlxNvfp4 = 112;
inline constexpr std::uint32_t kBool = 200, kU8 = 201, kU16 = 202, kU32 = 203, kU64 = 204,
                               kF8E4M3 = 205, kF8E5M2 = 206, kF8E8M0 = 207, kF8E4M3FNUZ = 208,
                               kF8E5M2FNUZ = 209, kC64 = 210, kF4 = 211, kF6E2M3 = 212,
                               kF6E3M2 = 213;
}  // namespace code

/// Describes a tensor without its data.
struct WeightInfo {
  std::string name;                 ///< canonical name, or the source name if no rule maps it
  std::string source;               ///< name in the file
  std::vector<std::int64_t> shape;  ///< slowest axis first; the last axis of a pack is its
                                    ///< number of values, not of words
  Storage storage = Storage::raw;
  bool is_decoded = true;            ///< false: codes of a scheme that is not decoded
  std::uint32_t code = 0;            ///< effective type, see `code`
  std::string type_name;             ///< for example "mlx_q4", "Q4_K", "F16"
  std::optional<QuantParams> quant;  ///< of a pack
  std::uint32_t scales_code = 0;     ///< of a pack: type of the scales in get_tensor's buffer
  std::uint64_t stored_bytes = 0;    ///< in the file; of a pack with its scales and biases
};

/// The old name of WeightInfo. Will be removed in the next version.
using TensorInfo [[deprecated("use WeightInfo")]] = WeightInfo;

}  // namespace safetensors::weights
