// Copies from devices to host memory.
#include <doctest/doctest.h>

#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "load_support.hpp"

namespace {

using safetensors::copy_to_host;
using safetensors::Error;
using safetensors::ErrorCode;
using safetensors::HostCopy;
using test::address_of;
using test::Config;
using test::Current;
using test::fake_device;
using test::FakeDriver;
using test::OwnStream;

constexpr std::size_t kSlot = 4096;

/// Tensors on a device, and host memory for them.
class Tensors {
 public:
  explicit Tensors(const std::vector<std::size_t>& sizes) {
    std::uint32_t seed = 1;
    for (const std::size_t size : sizes) {
      device_.push_back(test::pattern(size, seed++));
      host_.emplace_back(size, std::byte{0xEE});
    }
  }
  std::vector<std::byte>& on_device(std::size_t i) { return device_[i]; }
  [[nodiscard]] std::vector<HostCopy> copies() {
    std::vector<HostCopy> all;
    for (std::size_t i = 0; i < host_.size(); ++i) {
      all.push_back({address_of(device_[i].data()), host_[i]});
    }
    return all;
  }
  [[nodiscard]] bool are_equal() const { return device_ == host_; }
  [[nodiscard]] std::size_t count() const { return host_.size(); }

 private:
  std::vector<std::vector<std::byte>> device_;
  std::vector<std::vector<std::byte>> host_;
};

std::vector<std::size_t> mixed_sizes() {
  return {1, 0, kSlot, kSlot - 1, 3, 10 * kSlot + 7, 2, 2 * kSlot, 5, 0, 100};
}

}  // namespace

TEST_CASE("copy to host: all bytes, for every mode of the driver and number of slots") {
  for (const fake::Mode mode : {fake::kEager, fake::kAsync, fake::kLazy}) {
    for (const unsigned slots : {1U, 2U, 5U}) {
      CAPTURE(slots);
      const FakeDriver driver(mode, 50);
      const Current current(0);
      const Config config({.chunk_nbytes = kSlot, .slots = slots});
      Tensors tensors(mixed_sizes());
      copy_to_host(fake_device(), nullptr, tensors.copies());
      CHECK(tensors.are_equal());
      CHECK(driver.events_left() == 0);
      CHECK(fakecuda_stat(fake::kPageableCopies) == 0);
    }
  }
}

TEST_CASE("copy to host: small tensors share a slot, and its event") {
  const FakeDriver driver(fake::kLazy);
  const Config config({.chunk_nbytes = kSlot, .slots = 2});
  Tensors tensors(std::vector<std::size_t>(1000, 4));
  copy_to_host(fake_device(), nullptr, tensors.copies());
  CHECK(tensors.are_equal());
  CHECK(fakecuda_calls("cuEventSynchronize") == 1);  // 4,000 bytes
}

TEST_CASE("copy to host: comes after the work that was queued on the caller's stream") {
  const FakeDriver driver(fake::kLazy);
  const Current current(0);
  const OwnStream stream;
  const Config config({.chunk_nbytes = kSlot});
  for (void* const handle : {stream.handle(), static_cast<void*>(nullptr)}) {
    Tensors tensors({3 * kSlot});
    test::succeed(
        cuMemsetD8Async(address_of(tensors.on_device(0).data()), 0x55, 3 * kSlot, handle));
    copy_to_host(fake_device(), handle, tensors.copies());
    CHECK(tensors.on_device(0).back() == std::byte{0x55});
    CHECK(tensors.are_equal());
  }
}

TEST_CASE("copy to host: takes bytes from a slot only when the device has filled it") {
  const FakeDriver driver(fake::kLazy);
  const Config config({.chunk_nbytes = kSlot, .slots = 2});
  Tensors tensors({20 * kSlot});
  copy_to_host(fake_device(), nullptr, tensors.copies());
  CHECK(tensors.are_equal());
}

TEST_CASE("copy to host: staging memory is free only when the device writes to it no more") {
  const FakeDriver driver(fake::kLazy);
  const Current current(0);
  const Config config({.chunk_nbytes = kSlot, .slots = 2});
  Tensors first({8 * kSlot});
  int calls = 0;
  const auto stop = [&] {
    if (++calls == 2) throw std::runtime_error("stopped");
  };
  CHECK_THROWS_WITH(copy_to_host(fake_device(), nullptr, first.copies(), stop), "stopped");
  CHECK(driver.events_left() == 0);
  CHECK(fakecuda_pending(0) == 0);
}

TEST_CASE("copy to host: several threads at once") {
  const FakeDriver driver(fake::kAsync, 20);
  const Config config({.chunk_nbytes = kSlot, .slots = 2});
  std::vector<Tensors> all(4, Tensors(mixed_sizes()));
  std::vector<std::thread> threads;
  for (Tensors& tensors : all) {
    threads.emplace_back([&] { copy_to_host(fake_device(), nullptr, tensors.copies()); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Tensors& tensors : all) CHECK(tensors.are_equal());
}

TEST_CASE("copy to host: without pinned memory, and from another device") {
  const FakeDriver driver(fake::kLazy);
  const Config config({.chunk_nbytes = kSlot, .staging_nbytes = kSlot, .slots = 2});
  Tensors tensors(mixed_sizes());
  copy_to_host(fake_device(1), nullptr, tensors.copies());
  CHECK(tensors.are_equal());
  CHECK(fakecuda_stat(fake::kPageableCopies) > 0);
}

TEST_CASE("copy to host: the host, and a stream that is being captured, are refused") {
  const FakeDriver driver(fake::kEager);
  const Current current(0);
  Tensors tensors({100});
  CHECK_THROWS_AS(copy_to_host(safetensors::Device(), nullptr, tensors.copies()), Error);
  fakecuda_capturing(0, 1);
  CHECK_THROWS_AS(copy_to_host(fake_device(), nullptr, tensors.copies()), Error);
  fakecuda_capturing(0, 0);
  CHECK_FALSE(tensors.are_equal());
}

TEST_CASE("copy to host: any call to the driver fails, with any error") {
  const Config config({.chunk_nbytes = kSlot, .slots = 2});
  const std::vector<std::string> functions = {
      "cuCtxPushCurrent_v2", "cuStreamIsCapturing", "cuEventCreate",       "cuEventRecord",
      "cuStreamWaitEvent",   "cuEventSynchronize",  "cuStreamSynchronize", "cuMemcpyDtoHAsync_v2"};
  std::map<std::string, long> calls;
  {
    const FakeDriver driver(fake::kLazy);
    Tensors tensors(mixed_sizes());
    copy_to_host(fake_device(), nullptr, tensors.copies());
    for (const std::string& function : functions)
      calls[function] = fakecuda_calls(function.c_str());
  }
  for (const std::string& function : functions) {
    CAPTURE(function);
    REQUIRE(calls[function] > 0);
    for (long nth = 1; nth <= calls[function]; ++nth) {
      for (const int code : {2, 700}) {
        const FakeDriver driver(fake::kLazy);
        Tensors tensors(mixed_sizes());
        const auto copies = tensors.copies();
        const safetensors::Device device = fake_device();
        fakecuda_fault(function.c_str(), nth, code);
        try {
          copy_to_host(device, nullptr, copies);
          CHECK(tensors.are_equal());
        } catch (const Error& error) {
          CHECK(error.code() == ErrorCode::kDevice);
        }
      }
    }
  }
}
