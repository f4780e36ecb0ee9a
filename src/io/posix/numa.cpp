#include "io/numa.hpp"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <optional>

#include "io/posix/procfs.hpp"

namespace safetensors::io {
namespace {

// More than any machine has.
constexpr unsigned kMostProcessors = 1U << 16;

bool is_wanted() {
  enum : int { kUnknown, kNo, kYes };
  static constinit std::atomic<int> known{kUnknown};  // no lock, as a fork copies those
  int answer = known.load(std::memory_order_relaxed);
  if (answer == kUnknown) {
    const char* const text =
        std::getenv("SAFETENSORS_NUMA");  // NOLINT(concurrency-mt-unsafe): once
    answer = text == nullptr || std::string_view(text) != "0" ? kYes : kNo;
    known.store(answer, std::memory_order_relaxed);
  }
  return answer == kYes;
}

std::optional<std::string> first_word(const std::string& path) {
  const std::optional<std::string> text = read_kernel_file(path.c_str());
  if (!text) return std::nullopt;
  std::string_view rest = *text;
  return std::string(next_token(rest));
}

}  // namespace

std::vector<unsigned> parse_processors(std::string_view list) {
  std::vector<unsigned> processors;
  while (!list.empty()) {
    const std::string_view range = list.substr(0, list.find(','));
    list.remove_prefix(std::min(list.size(), range.size() + 1));
    const std::size_t dash = range.find('-');
    const auto first = parse_uint<unsigned>(range.substr(0, dash));
    const auto last =
        dash == std::string_view::npos ? first : parse_uint<unsigned>(range.substr(dash + 1));
    if (!first || !last || *first > *last || *last >= kMostProcessors) return {};
    for (unsigned i = *first; i <= *last; ++i) processors.push_back(i);
  }
  return processors;
}

int node_of_pci(std::string_view address) {
  std::string folder(address);
  for (char& c : folder) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  const auto word = first_word("/sys/bus/pci/devices/" + folder + "/numa_node");
  const auto node = word ? parse_uint<unsigned>(*word) : std::nullopt;  // "-1": not known
  return node ? static_cast<int>(*node) : -1;
}

bool stay_on_node(int node, unsigned fewest, const std::string& root) {
#if defined(__linux__)
  if (node < 0 || !is_wanted()) return false;
  const auto nodes = first_word(root + "/online");
  if (!nodes || parse_processors(*nodes).size() < 2) return false;
  const auto list = first_word(root + "/node" + std::to_string(node) + "/cpulist");
  if (!list) return false;
  cpu_set_t allowed;
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return false;
  cpu_set_t wanted;
  CPU_ZERO(&wanted);
  for (const unsigned processor : parse_processors(*list)) {
    if (processor < CPU_SETSIZE && CPU_ISSET(processor, &allowed)) CPU_SET(processor, &wanted);
  }
  if (static_cast<unsigned>(CPU_COUNT(&wanted)) < std::max(1U, fewest)) return false;
  return ::sched_setaffinity(0, sizeof wanted, &wanted) == 0;
#else
  (void)node;
  (void)fewest;
  (void)root;
  return false;
#endif
}

}  // namespace safetensors::io
