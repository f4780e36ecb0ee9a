#include "io/system.hpp"

#include <dlfcn.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <limits>
#include <optional>
#include <string>
#include <thread>

#include "base/parse_integer.hpp"
#include "io/posix/procfs.hpp"

namespace safetensors::io {
namespace {

/// Returns the control group's limit of processor time, in processors and rounded up; nothing if
/// there is no limit. cpu.max is "QUOTA PERIOD" in microseconds, or "max PERIOD".
std::optional<unsigned> quota() noexcept {
#if defined(__linux__)
  try {
    const std::optional<std::string> text = read_kernel_file("/sys/fs/cgroup/cpu.max");
    if (!text) return std::nullopt;
    std::string_view rest = *text;
    const auto time = parse_integer<std::uint64_t>(next_token(rest));  // nothing for "max"
    const auto period = parse_integer<std::uint64_t>(next_token(rest));
    if (!time || !period || *period == 0) return std::nullopt;
    return static_cast<unsigned>(std::max<std::uint64_t>(1, (*time + *period - 1) / *period));
  } catch (const std::exception&) {
    return std::nullopt;
  }
#else
  return std::nullopt;
#endif
}

#if defined(__linux__)
constexpr std::uint64_t kUnknown = std::numeric_limits<std::uint64_t>::max();

/// Returns the number at the start of a kernel file, or the one after `key` in it.
std::uint64_t number_in(const std::string& path, std::string_view key = {}) {
  const std::optional<std::string> text = read_kernel_file(path.c_str());
  if (!text) return kUnknown;
  std::string_view rest = *text;
  while (!key.empty()) {
    const std::string_view word = next_token(rest);
    if (word.empty() || word == key) break;
  }
  return parse_integer<std::uint64_t>(next_token(rest)).value_or(kUnknown);  // "max" is no limit
}

/// Where a version of control groups shows the memory of each group.
struct GroupFiles {
  std::string_view controller;  ///< in /proc/self/cgroup
  const char* root;
  const char* limit;
  const char* used;
  std::string_view cache_key;  ///< in memory.stat
};
constexpr GroupFiles kGroupsV2 = {"", "/sys/fs/cgroup", "/memory.max", "/memory.current",
                                  "inactive_file"};
constexpr GroupFiles kGroupsV1 = {"memory", "/sys/fs/cgroup/memory", "/memory.limit_in_bytes",
                                  "/memory.usage_in_bytes", "total_inactive_file"};

/// Returns limit - (used - cache) of a control group: memory that holds file pages can be freed.
std::uint64_t available_in_group(const GroupFiles& files, const std::string& folder) {
  const std::uint64_t limit = number_in(folder + files.limit);
  if (limit == kUnknown) return kUnknown;
  const std::uint64_t used = number_in(folder + files.used);
  if (used == kUnknown) return kUnknown;
  std::uint64_t cache = number_in(folder + "/memory.stat", files.cache_key);
  if (cache == kUnknown) cache = 0;
  return limit - std::min(limit, used - std::min(used, cache));
}

/// Returns the least of this process's group and those above it. A container may show only a part
/// of them: then the root is the container's own group, whose path does not exist there.
std::uint64_t available_in_groups(const GroupFiles& files, std::string_view own_groups) {
  std::string group(control_group(own_groups, files.controller));
  std::uint64_t least = kUnknown;
  while (true) {
    least = std::min(least, available_in_group(files, files.root + group));
    if (group.empty()) return least;
    group.resize(group.rfind('/'));
  }
}
#endif

constexpr unsigned kMaxProcessors = 1U << 16;  // no machine has more

/// Returns the first token of a kernel file.
std::optional<std::string> first_token(const std::string& path) {
  const std::optional<std::string> text = read_kernel_file(path.c_str());
  if (!text) return std::nullopt;
  std::string_view rest = *text;
  return std::string(next_token(rest));
}

}  // namespace

unsigned processor_count() noexcept {
  // Not a local static, whose lock a fork could copy locked.
  static constinit std::atomic<unsigned> known{0};
  unsigned count = known.load(std::memory_order_relaxed);
  if (count == 0) {
    const unsigned allowed = std::max(1U, std::thread::hardware_concurrency());
    count = std::max(1U, std::min(allowed, quota().value_or(allowed)));
    known.store(count, std::memory_order_relaxed);
  }
  return count;
}

std::size_t page_size() noexcept { return static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)); }

bool copy_on_fork(std::span<std::byte> pages, bool is_copied) noexcept {
#if defined(MADV_DONTFORK)
  return ::madvise(pages.data(), pages.size(), is_copied ? MADV_DOFORK : MADV_DONTFORK) == 0;
#else
  (void)pages;
  return is_copied;
#endif
}

std::uint64_t memory_available() {
#if defined(__linux__)
  const std::uint64_t kib = number_in("/proc/meminfo", "MemAvailable:");
  const std::string groups = read_kernel_file("/proc/self/cgroup").value_or(std::string());
  return std::min({kib == kUnknown ? kUnknown : kib * 1024, available_in_groups(kGroupsV2, groups),
                   available_in_groups(kGroupsV1, groups)});
#else
  return std::numeric_limits<std::uint64_t>::max();
#endif
}

std::string_view control_group(std::string_view groups, std::string_view controller) {
  while (!groups.empty()) {
    std::string_view line = groups.substr(0, groups.find('\n'));
    groups.remove_prefix(std::min(line.size() + 1, groups.size()));
    line.remove_prefix(std::min(line.find(':') + 1, line.size()));
    std::string_view names = line.substr(0, line.find(':'));
    line.remove_prefix(std::min(names.size() + 1, line.size()));
    bool is_there = names == controller;
    while (!is_there && !names.empty()) {
      const std::string_view name = names.substr(0, names.find(','));
      names.remove_prefix(std::min(name.size() + 1, names.size()));
      is_there = name == controller;
    }
    const bool is_inside = line.starts_with('/') && line.find("/..") == std::string_view::npos;
    if (is_there) return is_inside && line != "/" ? line : std::string_view();
  }
  return {};
}

std::vector<unsigned> parse_processors(std::string_view list) {
  std::vector<unsigned> processors;
  while (!list.empty()) {
    const std::string_view range = list.substr(0, list.find(','));
    list.remove_prefix(std::min(list.size(), range.size() + 1));
    const std::size_t dash = range.find('-');
    const auto first = parse_integer<unsigned>(range.substr(0, dash));
    const auto last =
        dash == std::string_view::npos ? first : parse_integer<unsigned>(range.substr(dash + 1));
    if (!first || !last || *first > *last || *last >= kMaxProcessors) return {};
    for (unsigned i = *first; i <= *last; ++i) processors.push_back(i);
  }
  return processors;
}

int node_of_pci(std::string_view address) {
  std::string folder(address);
  for (char& c : folder) {  // the kernel's names are in lower case
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  const auto word = first_token("/sys/bus/pci/devices/" + folder + "/numa_node");
  const auto node = word ? parse_integer<unsigned>(*word) : std::nullopt;  // "-1" is unknown
  return node ? static_cast<int>(*node) : -1;
}

bool stay_on_node(int node, unsigned min_processors, const std::string& root) {
#if defined(__linux__)
  if (node < 0) return false;
  const auto nodes = first_token(root + "/online");
  if (!nodes || parse_processors(*nodes).size() < 2) return false;
  const auto list = first_token(root + "/node" + std::to_string(node) + "/cpulist");
  if (!list) return false;
  cpu_set_t allowed;
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return false;
  cpu_set_t wanted;
  CPU_ZERO(&wanted);
  for (const unsigned processor : parse_processors(*list)) {
    if (processor < CPU_SETSIZE && CPU_ISSET(processor, &allowed)) CPU_SET(processor, &wanted);
  }
  if (static_cast<unsigned>(CPU_COUNT(&wanted)) < std::max(1U, min_processors)) return false;
  return ::sched_setaffinity(0, sizeof wanted, &wanted) == 0;
#else
  (void)node;
  (void)min_processors;
  (void)root;
  return false;
#endif
}

std::optional<DynamicLibrary> DynamicLibrary::open(const char* name) noexcept {
  void* handle = ::dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  if (handle == nullptr) handle = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return std::nullopt;
  return DynamicLibrary(handle);
}

void* DynamicLibrary::symbol(const char* name) const noexcept { return ::dlsym(handle_, name); }

}  // namespace safetensors::io
