// Loads with random faults and stops: none leaves a copy in flight, and none affects the next.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "load_support.hpp"

namespace {

using namespace std::chrono_literals;
using safetensors::Device;
using safetensors::Load;
using test::Config;
using test::fake_device;
using test::FakeDriver;
using test::MemorySource;
using test::Wanted;

struct Interrupted : std::exception {};

constexpr const char* kFunctions[] = {
    "cuCtxPushCurrent_v2", "cuStreamIsCapturing", "cuMemHostRegister_v2", "cuMemHostAlloc",
    "cuEventCreate",       "cuEventRecord",       "cuStreamWaitEvent",    "cuMemcpyHtoDAsync_v2",
    "cuEventQuery",        "cuEventSynchronize",  "cuStreamSynchronize",  "cuEventDestroy_v2",
};
constexpr int kCodes[] = {1, 2, 700, 719};
constexpr fake::Mode kModes[] = {fake::kEager, fake::kAsync, fake::kLazy};

/// One load with random faults.
class Storm {
 public:
  explicit Storm(std::uint32_t seed) : random_(seed) {
    source_->delay = std::chrono::microseconds(below(100));
    wanted_.add_source(source_);
    wanted_.add_all(500 + below(20'000));
  }

  /// Whether it loaded all tensors.
  bool run(const Device& device) {
    if (below(3) == 0) {
      const char* const function = kFunctions[below(std::size(kFunctions))];
      const long nth = 1 + below(20);
      const int code = kCodes[below(std::size(kCodes))];
      fakecuda_fault(function, nth, code);
      plan_ = std::string(function) + ' ' + std::to_string(nth) + ' ' + std::to_string(code);
    }
    if (below(4) == 0) source_->ends_at = below(kNbytes);
    const unsigned interrupt_after = below(3) == 0 ? below(3) : 1000;
    const unsigned stop_after_us = below(4) == 0 ? below(3000) : 0;
    const bool is_background = below(2) == 0;

    std::thread other;
    bool is_whole = false;
    try {
      Load load(device, wanted_.sources(), {.threads = 1 + below(4)});
      const std::shared_ptr<void> join(nullptr, [&](void*) {
        if (other.joinable()) other.join();
      });
      add_by_parts(load);
      if (is_background) load.start();
      if (stop_after_us != 0) {
        other = std::thread([&load, stop_after_us] {
          std::this_thread::sleep_for(std::chrono::microseconds(stop_after_us));
          load.stop();
        });
      }
      if (is_background) consume(load);
      unsigned asked = 0;
      load.wait([&] {
        if (asked++ == interrupt_after) throw Interrupted();
      });
      is_whole = load.done_nbytes() == wanted_.nbytes();
    } catch (const safetensors::Error&) {
      is_whole = false;
    } catch (const Interrupted&) {
      is_whole = false;
    }
    return is_whole;
  }

  /// The function of the driver that was to fail.
  [[nodiscard]] const std::string& plan() const { return plan_; }
  [[nodiscard]] Wanted& wanted() { return wanted_; }
  [[nodiscard]] MemorySource& source() { return *source_; }
  unsigned below(std::size_t end) { return static_cast<unsigned>(random_() % end); }

 private:
  static constexpr std::size_t kNbytes = 200'000;

  void add_by_parts(Load& load) {
    const std::vector<safetensors::LoadTensor> tensors = wanted_.tensors();
    for (std::size_t at = 0; at < tensors.size();) {
      const std::size_t count = std::min(tensors.size() - at, std::size_t{1} + below(20));
      load.add(std::span(tensors).subspan(at, count), nullptr, below(2) == 0);
      at += count;
    }
    load.finish();
  }
  void consume(Load& load) {
    for (unsigned left = below(10); left != 0; --left) {
      const auto tensor = load.next_ready(test::deadline());
      if (!tensor) return;
      CHECK(wanted_.is_right(*tensor));
    }
  }

  std::mt19937 random_;
  std::shared_ptr<MemorySource> source_ = std::make_shared<MemorySource>(kNbytes);
  Wanted wanted_;
  std::string plan_;
};

}  // namespace

TEST_CASE("storm: loads with random faults and stops") {
  int well = 0;
  int badly = 0;
  for (std::uint32_t seed = 1; seed <= 200; ++seed) {
    CAPTURE(seed);
    Storm storm(seed);
    const fake::Mode mode = kModes[storm.below(3)];
    const FakeDriver driver(mode, static_cast<int>(storm.below(50)));
    const Config config({.chunk_nbytes = 4096 * std::size_t{1 + storm.below(3)},
                         .streams = 1 + storm.below(3),
                         .slots = 1 + storm.below(3)});
    const Device device = fake_device(static_cast<int>(storm.below(2)));
    const bool is_well = storm.run(device);
    CAPTURE(mode);
    CAPTURE(storm.plan());
    ++(is_well ? well : badly);
    if (is_well) CHECK(storm.wanted().is_all_right());
    storm.wanted().poison();
    fakecuda_run();
    CHECK(storm.wanted().is_poisoned());

    fakecuda_clear();
    storm.source().ends_at = UINT64_MAX;
    storm.wanted().load(device, 1 + storm.below(4));
    CHECK(storm.wanted().is_all_right());
  }
  // With these seeds both outcomes occur.
  CHECK(well > 20);
  CHECK(badly > 20);
}
