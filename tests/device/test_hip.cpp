// Loads by AMD's runtime: the same engine by other functions. No real device has run this.
#include <doctest/doctest.h>

#include <memory>
#include <string>

#include "device/hip_driver.hpp"
#include "load_support.hpp"

extern "C" int hipGetDevice(int* device);
extern "C" int hipSetDevice(int device);

namespace {

using safetensors::Device;
using safetensors::Load;
using test::Config;
using test::FakeDriver;
using test::MemorySource;
using test::outcome_of;
using test::Wanted;

/// A device of the fake runtime, which the library takes for the machine's.
Device fake_hip(int index) {
  REQUIRE(safetensors::device::hip_driver(SAFETENSORS_FAKE_HIP) != nullptr);
  return Device::hip(index);
}

int current_device() {
  int device = -1;
  REQUIRE(hipGetDevice(&device) == 0);
  return device;
}

}  // namespace

TEST_CASE("hip: every byte lands, on both devices, and the current device stays") {
  REQUIRE(hipSetDevice(1) == 0);
  const auto source = std::make_shared<MemorySource>(1'000'000);
  for (const fake::Mode mode : {fake::kEager, fake::kAsync, fake::kLazy}) {
    for (const int index : {0, 1}) {
      for (const unsigned threads : {1U, 4U}) {
        CAPTURE(mode);
        CAPTURE(index);
        const FakeDriver driver(mode);
        const Config config({.chunk_nbytes = 65'536});
        Wanted wanted(source);
        wanted.add_all(77'777);
        wanted.add_runs(5, {.first = 3, .run_nbytes = 10, .loops = {{100, 1000}, {7, 30}}});
        wanted.load(fake_hip(index), threads);
        CHECK(wanted.is_all_right());
        CHECK(fakecuda_stat(fake::kPageableCopies) == 0);
        CHECK(driver.events_left() == 0);
        CHECK(current_device() == 1);
      }
    }
  }
  REQUIRE(hipSetDevice(0) == 0);
}

TEST_CASE("hip: errors name the runtime's functions, and the next load works") {
  const auto source = std::make_shared<MemorySource>(300'000);
  const Config config({.chunk_nbytes = 65'536});
  struct Case {
    const char* fault;
    const char* named;
  };
  for (const Case& each :
       {Case{"cuMemcpyHtoDAsync_v2", "hipMemcpyAsync"}, Case{"cuEventRecord", "hipEventRecord"},
        Case{"cuEventCreate", "hipEventCreateWithFlags"},
        Case{"cuStreamSynchronize", "hipStreamSynchronize"}}) {
    CAPTURE(each.named);
    const FakeDriver driver(fake::kEager);
    const Device device = fake_hip(0);
    fakecuda_fault(each.fault, 1, 1);
    Wanted wanted(source);
    wanted.add_all(50'000);
    std::string text;
    try {
      wanted.load(device, 2);
    } catch (const safetensors::Error& error) {
      CHECK(error.code() == safetensors::ErrorCode::kDevice);
      text = error.what();
    }
    CHECK(text.find(std::string("(1) in ") + each.named) != std::string::npos);
    CHECK(text.find("HIP error") != std::string::npos);
    fakecuda_fault(each.fault, 1, 0);
    wanted.poison();
    wanted.load(device, 2);
    CHECK(wanted.is_all_right());
  }
}

TEST_CASE("hip: no such device; a stream that is being captured") {
  const FakeDriver driver(fake::kEager);
  CHECK(outcome_of([] { (void)fake_hip(17); }) == "kDevice");
  const Device device = fake_hip(0);
  fakecuda_capturing(0, 1);
  CHECK(device.is_capturing(nullptr));
  Wanted wanted(std::make_shared<MemorySource>(100));
  wanted.add_all(100);
  CHECK(outcome_of([&] { wanted.load(device); }) == "kInvalidArgument");
  fakecuda_capturing(0, 0);
  wanted.load(device);
  CHECK(wanted.is_all_right());
}
