// A reader of a load to a device.
#pragma once

#include "device/load_state.hpp"

namespace safetensors::device {

/// Reads chunks and copies them to the device until none is left or the load stops, or as `turn`
/// says. What it throws ends the reader.
///
/// When it returns or throws, none of its copies is in flight.
/// Throws: what the sources and the device throw. The load was then stopped with that error.
void read_for_device(LoadState& load, const Turn& turn);

}  // namespace safetensors::device
