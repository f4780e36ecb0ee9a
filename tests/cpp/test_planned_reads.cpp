// planned_reads(), compared with the reads of a load from a source that records them.
#include <doctest/doctest.h>

#include <memory>
#include <random>
#include <vector>

#include "fake_source.hpp"
#include "safetensors/device.hpp"
#include "support.hpp"

using safetensors::ByteRuns;
using safetensors::Load;
using safetensors::LoadTensor;
using safetensors::PlannedReads;
using safetensors::ReadCost;

namespace {

constexpr std::size_t kFile = 1 << 20;

/// Random tensors and parts of tensors within the file, and memory for them.
struct Wanted {
  explicit Wanted(unsigned seed) {
    std::mt19937 random(seed);
    const auto below = [&](std::uint64_t bound) { return random() % bound; };
    for (std::size_t i = 0; i < 30; ++i) {
      LoadTensor tensor{.name = "t", .offset = below(kFile / 2), .nbytes = 1 + below(3000)};
      if (below(2) == 0) {
        ByteRuns rows{below(100), 1 + below(300), {{1 + below(40), 300 + below(5000)}}};
        rows.concatenate();
        ByteRuns last{kFile / 4 + below(1000), 1 + below(2000), {}, rows.nbytes()};
        tensor.runs = {rows, last};
        tensor.nbytes = rows.nbytes() + last.nbytes();
      }
      memory.emplace_back(tensor.nbytes);
      tensor.to = reinterpret_cast<std::uintptr_t>(memory.back().data());
      tensors.push_back(tensor);
    }
  }
  std::vector<std::vector<std::byte>> memory;
  std::vector<LoadTensor> tensors;
};

}  // namespace

TEST_CASE("of a server, a load reads what was planned, request by request") {
  for (unsigned seed = 0; seed < 40; ++seed) {
    CAPTURE(seed);
    for (const std::uint64_t gap : {0U, 100U, 10'000U}) {
      CAPTURE(gap);
      const auto source = std::make_shared<test::FakeSource>(test::pattern(kFile));
      source->read_cost = ReadCost{.gap_nbytes = gap,
                                   .chunk_nbytes = 20'000,
                                   .alignment = 1,
                                   .first_nbytes = 1000,
                                   .is_request = true};
      const std::vector<std::shared_ptr<const safetensors::ByteSource>> sources = {source};
      Wanted wanted(seed);
      const PlannedReads planned = safetensors::planned_reads(sources, wanted.tensors).front();
      CHECK(source->reads().empty());
      Load load({}, sources, {.threads = 3});
      load.add(wanted.tensors);
      load.finish();
      load.wait();
      CHECK(planned.read_count == source->reads().size());
      CHECK(planned.read_nbytes == source->nbytes_read());
      std::uint64_t nbytes = 0;
      for (const LoadTensor& tensor : wanted.tensors) nbytes += tensor.nbytes;
      CHECK(planned.wanted_nbytes == nbytes);
      for (const auto& [offset, size] : source->reads()) CHECK(size <= 20'000);
    }
  }
}

TEST_CASE("of a file, a load reads at most what was planned") {
  for (unsigned seed = 0; seed < 40; ++seed) {
    CAPTURE(seed);
    const auto source = std::make_shared<test::FakeSource>(test::pattern(kFile));
    const std::vector<std::shared_ptr<const safetensors::ByteSource>> sources = {source};
    Wanted wanted(seed);
    const PlannedReads planned = safetensors::planned_reads(sources, wanted.tensors).front();
    Load load({}, sources, {.threads = 1});
    load.add(wanted.tensors);
    load.finish();
    load.wait();
    CHECK(source->nbytes_read() <= planned.read_nbytes);
    CHECK(source->nbytes_read() > 0);
  }
}

TEST_CASE("another gap changes the plan, and nothing is planned outside a source") {
  const auto source = std::make_shared<test::FakeSource>(test::pattern(kFile));
  const std::vector<std::shared_ptr<const safetensors::ByteSource>> sources = {source};
  const std::vector<LoadTensor> tensors = {{.name = "a", .offset = 0, .nbytes = 10},
                                           {.name = "b", .offset = 50'000, .nbytes = 10}};
  CHECK(safetensors::planned_reads(sources, tensors).front().read_count == 1);
  CHECK(safetensors::planned_reads(sources, tensors, 1000).front().read_count == 2);
  const std::vector<LoadTensor> outside = {{.name = "a", .offset = kFile, .nbytes = 1}};
  CHECK(test::outcome_of([&] { (void)safetensors::planned_reads(sources, outside); }) ==
        "kInvalidArgument");
}
