// The bytes that loads write, for many sizes, settings and orders of work.
#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "load_support.hpp"

namespace {

using safetensors::Device;
using safetensors::Load;
using safetensors::LoadTensor;
using test::Config;
using test::fake_device;
using test::FakeDriver;
using test::MemorySource;
using test::outcome_of;
using test::Wanted;

constexpr fake::Mode kModes[] = {fake::kEager, fake::kAsync, fake::kLazy};

/// Adjacent tensors of unaligned sizes, from an odd offset.
void add_awkward(Wanted& wanted) {
  std::uint64_t at = 13;
  for (const std::uint64_t nbytes : {1U, 0U, 3U, 4096U, 5U, 100'000U, 7U, 1U << 20U, 13U, 300'001U,
                                     2U, 2U, 2U, 2U, 65'536U, 4095U, 4097U}) {
    wanted.add(at, nbytes, 0, at % 3);
    at += nbytes;
  }
}

}  // namespace

TEST_CASE("every byte is loaded, for all modes, chunk sizes, readers, slots and streams") {
  const auto source = std::make_shared<MemorySource>(1'700'000);
  for (const fake::Mode mode : kModes) {
    for (const std::size_t chunk : {4096U, 12'288U, 65'536U, 8U << 20U}) {
      for (const auto& [threads, slots, streams] :
           {std::tuple{1U, 1U, 1U}, {1U, 2U, 1U}, {4U, 2U, 2U}, {8U, 3U, 4U}}) {
        CAPTURE(mode);
        CAPTURE(chunk);
        CAPTURE(threads);
        const FakeDriver driver(mode, mode == fake::kAsync ? 5 : 0);
        const Config config({.chunk_nbytes = chunk, .streams = streams, .slots = slots});
        Wanted wanted(source);
        add_awkward(wanted);
        wanted.load(fake_device(), threads);
        CHECK(wanted.is_all_right());
        CHECK(fakecuda_stat(fake::kCopiedBytes) == static_cast<long>(wanted.nbytes()));
        CHECK(fakecuda_stat(fake::kPageableCopies) == 0);
        CHECK(fakecuda_stat(fake::kMaxCopiesFromAddress) == 1);
        CHECK(driver.events_left() == 0);
        CHECK(fakecuda_pending(0) == 0);
      }
    }
  }
}

TEST_CASE("host: every byte is loaded, without calls of the driver") {
  const FakeDriver driver(fake::kLazy);
  const auto source = std::make_shared<MemorySource>(1'700'000);
  for (const unsigned threads : {1U, 5U}) {
    for (const std::size_t chunk : {4096U, 65'536U, 8U << 20U}) {
      const Config config({.chunk_nbytes = chunk});
      Wanted wanted(source);
      add_awkward(wanted);
      wanted.load({}, threads);
      CHECK(wanted.is_all_right());
    }
  }
  CHECK(fakecuda_calls("cuMemcpyHtoDAsync_v2") == 0);
}

TEST_CASE("host: short tensors among long ones") {
  constexpr std::uint64_t kLong = 300'000;
  for (const unsigned readers : {0U, 8U}) {
    CAPTURE(readers);
    const auto source = std::make_shared<MemorySource>(4'000'000);
    source->readers_wanted = readers;
    int reads = 0;
    source->on_read = [&] { ++reads; };
    Wanted wanted(source);
    std::uint64_t at = 5;
    for (const std::uint64_t nbytes : {kLong, std::uint64_t{10}, std::uint64_t{20}, kLong, kLong,
                                       std::uint64_t{30}, std::uint64_t{0}, kLong}) {
      wanted.add(at, nbytes);
      at += nbytes;
    }
    wanted.add(3'000'000, 7);
    wanted.add(3'000'100, kLong);  // after a gap
    wanted.load(safetensors::Device(), 1);
    CHECK(wanted.is_all_right());
    // I/O-bound: one read for each chunk. Else long tensors are read to their destinations, and
    // adjacent short ones together.
    CHECK(reads == (readers == 0 ? 8 : 2));
    if (readers == 0) CHECK(source->nbytes_read() == wanted.nbytes());
  }
}

TEST_CASE("random loads") {
  for (std::uint32_t seed = 1; seed <= 60; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const auto below = [&](unsigned end) { return static_cast<unsigned>(random() % end); };
    const FakeDriver driver(kModes[below(3)], below(2) == 0 ? 0 : 20);
    const Config config(
        {.chunk_nbytes = 4096 * (1 + below(30)), .streams = 1 + below(3), .slots = 1 + below(4)});
    Wanted wanted;
    const unsigned sources = 1 + below(4);
    for (unsigned i = 0; i < sources; ++i) {
      wanted.add_source(std::make_shared<MemorySource>(1 + below(400'000), seed * 8 + i));
    }
    const unsigned count = 1 + below(60);
    for (unsigned i = 0; i < count; ++i) {
      const auto source = static_cast<std::uint32_t>(below(sources));
      const auto size = static_cast<unsigned>(wanted.sources()[source]->size());
      const unsigned sizes[] = {0, 1, 2, 3, 511, 512, 513, below(size + 1), below(size + 1)};
      const unsigned nbytes = std::min(size, sizes[below(9)]);
      wanted.add(below(size - nbytes + 1), nbytes, source, below(8));
    }
    wanted.load(fake_device(static_cast<int>(below(2))), 1 + below(6));
    CHECK(wanted.is_all_right());
  }
}

TEST_CASE("runs of tensors are gathered") {
  using Loop = safetensors::ByteRuns::Loop;
  const auto source = std::make_shared<MemorySource>(2'000'000);
  const std::vector<safetensors::ByteRuns> parts = {
      {.first = 0, .run_nbytes = 1, .loops = {Loop{1000, 3}}},
      {.first = 5, .run_nbytes = 2, .loops = {Loop{7, 100'000}, Loop{11, 64}}},
      {.first = 17, .run_nbytes = 4096, .loops = {Loop{100, 8192}}},
      {.first = 1, .run_nbytes = 70'000, .loops = {Loop{20, 80'000}}},
      {.first = 9, .run_nbytes = 300'000, .loops = {Loop{4, 300'001}}},
      {.first = 3, .run_nbytes = 12, .loops = {}},
      {.first = 3, .run_nbytes = 12, .loops = {Loop{3, 500'000}, Loop{5, 5'000}, Loop{7, 50}}},
      {.first = 0, .run_nbytes = 8, .loops = {Loop{0, 8}}},
  };
  for (const fake::Mode mode : kModes) {
    for (const std::size_t chunk : {4096U, 65'536U, 4U << 20U}) {
      for (const unsigned threads : {1U, 4U}) {
        CAPTURE(chunk);
        const FakeDriver driver(mode);
        const Config config({.chunk_nbytes = chunk});
        Wanted wanted(source);
        for (const auto& runs : parts) {
          wanted.add_runs(31, runs);
          wanted.add(100, 5000);  // whole tensors between the parts
        }
        wanted.load(fake_device(), threads);
        for (std::size_t i = 0; i < wanted.size(); ++i) {
          CAPTURE(i);
          CHECK(wanted.is_right(i));
        }
        Wanted on_host(source);
        for (const auto& runs : parts) on_host.add_runs(31, runs);
        on_host.load({}, threads);
        CHECK(on_host.is_all_right());
      }
    }
  }
}

TEST_CASE("parts of tensors go to strided destinations") {
  using Loop = safetensors::ByteRuns::Loop;
  const auto source = std::make_shared<MemorySource>(2'000'000);
  for (const fake::Mode mode : kModes) {
    for (const std::size_t chunk : {4096U, 65'536U, 4U << 20U}) {
      CAPTURE(chunk);
      const FakeDriver driver(mode);
      const Config config({.chunk_nbytes = chunk});
      Wanted wanted(source);
      // Blocks of columns side by side in rows of 700 bytes; a column; a block of rows and one row.
      wanted.add_parts(
          31, {{0, 300, {Loop{500, 3000, 700}}, 0}, {900, 400, {Loop{500, 3000, 700}}, 300}},
          350'000);
      wanted.add_parts(0, {{7, 2, {Loop{1000, 1000, 64}}, 10}}, 64'000);
      wanted.add_parts(100, {{500'000, 300'000, {}, 0}, {5, 10, {}, 300'000}}, 300'010);
      wanted.add_parts(100, {{0, 0, {}, 0}, {5, 10, {}, 3}}, 20);
      for (const Device& device : {fake_device(), Device()}) {
        wanted.poison();
        wanted.load(device, 3);
        for (std::size_t i = 0; i < wanted.size(); ++i) {
          CAPTURE(i);
          CHECK(wanted.is_right(i));
        }
      }
    }
  }
}

TEST_CASE("many small tensors, and bytes that several tensors share") {
  const auto source = std::make_shared<MemorySource>(300'000);
  for (const fake::Mode mode : kModes) {
    const FakeDriver driver(mode);
    const Config config({.chunk_nbytes = 16'384});
    Wanted wanted(source);
    for (std::uint64_t i = 0; i < 5000; ++i) wanted.add(i * 37 % 290'000, i % 60);
    wanted.load(fake_device(), 3);
    CHECK(wanted.is_all_right());
  }
}

TEST_CASE("unwanted bytes are not read") {
  const FakeDriver driver(fake::kEager);
  const auto source = std::make_shared<MemorySource>(4 << 20);
  Wanted wanted(source);
  wanted.add(10, 100);
  wanted.add(3 << 20, 100);
  wanted.load(fake_device());
  CHECK(wanted.is_all_right());
  CHECK(source->nbytes_read() <= 4 * 4096);
}

TEST_CASE("a load without tensors, and one of empty tensors") {
  const FakeDriver driver(fake::kLazy);
  Wanted wanted(std::make_shared<MemorySource>(10));
  wanted.load(fake_device());
  wanted.add(0, 0);
  wanted.add(10, 0);
  wanted.load(fake_device());
  CHECK(wanted.is_all_right());
  CHECK(fakecuda_calls("cuMemcpyHtoDAsync_v2") == 0);
}

TEST_CASE("progress grows and ends with the total") {
  const FakeDriver driver(fake::kAsync);
  for (const unsigned threads : {1U, 3U}) {
    for (const bool is_host : {false, true}) {
      const Config config({.chunk_nbytes = 4096});
      const auto source = std::make_shared<MemorySource>(400'000);
      source->delay = std::chrono::milliseconds(5);
      Wanted wanted(source);
      wanted.add_all(10'000);
      Load load(is_host ? Device() : fake_device(), wanted.sources(), {.threads = threads});
      load.add(wanted.tensors());
      load.finish();
      std::vector<std::uint64_t> seen;
      load.wait({}, [&](std::uint64_t done, std::uint64_t total) {
        CHECK(total == 400'000);
        seen.push_back(done);
      });
      CHECK(std::ranges::is_sorted(seen));
      REQUIRE(!seen.empty());
      CHECK(seen.back() == 400'000);
      CHECK(load.done_nbytes() == 400'000);
      CHECK_MESSAGE(seen.size() >= 2, "a report while a load of 160 ms and more was under way");
      CHECK(wanted.is_all_right());
    }
  }
}

TEST_CASE("invalid arguments are refused") {
  const FakeDriver driver(fake::kEager);
  Wanted wanted(std::make_shared<MemorySource>(1000));
  wanted.add(0, 100);
  const auto outcome = [&](const auto& change) {
    Load load(fake_device(), wanted.sources());
    std::vector<LoadTensor> tensors = wanted.tensors();
    change(tensors[0]);
    std::string said = outcome_of([&] { load.add(tensors); });
    load.finish();
    load.wait(test::deadline());  // the refused tensors were not added
    return said;
  };
  CHECK(outcome([](LoadTensor&) {}) == "ok");
  CHECK(outcome([](LoadTensor& t) { t.source = 1; }) == "kInvalidArgument");
  CHECK(outcome([](LoadTensor& t) { t.offset = 901; }) == "kInvalidArgument");
  CHECK(outcome([](LoadTensor& t) { t.offset = UINT64_MAX - 10; }) == "kInvalidArgument");
  CHECK(outcome([](LoadTensor& t) { t.nbytes = UINT64_MAX; }) == "kInvalidArgument");
  CHECK(outcome([](LoadTensor& t) { t.to = 0; }) == "kInvalidArgument");
  CHECK(outcome([](LoadTensor& t) { t.to = UINT64_MAX - 50; }) == "kInvalidArgument");
  CHECK(outcome([](LoadTensor& t) { t.runs = {{.first = 0, .run_nbytes = 5, .loops = {}}}; }) ==
        "kInvalidArgument");
  CHECK(wanted.is_all_right());

  Load load(fake_device(), wanted.sources());
  load.finish();
  CHECK(outcome_of([&] { load.add(wanted.tensors()); }) == "kInvalidArgument");
  CHECK(outcome_of([] { safetensors::set_load_config({.chunk_nbytes = 5000}); }) ==
        "kInvalidArgument");
  CHECK(outcome_of([] { safetensors::set_load_config({.threads = 100'000}); }) ==
        "kInvalidArgument");
}
