#include <doctest/doctest.h>
#include <sched.h>

#include <thread>

#include "io/system.hpp"
#include "support.hpp"

using safetensors::io::parse_processors;
using safetensors::io::stay_on_node;

TEST_CASE("the kernel's lists of processors are parsed") {
  CHECK(parse_processors("0") == std::vector<unsigned>{0});
  CHECK(parse_processors("0-2,7,10-11") == std::vector<unsigned>{0, 1, 2, 7, 10, 11});
  for (const char* const wrong : {"", "x", "1-", "-1", "3-1", "1,,2", "0-99999999", "1-2-3"}) {
    CAPTURE(wrong);
    CHECK(parse_processors(wrong).empty());
  }
}

TEST_CASE("a process's control group is found in the kernel's list") {
  using safetensors::io::control_group;
  constexpr std::string_view kBoth =
      "9:name=systemd:/init\n4:cpu,memory:/a/b c:d\n3:cpuset:/memory\n1:pids:/\n0::/unified\n";
  CHECK(control_group(kBoth, "memory") == "/a/b c:d");
  CHECK(control_group(kBoth, "cpu") == "/a/b c:d");
  CHECK(control_group(kBoth, "") == "/unified");
  CHECK(control_group(kBoth, "pids").empty());  // the root
  CHECK(control_group(kBoth, "mem").empty());
  for (const char* const text : {"", "\n", "0::/", "0::", "0:", "0", "0::/../other", ":::", "x"}) {
    CAPTURE(text);
    CHECK(control_group(text, "").empty());
  }
}

TEST_CASE("a device that does not exist has no node") {
  CHECK(safetensors::io::node_of_pci("ffff:ff:ff.f") == -1);
  CHECK(safetensors::io::node_of_pci("") == -1);
}

#if defined(__linux__)
namespace {

/// Returns the processors that this thread may use.
cpu_set_t allowed() {
  cpu_set_t set;
  CPU_ZERO(&set);
  REQUIRE(::sched_getaffinity(0, sizeof set, &set) == 0);
  return set;
}

/// Calls stay_on_node in a new thread and returns its effect.
struct Moved {
  bool is_moved;
  cpu_set_t set;
};
Moved move(int node, unsigned fewest, const std::filesystem::path& root) {
  Moved moved{};
  std::thread([&] {
    moved.is_moved = stay_on_node(node, fewest, root.string());
    moved.set = allowed();
  }).join();
  return moved;
}

}  // namespace

TEST_CASE("a thread is bound to the allowed processors of one of several nodes") {
  const test::TempDir root;
  const cpu_set_t all = allowed();
  int first = 0;
  while (CPU_ISSET(first, &all) == 0) ++first;
  const auto describe = [&](const std::string& online, const std::string& processors) {
    std::filesystem::create_directories(root / "node1");
    test::write_text(root / "online", online + "\n");
    test::write_text(root / "node1/cpulist", processors + "\n");
  };

  describe("0-1", std::to_string(first) + ",1000");  // a processor that is not this thread's
  const Moved moved = move(1, 1, root.path());
  CHECK(moved.is_moved);
  CHECK(CPU_COUNT(&moved.set) == 1);
  CHECK(CPU_ISSET(first, &moved.set) != 0);

  const auto stays = [&](int node, unsigned fewest) {
    const Moved result = move(node, fewest, root.path());
    return !result.is_moved && CPU_EQUAL(&result.set, &all) != 0;
  };
  CHECK(stays(1, 2));   // too few are left
  CHECK(stays(2, 1));   // no such node
  CHECK(stays(-1, 1));  // not known
  describe("0", std::to_string(first));
  CHECK(stays(1, 1));  // one node: all memory is as near
  describe("0-1", "nonsense");
  CHECK(stays(1, 1));
}
#endif
