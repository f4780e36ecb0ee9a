// Parts of tensors and many tensors, read by a SafeOpen.
#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "safetensors/safe_open.hpp"
#include "slice_oracle.hpp"
#include "support.hpp"

using safetensors::Backend;
using safetensors::ByteRuns;
using safetensors::Dtype;
using safetensors::Index;
using safetensors::SafeOpen;
using safetensors::TensorInfo;
using safetensors::TensorView;
using test::OwnTensor;

namespace {

constexpr Backend kBackends[] = {Backend::kMmap, Backend::kPread};

/// Returns how many bytes this process has read by system calls; nothing if the system does not
/// say.
std::optional<std::uint64_t> bytes_read() {
  std::ifstream io("/proc/self/io");
  std::string field;
  std::uint64_t value = 0;
  if (!(io >> field >> value) || field != "rchar:") return std::nullopt;
  return value;
}

/// Returns how many bytes `work` reads from files.
template <typename Work>
std::optional<std::uint64_t> bytes_read_by(const Work& work) {
  const auto start = bytes_read();
  const auto own = bytes_read();  // what asking itself reads
  if (!start || !own) return std::nullopt;
  work();
  return *bytes_read() - *own - (*own - *start);
}

}  // namespace

TEST_CASE("a selection equals reading element by element") {
  const test::TempDir folder;
  const OwnTensor tensor = test::tensor_of("t", Dtype::kF16, {5, 4, 6}, 3);
  const test::fs::path path = test::save_tensors(folder, std::vector{tensor});
  const std::vector<Index> choices = {
      Index::all(),      Index::at(1), Index::at(-1), Index::slice(1, 3), Index::slice({}, {}, 2),
      Index::slice(3, 1)};
  for (const Backend backend : kBackends) {
    const SafeOpen file(path, {backend});
    const TensorInfo& info = file.at("t");
    for (const Index& a : choices) {
      for (const Index& b : choices) {
        for (const Index& c : choices) {
          const std::vector<Index> indices = {a, b, c};
          std::vector<std::byte> wanted;
          for (const std::uint64_t i : test::expect_elements(indices, tensor.shape).elements) {
            wanted.insert(wanted.end(), {tensor.bytes[2 * i], tensor.bytes[2 * i + 1]});
          }
          const ByteRuns runs = safetensors::byte_runs(safetensors::resolve(indices, info.shape),
                                                       info.shape, info.dtype);
          std::vector<std::byte> got(runs.nbytes());
          file.read(info, runs, got);
          if (got != wanted) FAIL("a selection differs");
        }
      }
    }
  }
}

TEST_CASE("every way to read a slice gives its shape and values") {
  const test::TempDir folder;
  const std::vector<OwnTensor> tensors = {test::tensor_of("t", Dtype::kI32, {5, 4, 3})};
  const test::fs::path path = test::save_tensors(folder, tensors);
  const std::vector<std::vector<Index>> expressions = {
      {},
      {Index::slice(1, 3)},
      {Index::at(-1), Index::at(0)},
      {Index::all(), Index::at(2)},
      {Index::slice({}, {}, 2), Index::new_axis(), Index::ellipsis(), Index::slice(0, {}, 2)},
      {Index::slice(4, 1)}};
  for (const Backend backend : kBackends) {
    const SafeOpen file(path, {backend});
    const TensorView whole = file.get_tensor("t");
    for (const std::vector<Index>& indices : expressions) {
      const TensorView part = file.get_slice("t", indices);
      const auto selection = safetensors::resolve(indices, whole.shape);
      CHECK(std::ranges::equal(part.shape, selection.shape));
      CHECK(part.name == "t");
      std::vector<std::int32_t> wanted(part.element_count());
      whole.copy_slice_to(indices, std::span(wanted));
      std::vector<std::int32_t> copied(wanted.size());
      part.copy_to(std::span(copied));
      CHECK(copied == wanted);
      std::ranges::fill(copied, 0);
      file.copy_slice_to("t", indices, std::span(copied));
      CHECK(copied == wanted);
    }
    const bool shares = file.get_slice("t", {Index::slice(1, 3)}).owner() == file.mapping();
    CHECK(shares == (backend == Backend::kMmap));
    CHECK(file.get_slice("t", {Index::all(), Index::at(0)}).owner() != file.mapping());
    CHECK(test::outcome_of([&] { (void)file.get_slice("t", {Index::at(5)}); }) ==
          "kIndexOutOfBounds");
    CHECK(test::outcome_of([&] { (void)file.get_slice("u", {}); }) == "kTensorNotFound");
    std::vector<float> floats(60);
    CHECK(test::outcome_of([&] { file.copy_to("t", std::span(floats)); }) == "kInvalidArgument");
    CHECK(test::outcome_of([&] { file.copy_slice_to("t", {}, std::span(floats)); }) ==
          "kInvalidArgument");
  }
  const TensorView outlives = SafeOpen(path).get_slice("t", {Index::all(), Index::at(1)});
  CHECK(outlives.shape.size() == 2);
  CHECK(outlives.name == "t");
}

TEST_CASE("many tensors are read at once into the caller's memory; typed copies") {
  const test::TempDir folder;
  const std::vector<OwnTensor> tensors = test::some_tensors();
  const test::fs::path path = test::save_tensors(folder, tensors);
  for (const Backend backend : kBackends) {
    const SafeOpen file(path, {backend});
    std::vector<std::vector<std::byte>> memory;
    std::vector<safetensors::TensorRead> reads;
    for (const OwnTensor& tensor : tensors) {
      memory.emplace_back(tensor.bytes.size());
      reads.push_back({file.find(tensor.name), memory.back()});
    }
    file.read(reads);
    for (std::size_t i = 0; i < tensors.size(); ++i) CHECK(memory[i] == tensors[i].bytes);
    reads[1].to = reads[1].to.first(1);
    CHECK(test::outcome_of([&] { file.read(reads); }) == "kInvalidArgument");

    std::vector<float> floats(7);
    file.copy_to("a", floats);
    std::vector<float> wanted(7);
    file.get_tensor("a").copy_to(std::span(wanted));
    CHECK(std::ranges::equal(std::as_bytes(std::span(floats)), std::as_bytes(std::span(wanted))));
    bool bools[4] = {};
    file.copy_to("", bools);
    for (const bool each : bools) CHECK(each);  // no byte of the pattern is 0
  }
}

TEST_CASE("runs outside the tensor and buffers of the wrong size are refused") {
  const test::TempDir folder;
  const test::fs::path path =
      test::save_tensors(folder, std::vector{test::tensor_of("a", Dtype::kU8, {100})});
  constexpr std::uint64_t kHalf = std::uint64_t{1} << 63;
  for (const Backend backend : kBackends) {
    const SafeOpen file(path, {backend});
    const auto outcome = [&](ByteRuns runs, std::size_t room) {
      runs.concatenate();
      std::vector<std::byte> to(room);
      return test::outcome_of([&] { file.read(file.at("a"), runs, to); });
    };
    CHECK(outcome({90, 10, {}}, 10) == "ok");
    CHECK(outcome({90, 10, {}}, 9) == "kInvalidArgument");
    CHECK(outcome({90, 11, {}}, 11) == "kInvalidArgument");
    CHECK(outcome({101, 0, {}}, 0) == "ok");
    CHECK(outcome({UINT64_MAX, 2, {}}, 2) == "kInvalidArgument");
    CHECK(outcome({0, 1, {{4, 33}}}, 4) == "ok");
    CHECK(outcome({1, 1, {{4, 33}}}, 4) == "kInvalidArgument");
    CHECK(outcome({0, 1, {{3, kHalf}}}, 3) == "kInvalidArgument");
    CHECK(outcome({0, 1, {{2, kHalf}, {2, kHalf}}}, 4) == "kInvalidArgument");
    CHECK(outcome({0, 1, {{kHalf + 1, 2}, {2, 1}}}, 2) == "kInvalidArgument");
    CHECK(outcome({0, 2, {{kHalf + 1, 0}}}, 2) == "kInvalidArgument");
    CHECK(outcome({5, 1, {{3, 0}}}, 3) == "ok");
    CHECK(outcome({0, 50, {{2, 10}}}, 100) == "ok");
    std::vector<std::byte> to(30);
    const auto placed = [&](const ByteRuns& runs) {
      return test::outcome_of([&] { file.read(file.at("a"), runs, to); });
    };
    CHECK(placed({0, 10, {{2, 50, 20}}}) == "ok");
    const TensorView view = file.get_tensor("a");
    CHECK(to[29] == view.bytes()[59]);
    CHECK(to[10] == std::byte{0});  // between the runs
    CHECK(placed({0, 10, {{2, 50, 21}}}) == "kInvalidArgument");
    CHECK(placed({0, 10, {{2, 50, 20}}, 1}) == "kInvalidArgument");
    CHECK(placed({0, 10, {{2, 50, UINT64_MAX}}}) == "kInvalidArgument");
  }
}

TEST_CASE("opening reads only the header, and a row only its bytes") {
  const test::TempDir folder;
  constexpr std::uint64_t kRow = 300'000;
  const OwnTensor tensor = test::tensor_of("t", Dtype::kU8, {40, kRow});
  const test::fs::path path = test::save_tensors(folder, std::vector{tensor});
  if (!bytes_read()) {
    MESSAGE("skipped: this system does not count what is read");
    return;
  }
  std::optional<SafeOpen> file;
  CHECK(*bytes_read_by([&] { file.emplace(path); }) <= 70'000);
  CHECK(*bytes_read_by([&] { file.emplace(path, safetensors::OpenOptions{Backend::kPread}); }) <=
        70'000);
  const TensorInfo& info = file->at("t");
  const auto read_of = [&](const std::vector<Index>& indices) {
    const ByteRuns runs =
        safetensors::byte_runs(safetensors::resolve(indices, info.shape), info.shape, info.dtype);
    std::vector<std::byte> to(runs.nbytes());
    return *bytes_read_by([&] { file->read(info, runs, to); });
  };
  CHECK(read_of({Index::at(7)}) == kRow);
  CHECK(read_of({Index::slice(3, 9)}) == 6 * kRow);
  CHECK(read_of({Index::slice({}, {}, 2)}) == 20 * kRow);
  CHECK(read_of({Index::slice(5, 5)}) == 0);
  CHECK(read_of({Index::all(), Index::slice(0, 10)}) == 40 * 10);  // the gaps are above 64 KiB
}
