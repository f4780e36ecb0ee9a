// A reader of a load to host memory.
#pragma once

#include "device/load_state.hpp"

namespace safetensors::device {

/// Reads chunks to their destinations until none is left or the load stops, or as `turn` says. What
/// it throws ends the reader.
///
/// Throws: what the sources throw. The load was then stopped with that error.
void read_for_host(LoadState& load, const Turn& turn);

}  // namespace safetensors::device
