// Which processors lie beside which memory.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace safetensors::io {

/// Processors of a list as the kernel writes it, "0-3,8"; none for anything else.
[[nodiscard]] std::vector<unsigned> parse_processors(std::string_view list);

/// The node of a PCI device, by its address as "0000:3b:00.0"; -1 when the system does not tell.
[[nodiscard]] int node_of_pci(std::string_view address);

/// Keeps this thread to the processors of a node, of those it may use, when the machine has several
/// nodes and at least `fewest` of them are left. Returns whether it did. SAFETENSORS_NUMA=0 in the
/// environment leaves threads where they are. `root` is where the kernel shows its nodes.
bool stay_on_node(int node, unsigned fewest, const std::string& root = "/sys/devices/system/node");

}  // namespace safetensors::io
