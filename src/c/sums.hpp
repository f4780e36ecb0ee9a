// The handle of sums in the C interface.
#pragma once

#include <memory>

#include "safetensors/safetensors.h"
#include "safetensors/sums.hpp"

/// Immutable.
struct safetensors_sums {
  std::shared_ptr<const safetensors::Sums> sums;  // shared with the files that are compared
};
