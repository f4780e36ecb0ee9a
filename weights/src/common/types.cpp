#include "safetensors/weights/types.hpp"

namespace safetensors::weights {

std::string_view name(Format format) noexcept {
  switch (format) {
    case Format::hf_safetensors:
      return "hf_safetensors";
    case Format::mlx_safetensors:
      return "mlx_safetensors";
    case Format::gguf:
      return "gguf";
  }
  return {};
}

std::string_view name(Storage storage) noexcept {
  switch (storage) {
    case Storage::raw:
      return "raw";
    case Storage::mlx_pack:
      return "mlx_pack";
    case Storage::ggml_block:
      return "ggml_block";
    case Storage::scheme:
      return "scheme";
  }
  return {};
}

std::string_view name(QuantMode mode) noexcept {
  switch (mode) {
    case QuantMode::affine:
      return "affine";
    case QuantMode::mxfp4:
      return "mxfp4";
    case QuantMode::mxfp8:
      return "mxfp8";
    case QuantMode::nvfp4:
      return "nvfp4";
  }
  return {};
}

std::optional<QuantMode> parse_quant_mode(std::string_view text) noexcept {
  // The first value without a name follows the last mode.
  for (std::uint8_t i = 0; !name(QuantMode{i}).empty(); ++i) {
    if (name(QuantMode{i}) == text) return QuantMode{i};
  }
  return std::nullopt;
}

}  // namespace safetensors::weights
