#include "safetensors/weights/config.hpp"

namespace safetensors::weights {

std::string_view name(RopeStyle style) noexcept {
  switch (style) {
    case RopeStyle::half:
      return "half";
    case RopeStyle::interleaved:
      return "interleaved";
    case RopeStyle::mrope:
      return "mrope";
    case RopeStyle::imrope:
      return "imrope";
    case RopeStyle::none:
      return "none";
  }
  return {};
}

std::string_view name(LayerKind kind) noexcept {
  switch (kind) {
    case LayerKind::full:
      return "full";
    case LayerKind::sliding:
      return "sliding";
    case LayerKind::linear:
      return "linear";
    case LayerKind::conv:
      return "conv";
    case LayerKind::recurrent:
      return "recurrent";
    case LayerKind::other:
      return "other";
  }
  return {};
}

}  // namespace safetensors::weights
