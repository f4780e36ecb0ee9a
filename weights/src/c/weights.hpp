// The handle of a model in the C interface, and how its functions fail.
#pragma once

#include <cstdint>
#include <utility>

#include "c/guard.hpp"
#include "c/kept.hpp"
#include "safetensors/weights.h"
#include "safetensors/weights/error.hpp"
#include "safetensors/weights/provider.hpp"

struct safetensors_weights {
  explicit safetensors_weights(safetensors::weights::WeightProvider opened)
      : model(std::move(opened)) {}

  safetensors::weights::WeightProvider model;
  mutable safetensors::weights::Kept kept{};
};

namespace safetensors::weights {

/// Runs `work`, as c::guarded does, and sets `detail` to the fault of a WeightsError.
template <typename Work>
std::int32_t guarded(safetensors_error* error, const Work& work) noexcept {
  std::int32_t fault = 0;
  const std::int32_t code = c::guarded(error, [&] {
    try {
      work();
    } catch (const WeightsError& thrown) {
      fault = static_cast<std::int32_t>(thrown.code());
      throw;
    }
  });
  // That of SAFETENSORS_STOPPED is the number of a callback.
  if (error != nullptr && code > SAFETENSORS_OK) error->detail = fault;
  return code;
}

}  // namespace safetensors::weights
