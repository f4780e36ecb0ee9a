// A reader of a load to a device.
#pragma once

#include <functional>

#include "device/load_state.hpp"

namespace safetensors::device {

/// Reads chunks and copies them to the device until none is left or the load stops. `number`
/// identifies the reader within the load. `between` is called before each chunk; what it throws
/// ends the reader.
///
/// When it returns or throws, none of its copies is in flight.
/// Throws: what the sources and the device throw. The load was then stopped with that error.
void read_for_device(LoadState& load, unsigned number, const std::function<void()>& between);

}  // namespace safetensors::device
