// Reading while each system call fails in turn.
#include <doctest/doctest.h>

#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "faults.hpp"
#include "io/system.hpp"
#include "safetensors/safe_open.hpp"

using faults::Call;
using faults::Effect;
using faults::Kind;
using faults::Outcome;
using faults::Plan;
using safetensors::Backend;
using safetensors::ByteRuns;
using safetensors::SafeOpen;

namespace {

/// Makes a file with small tensors, one for which memory is mapped, and a header that takes two
/// reads.
test::fs::path good_file(const test::TempDir& folder) {
  std::vector<test::OwnTensor> tensors = test::some_tensors();
  tensors.push_back(test::tensor_of("large", safetensors::Dtype::kU8, {5U << 20}, 9));
  tensors.push_back(test::tensor_of("rows", safetensors::Dtype::kU8, {6, 100'000}, 10));
  const safetensors::Metadata metadata = {{"long", std::string(70'000, 'm')}};
  safetensors::save_file(test::views_of(tensors), folder / "good", &metadata);
  return folder / "good";
}

std::string all_of(const SafeOpen& file) {
  std::string found;
  for (const std::string_view key : file.keys()) {
    const safetensors::TensorView view = file.get_tensor(key);
    found += std::string(key) + "=" + test::text_of(view.bytes());
  }
  for (const safetensors::TensorView& view : file.get_tensors()) {
    found += test::text_of(view.bytes());
  }
  std::string rows(60, '\0');
  const ByteRuns far = {7, 10, {{6, 100'000, 10}}};
  file.read(file.at("rows"), far, std::as_writable_bytes(std::span(rows)));
  found += rows;
  const ByteRuns near = {7, 10, {{6, 20, 10}}};
  file.read(file.at("rows"), near, std::as_writable_bytes(std::span(rows)));
  return found + rows + std::to_string(file.header().metadata()[0].second.size());
}

/// Returns how often `name` is in this process's memory map.
std::size_t mappings_of(const test::fs::path& name) {
  std::ifstream maps("/proc/self/maps");
  std::size_t count = 0;
  for (std::string line; std::getline(maps, line);) {
    count += line.find(name.native()) != std::string::npos ? 1U : 0U;
  }
  return count;
}

/// Returns the only correct outcome.
std::string expected_verdict(const Plan& plan, const Call& call) {
  switch (call.kind) {
    case Kind::kOpen:
      return plan.error == EINTR ? "ok" : "kIo";
    case Kind::kRead:
      if (plan.effect == Effect::kNothing) return "kFileChanged";
      return plan.effect == Effect::kError && plan.error != EINTR ? "kIo" : "ok";
    case Kind::kMapFile:  // without a mapping it is read
      return plan.error == ENOMEM || plan.error == EAGAIN || plan.error == ENODEV ? "ok" : "kIo";
    case Kind::kMapMemory:
      return "kOutOfMemory";
    case Kind::kStatus:
    case Kind::kDuplicate:
      return "kIo";
    default:
      return "ok";
  }
}

/// Runs `work` once for each of its calls and each way in which that can fail.
void check_all(const test::fs::path& path, const std::function<std::string()>& work) {
  const std::size_t descriptors = test::open_descriptors();
  (void)safetensors::io::processor_count();  // asks the system once, and does without an answer
  const auto [calls, clean] = faults::run({}, work);
  REQUIRE(clean.verdict == "ok");
  std::set<Kind> kinds;
  std::size_t points = 0;
  for (std::size_t nth = 0; nth < calls.size(); ++nth) {
    kinds.insert(calls[nth].kind);
    for (Plan plan : faults::plans_for(calls[nth].kind)) {
      plan.nth = nth;
      const Outcome outcome = faults::run(plan, work).second;
      const std::string wanted = expected_verdict(plan, calls[nth]);
      CAPTURE(faults::shown(plan, calls[nth]));
      CAPTURE(outcome.text);
      CHECK(outcome.verdict == wanted);
      if (outcome.verdict == "ok") CHECK((outcome.result == clean.result));
      if (wanted == "kIo") CHECK(outcome.os_error == plan.error);
      if (wanted == "kIo" || wanted == "kFileChanged") {
        CHECK(outcome.text.find(path.native()) != std::string::npos);
      }
      CHECK(test::open_descriptors() == descriptors);
      CHECK(mappings_of(path) == 0);
      ++points;
    }
  }
  MESSAGE(calls.size(), " calls of ", kinds.size(), " kinds, ", points, " faults");

  const auto check = [&](const Outcome& outcome) {
    if (outcome.verdict == "ok") CHECK((outcome.result == clean.result));
    if (outcome.verdict != "ok" && outcome.verdict != "kOutOfMemory") {
      CHECK(outcome.verdict == "bad_alloc");
    }
    CHECK(test::open_descriptors() == descriptors);
    CHECK(mappings_of(path) == 0);
  };
  MESSAGE(faults::fail_each_allocation([] {}, work, check), " allocations");
}

}  // namespace

TEST_CASE("the library that injects faults is preloaded") { REQUIRE(faults_begin != nullptr); }

TEST_CASE("reading by mmap") {
  const test::TempDir folder;
  const test::fs::path path = good_file(folder);
  check_all(path, [&] { return all_of(SafeOpen(path, {Backend::kMmap})); });
}

TEST_CASE("reading by pread") {
  const test::TempDir folder;
  const test::fs::path path = good_file(folder);
  check_all(path, [&] { return all_of(SafeOpen(path, {Backend::kPread})); });
}

TEST_CASE("reading from a descriptor") {
  const test::TempDir folder;
  const test::fs::path path = good_file(folder);
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  REQUIRE(fd >= 0);
  check_all(path, [&] { return all_of(SafeOpen(fd, path, {Backend::kPread})); });
  ::close(fd);
}

TEST_CASE("reading many megabytes by several threads") {
  const test::TempDir folder;
  const std::vector<test::OwnTensor> tensors = {
      test::tensor_of("a", safetensors::Dtype::kU8, {9U << 20}, 1)};
  const test::fs::path path = folder / "good";
  safetensors::save_file(test::views_of(tensors), path);
  check_all(path, [&] {
    const SafeOpen file(path, {Backend::kPread});
    const safetensors::TensorView view = file.get_tensor("a");
    return std::string(test::text_of(view.bytes()) == test::text_of(tensors[0].bytes) ? "same"
                                                                                      : "other");
  });
}
