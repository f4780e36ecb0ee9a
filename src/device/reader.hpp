// One reader of a load: takes chunks, reads them, and sees that they land.
#pragma once

#include <functional>

#include "device/load_state.hpp"

namespace safetensors::device {

/// Until no chunk is left, the load stops, or `between` throws, which is called before each chunk.
/// When it returns or throws, nothing of what it began is under way any more. The number is that of
/// the reader among the load's.
void read_for_device(LoadState& load, unsigned number, const std::function<void()>& between);
void read_for_host(LoadState& load, const std::function<void()>& between);

}  // namespace safetensors::device
