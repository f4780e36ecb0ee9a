#include <doctest/doctest.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "safetensors/detail/write_sums.hpp"
#include "safetensors/digest.hpp"
#include "safetensors/safe_open.hpp"
#include "safetensors/save.hpp"
#include "safetensors/sums.hpp"
#include "safetensors/verify.hpp"
#include "safetensors/writer.hpp"
#include "support.hpp"

using safetensors::Dtype;
using safetensors::ErrorCode;
using safetensors::kDigestBlockSize;
using safetensors::SafeOpen;
using safetensors::save_file;
using safetensors::Sums;
using safetensors::TensorHasher;
using safetensors::detail::WriteSums;
using test::OwnTensor;

namespace {

namespace fs = std::filesystem;

/// Returns tensors that are hashed on another thread, with blocks, and short and empty ones.
std::vector<OwnTensor> several_tensors() {
  std::vector<OwnTensor> tensors = test::some_tensors();
  tensors.push_back(test::tensor_of("long", Dtype::kU8, {2 * kDigestBlockSize + 7}, 3));
  tensors.push_back(test::tensor_of("nothing", Dtype::kF32, {0, 3}, 4));
  return tensors;
}

/// Checks the sums of tensors against digests of their bytes.
void check_tensors(const Sums& sums, const std::vector<OwnTensor>& tensors) {
  REQUIRE(sums.size() == tensors.size());
  for (const OwnTensor& each : tensors) {
    CAPTURE(each.name);
    const auto found = sums.find(each.name);
    REQUIRE(found);
    TensorHasher hasher(each.dtype, each.shape, kDigestBlockSize);
    hasher.update(each.bytes);
    CHECK(found->xxh3_128 == hasher.digest());
    REQUIRE(found->blocks);
    CHECK(std::vector(found->blocks->begin(), found->blocks->end()) == hasher.blocks());
  }
}

}  // namespace

TEST_CASE("save_file writes the sums that make_sums finds") {
  const test::TempDir folder;
  const fs::path path = folder / "m.safetensors";
  const std::vector<OwnTensor> tensors = several_tensors();
  save_file(test::views_of(tensors), path, nullptr, {.sums = true});
  CHECK(folder.count() == 2);
  const Sums sums = Sums::read(folder / "m.sums.json");
  check_tensors(sums, tensors);
  REQUIRE(sums.files().size() == 1);
  CHECK(sums.files()[0].path == "m.safetensors");
  CHECK(sums.files()[0].nbytes == fs::file_size(path));
  const auto source = safetensors::open_source(path);
  CHECK(safetensors::make_sums(*source, "m.safetensors").json() == sums.json());
  CHECK(test::read_text(folder / "m.sums.json") == sums.json());

  // They are right for checks, too.
  safetensors::FileDigests digests{.nbytes = sums.files()[0].nbytes,
                                   .header = sums.files()[0].header};
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const safetensors::TensorSums each = sums.tensor(i);
    digests.tensors.emplace(
        each.name,
        safetensors::TensorDigests{each.xxh3_128, {each.blocks->begin(), each.blocks->end()}});
  }
  const SafeOpen checked(safetensors::checked_source(source, digests, path), path);
  for (const safetensors::TensorInfo& info : checked.header().tensors()) {
    const safetensors::TensorView view = checked.get_tensor(info);
    CHECK(view.bytes().size() == info.nbytes());
  }
}

TEST_CASE("a save without sums removes old ones, one that fails leaves them") {
  const test::TempDir folder;
  const fs::path path = folder / "m.safetensors";
  const std::vector<OwnTensor> tensors = several_tensors();
  const auto views = test::views_of(tensors);
  save_file(views, path, nullptr, {.sums = true});
  const std::string old_file = test::read_text(path);
  const std::string old_sums = test::read_text(folder / "m.sums.json");
  for (const bool at_end : {false, true}) {
    const auto stop = [&](std::uint64_t done, std::uint64_t total) {
      if (!at_end || done == total) throw std::runtime_error("stopped");
    };
    CHECK_THROWS_AS(save_file(views, path, nullptr, {.sums = true, .progress = stop}),
                    std::runtime_error);
    CHECK(folder.count() == 2);
    CHECK(test::read_text(path) == old_file);
    CHECK(test::read_text(folder / "m.sums.json") == old_sums);
  }
  save_file(views, path);
  CHECK(folder.count() == 1);
}

TEST_CASE("sums need a name that readers find") {
  const test::TempDir folder;
  const std::vector<OwnTensor> tensors = test::some_tensors();
  const safetensors::Error error = test::error_of(
      [&] { save_file(test::views_of(tensors), folder / "m.bin", nullptr, {.sums = true}); });
  CHECK(error.code() == ErrorCode::kInvalidArgument);
  CHECK(folder.count() == 0);
}

TEST_CASE("tensors whose bytes do not come in order are read from the file") {
  const test::TempDir folder;
  const fs::path path = folder / "m.safetensors";
  const std::vector<OwnTensor> tensors = several_tensors();
  const auto views = test::views_of(tensors);
  std::vector<bool> known;
  WriteSums sums(folder / "m.sums.json",
                 [&](const fs::path& complete, const std::vector<WriteSums::Written>* written) {
                   REQUIRE(written != nullptr);
                   for (const auto& each : *written) known.push_back(each.digest.has_value());
                   const auto source = safetensors::open_source(complete);
                   return safetensors::make_sums(*source, "m.safetensors").json();
                 });
  const safetensors::LayoutPlan plan = safetensors::plan_layout(views);
  for (const auto& each : views) sums.add(each.name, each.dtype, each.shape);
  safetensors::FileWriter writer(
      safetensors::make_file_sink(path, {}, {}, sums.before_rename(path)), plan);
  for (std::size_t i = 0; i < views.size(); ++i) {
    const std::span<const std::byte> bytes = views[i].bytes;
    const std::size_t middle = bytes.size() / 2;
    // The second half of the tensor "long" first.
    const std::size_t begin = views[i].name == "long" ? middle : 0;
    const WriteSums::Part first{i, begin, bytes.subspan(begin)};
    sums.write_beside({&first, 1}, [&] { writer.write_at(i, begin, first.bytes); });
    if (begin == 0) continue;
    const WriteSums::Part second{i, 0, bytes.first(middle)};
    sums.write_beside({&second, 1}, [&] { writer.write_at(i, 0, second.bytes); });
  }
  writer.commit();
  sums.commit(false);
  REQUIRE(known.size() == views.size());
  for (std::size_t i = 0; i < views.size(); ++i) CHECK(known[i] == (views[i].name != "long"));
  check_tensors(Sums::read(folder / "m.sums.json"), tensors);
  CHECK(folder.count() == 2);
}
