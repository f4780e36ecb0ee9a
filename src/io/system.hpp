// Processors and memory of this machine and process, and libraries loaded at run time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace safetensors::io {

/// Returns how many processors this process may use, by its affinity and its control group.
[[nodiscard]] unsigned processor_count() noexcept;

/// Returns the size of a page of memory, in bytes.
[[nodiscard]] std::size_t page_size() noexcept;

/// Returns how many bytes of memory can be allocated without swapping, within the limits set for
/// this process; the largest number if the system does not say.
[[nodiscard]] std::uint64_t memory_available();

/// Returns the control group of a controller, such as "/user.slice/a", from the text of
/// /proc/self/cgroup. Control groups v2 have the controller "". Returns nothing for the root, and
/// for a group that is outside of the namespace.
[[nodiscard]] std::string_view control_group(std::string_view groups, std::string_view controller);

/// Sets whether a forked process gets a copy of these whole pages, as is the default, or no memory
/// in their place. Returns false if the system cannot do so.
[[nodiscard]] bool copy_on_fork(std::span<std::byte> pages, bool is_copied) noexcept;

/// Returns the processors in a list as the kernel writes it, such as "0-3,8"; none if the text is
/// not such a list.
[[nodiscard]] std::vector<unsigned> parse_processors(std::string_view list);

/// Returns the NUMA node of a PCI device with an address such as "0000:3b:00.0"; -1 if the system
/// does not say.
[[nodiscard]] int node_of_pci(std::string_view address);

/// Restricts this thread to those processors of a NUMA node that it may use, if the machine has
/// several nodes and at least `min_processors` of them are left. Returns whether it did. `root` is
/// the directory in which the kernel shows its nodes.
bool stay_on_node(int node, unsigned min_processors,
                  const std::string& root = "/sys/devices/system/node");

/// A loaded library, which stays loaded until the process ends. Cheap to copy.
class DynamicLibrary {
 public:
  /// Returns the library with this name or path: the process's copy if it has loaded one, else the
  /// one that the system finds. Returns nothing if there is none, or it cannot be loaded.
  [[nodiscard]] static std::optional<DynamicLibrary> open(const char* name) noexcept;
  /// Returns the address of a symbol; nullptr if the library has no symbol with this name.
  [[nodiscard]] void* symbol(const char* name) const noexcept;

 private:
  explicit DynamicLibrary(void* handle) noexcept : handle_(handle) {}
  void* handle_;
};

}  // namespace safetensors::io
