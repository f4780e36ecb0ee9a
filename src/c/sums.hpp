// The handle of sums in the C interface.
#pragma once

#include <memory>
#include <utility>

#include "safetensors/model.hpp"
#include "safetensors/safetensors.h"
#include "safetensors/sums.hpp"
#include "safetensors/verify.hpp"

namespace safetensors::c {

/// Sums that were read. Immutable.
struct OpenSums {
  explicit OpenSums(Sums read) : sums(std::move(read)), by_file(sums) {}
  OpenSums(const OpenSums&) = delete;
  OpenSums& operator=(const OpenSums&) = delete;

  const Sums sums;
  const SumsByFile by_file;
};

/// Writes the text of a digest, with a NUL, to SAFETENSORS_DIGEST_SIZE bytes.
void put_digest(const Digest& digest, char* to);

}  // namespace safetensors::c

struct safetensors_sums {
  std::shared_ptr<const safetensors::c::OpenSums> sums;  // shared with the files that are compared
};
