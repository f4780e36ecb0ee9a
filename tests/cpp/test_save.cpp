#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "posix_support.hpp"
#include "safetensors/byte_sink.hpp"
#include "safetensors/safe_open.hpp"
#include "safetensors/save.hpp"

using safetensors::Dtype;
using safetensors::Error;
using safetensors::Metadata;
using safetensors::SafeOpen;
using safetensors::save_file;
using safetensors::TensorData;
using safetensors::TensorView;
using test::OwnTensor;

namespace {

std::vector<TensorData> data_of(const std::vector<TensorView>& views) {
  std::vector<TensorData> data;
  for (const TensorView& view : views)
    data.push_back({view.name, view.shape, view.bytes(), view.dtype});
  return data;
}

}  // namespace

TEST_CASE("a file, its bytes in memory, and the plan agree") {
  const test::TempDir folder;
  const std::vector<OwnTensor> tensors = test::some_tensors();
  const Metadata metadata = {{"format", "pt"}};
  for (const Metadata* given : {static_cast<const Metadata*>(nullptr), &metadata}) {
    save_file(test::views_of(tensors), folder / "f", given);
    const safetensors::Buffer buffer = safetensors::serialize(test::views_of(tensors), given);
    const std::string file = test::read_text(folder / "f");
    CHECK(file == test::text_of(buffer.bytes()));
    const safetensors::LayoutPlan plan = safetensors::plan_layout(test::views_of(tensors), given);
    CHECK(plan.total_nbytes == file.size());
    std::string wanted = plan.prologue;
    for (const std::size_t i : plan.order) wanted += test::text_of(tensors[i].bytes);
    CHECK(file == wanted);
    const SafeOpen opened(folder / "f");
    CHECK(opened.header().has_metadata() == (given != nullptr));
  }
  CHECK(folder.count() == 1);
}

TEST_CASE("progress counts the bytes that are written, and may stop the save") {
  const test::TempDir folder;
  const std::vector<OwnTensor> tensors = {
      test::tensor_of("long", Dtype::kU8, {40'000'000}, 1),
      test::tensor_of("short", Dtype::kU8, {3}, 2),
  };
  const auto views = test::views_of(tensors);
  const std::uint64_t total = safetensors::plan_layout(views).total_nbytes;
  const std::thread::id own = std::this_thread::get_id();
  std::vector<std::uint64_t> told;
  const auto save = [&](auto progress) {
    save_file(views, folder / "f", nullptr, {.progress = progress});
  };
  save([&](std::uint64_t done, std::uint64_t of) {
    CHECK(of == total);
    CHECK(std::this_thread::get_id() == own);
    told.push_back(done);
  });
  CHECK(told.size() > 2);
  CHECK(std::ranges::is_sorted(told, std::ranges::less_equal()));
  CHECK(told.front() > 0);
  CHECK(told.back() == total);

  struct Stop {};
  test::write_text(folder / "f", "old");
  for (const std::uint64_t from : {std::uint64_t{1}, total}) {
    const auto stop = [&](std::uint64_t done, std::uint64_t) {
      if (done >= from) throw Stop();
    };
    CHECK_THROWS_AS(save(stop), Stop);
    CHECK(test::read_text(folder / "f") == "old");
    CHECK(folder.count() == 1);
  }
}

TEST_CASE("saved bytes equal those of upstream and the Python package") {
  // tests/python/test_save_values.py writes the same; upstream 0.8.0 wrote the file.
  if constexpr (std::endian::native == std::endian::little) {
    const auto shape = [](std::vector<std::uint64_t> sizes) { return sizes; };
    const std::array b = {0.0F, 1.0F, 2.0F, 3.0F};
    const std::array a = {1.5F, -2.0F, 0.25F};
    const std::array<std::int64_t, 1> scalar = {7};
    const std::array flag = {true, false};
    const std::array<std::uint16_t, 2> half = {0x3C00, 0xC000};
    const std::array<float, 0> empty = {};
    const auto b_shape = shape({2, 2});
    const auto a_shape = shape({3});
    const auto pair = shape({2});
    const auto empty_shape = shape({0, 3});
    const std::vector<TensorData> tensors = {
        safetensors::tensor_data("b", b_shape, b),
        safetensors::tensor_data("a", a_shape, a),
        safetensors::tensor_data("\xC3\xA9", {}, scalar),
        safetensors::tensor_data("flag", pair, flag),
        {"half", pair, std::as_bytes(std::span(half)), Dtype::kF16},
        safetensors::tensor_data("empty", empty_shape, empty)};
    const Metadata metadata = {{"format", "np"}};
    const test::TempDir folder;
    save_file(tensors, folder / "f", &metadata);
    CHECK(test::read_text(folder / "f") == test::read_text(test::fs::path(SAFETENSORS_SOURCE_DIR) /
                                                           "tests/data/golden.safetensors"));
  }
}

TEST_CASE("files without tensors, and tensors without bytes") {
  const test::TempDir folder;
  save_file({}, folder / "f");
  CHECK(test::read_text(folder / "f") == test::file_of("{}      "));
  const std::vector<OwnTensor> tensors = {test::tensor_of("a", Dtype::kF32, {0}),
                                          test::tensor_of("b", Dtype::kF32, {3, 0})};
  save_file(test::views_of(tensors), folder / "f");
  CHECK(SafeOpen(folder / "f").get_tensors().size() == 2);
}

TEST_CASE("large tensors are written and serialized by several threads") {
  const test::TempDir folder;
  const std::vector<OwnTensor> tensors = {test::tensor_of("a", Dtype::kU8, {(18U << 20) + 5}, 1),
                                          test::tensor_of("b", Dtype::kI16, {3U << 20}, 2),
                                          test::tensor_of("c", Dtype::kU8, {1}, 3)};
  save_file(test::views_of(tensors), folder / "f");
  const safetensors::Buffer buffer = safetensors::serialize(test::views_of(tensors));
  CHECK(test::read_text(folder / "f") == test::text_of(buffer.bytes()));
  const SafeOpen file(folder / "f", {safetensors::Backend::kPread});
  for (const TensorView& view : file.get_tensors()) {
    const auto tensor = std::ranges::find(tensors, view.name, &OwnTensor::name);
    CHECK(std::ranges::equal(view.bytes(), tensor->bytes));
  }
}

TEST_CASE("errors begin as upstream's, keep the number and change no file") {
  const test::TempDir folder;
  test::write_text(folder / "f", "old");
  std::vector<OwnTensor> tensors = test::some_tensors();
  tensors.push_back(tensors[0]);
  const auto save = [&](const test::fs::path& path) {
    return test::error_of([&] { save_file(test::views_of(tensors), path); });
  };
  const Error twice = save(folder / "f");
  CHECK(test::name_of(twice.code()) == "kDuplicateName");
  CHECK(std::string(twice.what()) == "Error while serializing: tensor `b` occurs twice");
  CHECK(test::read_text(folder / "f") == "old");
  tensors.pop_back();
  const Error missing = save(folder / "no/f");
  CHECK(missing.os_error() == ENOENT);
  CHECK(std::string(missing.what()).starts_with("Error while serializing: I/O error: "));
  CHECK(save(folder.path()).os_error() == EISDIR);
  CHECK(save(folder.path()).code() == test::ErrorCode::kNotRegularFile);
  CHECK(std::string(save("").what()) ==
        "Error while serializing: I/O error: No such file or directory (os error 2) at path \"\"");
  CHECK(test::outcome_of([] { (void)safetensors::make_file_sink(""); }) == "kIo");
  const test::fs::path cut = folder / (std::string("model") + '\0' + ".safetensors");
  CHECK(save(cut).code() == test::ErrorCode::kInvalidArgument);
  CHECK(folder.count() == 1);
}

TEST_CASE("saving over the file that the tensors are views of") {
  const test::TempDir folder;
  const std::vector<OwnTensor> tensors = test::some_tensors();
  save_file(test::views_of(tensors), folder / "f");
  const std::string before = test::read_text(folder / "f");
  for (const auto backend : {safetensors::Backend::kMmap, safetensors::Backend::kPread}) {
    for (int i = 0; i < 3; ++i) {
      const SafeOpen file(folder / "f", {backend});
      const std::vector<TensorView> views = file.get_tensors();
      save_file(data_of(views), folder / "f", nullptr, {.fsync = i == 0, .interrupt = {}});
      CHECK(test::read_text(folder / "f") == before);
      const TensorView again = file.get_tensor("b");
      CHECK(std::ranges::equal(again.bytes(), tensors[0].bytes));
    }
  }
  CHECK(folder.count() == 1);
}

TEST_CASE("an interrupt undoes the save") {
  const test::TempDir folder;
  save_file({}, folder / "f");
  const std::vector<std::byte> bytes(std::size_t{16} << 20);
  const std::vector<std::uint64_t> shape = {bytes.size()};
  std::vector<std::string> names;
  for (int i = 0; i < 32; ++i) names.push_back(std::to_string(i));
  std::vector<TensorData> tensors;
  for (const std::string& name : names) tensors.push_back({name, shape, bytes, Dtype::kU8});
  struct Stop {};
  const safetensors::Interrupt stop = [] { throw Stop(); };
  CHECK_THROWS_AS(save_file(tensors, folder / "f", nullptr, {.fsync = false, .interrupt = stop}),
                  Stop);
  CHECK(test::fs::file_size(folder / "f") == 16);
  CHECK(folder.count() == 1);
}

TEST_CASE("serialize_to requires a buffer of the planned size") {
  const std::vector<OwnTensor> tensors = test::some_tensors();
  const std::vector<TensorData> views = test::views_of(tensors);
  const safetensors::LayoutPlan plan = safetensors::plan_layout(views);
  std::vector<std::byte> to(plan.total_nbytes + 1);
  const std::span<std::byte> room(to);
  const auto outcome = [&](std::span<std::byte> given) {
    return test::outcome_of([&] { safetensors::serialize_to(plan, views, given); });
  };
  CHECK(outcome(room) == "kInvalidArgument");
  CHECK(outcome(room.first(plan.total_nbytes - 1)) == "kInvalidArgument");
  CHECK(outcome(room.first(plan.total_nbytes)) == "ok");
  CHECK(to.back() == std::byte{0});
  const safetensors::Buffer whole = safetensors::serialize(views);
  CHECK(std::ranges::equal(room.first(plan.total_nbytes), whole.bytes()));
}
