#include <doctest/doctest.h>
#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "io/posix/fd.hpp"
#include "posix_support.hpp"
#include "roundtrip.hpp"
#include "safetensors/safe_open.hpp"
#include "safetensors/save.hpp"
#include "safetensors/writer.hpp"

using safetensors::ByteSink;
using safetensors::Dtype;
using safetensors::FileWriter;
using safetensors::Layout;
using safetensors::LayoutPlan;
using safetensors::make_descriptor_sink;
using safetensors::make_file_sink;
using safetensors::Metadata;
using safetensors::plan_file;
using safetensors::SafeOpen;
using safetensors::TensorCopy;
using safetensors::TensorData;
using safetensors::TensorSpec;
using test::OwnTensor;

namespace {

/// A sink in memory that writes at most `most` bytes a call, and fails once it has `limit` bytes.
struct TestSink final : ByteSink {
  TestSink(std::string& to, bool seeks, std::size_t most = 1000, std::size_t limit = SIZE_MAX)
      : text(to), can_seek(seeks), most_at_once(most), fails_at(limit) {}
  [[nodiscard]] bool seeks() const noexcept override { return can_seek; }
  [[nodiscard]] std::size_t write_at(std::uint64_t offset,
                                     std::span<const std::byte> bytes) override {
    if (text.size() >= fails_at) throw std::runtime_error("full");
    if (!can_seek && offset != text.size()) throw std::logic_error("not in order");
    const std::string part = test::text_of(bytes.first(std::min(bytes.size(), most_at_once)));
    if (text.size() < offset + part.size()) text.resize(offset + part.size(), '?');
    text.replace(offset, part.size(), part);
    return part.size();
  }
  void commit(std::uint64_t nbytes, bool) override {
    if (nbytes != text.size()) throw std::logic_error("not the whole file");
  }

  std::string& text;
  bool can_seek;
  std::size_t most_at_once;
  std::size_t fails_at;
};

std::vector<OwnTensor> some_tensors() {
  return {test::tensor_of("b", Dtype::kF32, {100, 3}),    test::tensor_of("a", Dtype::kF32, {0, 3}),
          test::tensor_of("large", Dtype::kU8, {70'000}), test::tensor_of("c", Dtype::kI64, {5}),
          test::tensor_of("d", Dtype::kBF16, {4096}),     test::tensor_of("e", Dtype::kBF16, {1})};
}

std::vector<TensorSpec> specs_of(const std::vector<TensorData>& tensors) {
  std::vector<TensorSpec> specs;
  for (const TensorData& each : tensors) specs.push_back({each.name, each.shape, each.dtype});
  return specs;
}

std::string bytes_of_save(const std::vector<TensorData>& tensors) {
  return std::string(test::text_of(safetensors::serialize(tensors).bytes()));
}

std::string error_of_writer(const std::function<void()>& work) {
  return test::error_of(work).what();
}

}  // namespace

TEST_CASE("tensors may be written in any order, whole or in parts") {
  const std::vector<OwnTensor> own = some_tensors();
  const std::vector<TensorData> tensors = test::views_of(own);
  const std::string wanted = bytes_of_save(tensors);
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    CAPTURE(round);
    std::vector<std::size_t> order(tensors.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::shuffle(order, random);
    std::string text;
    const bool seeks = round % 2 == 0;
    FileWriter writer(std::make_unique<TestSink>(text, seeks, 1 + random() % 5000),
                      plan_file(specs_of(tensors)));
    for (const std::size_t i : order) {
      const std::span<const std::byte> bytes = tensors[i].bytes;
      if (random() % 2 == 0) {
        writer.write(i, bytes);
        continue;
      }
      const std::size_t cut = bytes.empty() ? 0 : random() % bytes.size();
      writer.write_at(i, cut, bytes.subspan(cut));
      writer.write_at(i, 0, bytes.first(cut));
    }
    CHECK(writer.missing().empty());
    if (seeks) CHECK(text.substr(0, 8) != wanted.substr(0, 8));
    writer.commit();
    CHECK(text == wanted);
  }
}

TEST_CASE("a file written by a FileWriter replaces another one completely or not at all") {
  const test::TempDir folder;
  const test::fs::path path = folder / "model.safetensors";
  test::write_text(path, "old");
  const std::vector<OwnTensor> own = some_tensors();
  const std::vector<TensorData> tensors = test::views_of(own);
  {
    FileWriter writer(make_file_sink(path), plan_file(specs_of(tensors)));
    for (std::size_t i = 1; i < tensors.size(); ++i) writer.write(i, tensors[i].bytes);
    CHECK(error_of_writer([&] { writer.commit(); }) ==
          "1 of 6 tensors was not written: `b` (in " + path.string() + ")");
    CHECK(test::read_text(path) == "old");
  }
  CHECK(test::read_text(path) == "old");
  CHECK(folder.count() == 1);
  FileWriter writer(make_file_sink(path), plan_file(specs_of(tensors)), {.fsync = true});
  for (std::size_t i = 0; i < tensors.size(); ++i) writer.write(i, tensors[i].bytes);
  writer.commit();
  CHECK(test::read_text(path) == bytes_of_save(tensors));
  CHECK(folder.count() == 1);
  CHECK(test::outcome_of([&] { writer.write(0, tensors[0].bytes); }) == "kWriterClosed");
  CHECK(test::outcome_of([&] { writer.commit(); }) == "kWriterClosed");
}

TEST_CASE("a mistake is refused, and changes nothing") {
  const std::vector<OwnTensor> own = some_tensors();
  const std::vector<TensorData> tensors = test::views_of(own);
  std::string text;
  FileWriter writer(std::make_unique<TestSink>(text, true), plan_file(specs_of(tensors)));
  const std::span<const std::byte> bytes = tensors[0].bytes;
  const auto error = [&](const std::function<void()>& work) { return error_of_writer(work); };
  CHECK(error([&] { writer.write(0, bytes.first(1)); }) ==
        "tensor `b` takes 1,200 bytes, 1 are given");
  CHECK(error([&] { writer.write(6, bytes); }) == "there is no tensor 6 of 6");
  CHECK(error([&] { writer.write_at(0, 1'000, bytes.first(201)); }) ==
        "tensor `b` has 1,200 bytes, the part of 201 bytes at 1,000 reaches past its end");
  CHECK(test::outcome_of([&] { writer.write_at(0, UINT64_MAX, bytes); }) == "kInvalidArgument");
  writer.write_at(0, 0, bytes.first(600));
  CHECK(error([&] { writer.write(0, bytes); }) == "tensor `b` was written before");
  CHECK(error([&] { writer.write_at(0, 0, bytes.first(601)); }) ==
        "the parts written of tensor `b` have more bytes than it");
  CHECK(error([&] { writer.commit(); }) ==
        "5 of 6 tensors were not written: `c`, `b` (600 of 1,200 bytes), `d`, `e`, `large`");
  writer.write_at(0, 600, bytes.subspan(600));
  for (std::size_t i = 1; i < tensors.size(); ++i) writer.write(i, tensors[i].bytes);
  CHECK(writer.nbytes_written() == 1'200 + 70'000 + 40 + 8'192 + 2);
  writer.commit();
  CHECK(text == bytes_of_save(tensors));
  CHECK(test::outcome_of([] { FileWriter(nullptr, LayoutPlan{}); }) == "kInvalidArgument");
}

TEST_CASE("a sink that fails ends the writer with its exception") {
  const std::vector<OwnTensor> own = some_tensors();
  const std::vector<TensorData> tensors = test::views_of(own);
  for (const bool seeks : {true, false}) {
    std::string text;
    FileWriter writer(std::make_unique<TestSink>(text, seeks, 1000, 20'000),
                      plan_file(specs_of(tensors)));
    const auto write_all = [&] {
      for (std::size_t i = 0; i < tensors.size(); ++i) writer.write(i, tensors[i].bytes);
      writer.commit();
    };
    CHECK_THROWS_WITH(write_all(), "full");
    CHECK(test::outcome_of([&] { writer.commit(); }) == "kWriterClosed");
    CHECK(test::outcome_of([&] { writer.write(0, tensors[0].bytes); }) == "kWriterClosed");
    writer.abort();
    CHECK(test::outcome_of([&] { (void)writer.missing(); }) == "kWriterClosed");
  }
}

TEST_CASE("what a sink needs later is held back, up to the budget") {
  const std::vector<OwnTensor> own = {test::tensor_of("a", Dtype::kU8, {1000}),
                                      test::tensor_of("b", Dtype::kU8, {600}),
                                      test::tensor_of("c", Dtype::kU8, {600})};
  const std::vector<TensorData> tensors = test::views_of(own);
  std::string text;
  FileWriter writer(std::make_unique<TestSink>(text, false), plan_file(specs_of(tensors)),
                    {.budget_nbytes = 1000});
  writer.write(1, tensors[1].bytes);
  CHECK(error_of_writer([&] { writer.write(2, tensors[2].bytes); }) ==
        "tensor `c` was written, but the sink does not seek and needs tensor `a` next; 600 bytes "
        "are held back, and the budget is 1,000");
  writer.write(0, tensors[0].bytes);
  writer.write(2, tensors[2].bytes);
  writer.commit();
  CHECK(text == bytes_of_save(tensors));
}

TEST_CASE("single bytes that lie apart are copied") {
  const std::vector<OwnTensor> own = {test::tensor_of("a", Dtype::kU8, {1}, 1),
                                      test::tensor_of("b", Dtype::kU8, {1}, 2),
                                      test::tensor_of("none", Dtype::kU8, {0}, 3)};
  const std::vector<TensorData> tensors = test::views_of(own);
  const std::array<std::byte, 3> bytes = {own[1].bytes[0], std::byte{}, own[0].bytes[0]};
  std::string text;
  FileWriter writer(std::make_unique<TestSink>(text, true), plan_file(specs_of(tensors)));
  writer.copy(safetensors::MemorySource(bytes),
              std::vector<TensorCopy>{{0, 2}, {1, 0}, {2, bytes.size()}});
  writer.commit();
  CHECK(text == bytes_of_save(tensors));
}

TEST_CASE("tensors are copied from files, memory and other sources") {
  const test::TempDir folder;
  const std::vector<OwnTensor> own = some_tensors();
  const std::vector<TensorData> tensors = test::views_of(own);
  safetensors::save_file(tensors, folder / "from");
  const std::string wanted = bytes_of_save(tensors);
  for (const auto backend :
       {safetensors::Backend::kMmap, safetensors::Backend::kPread, safetensors::Backend::kDirect}) {
    const SafeOpen from(folder / "from", {.backend = backend});
    std::vector<TensorCopy> copies;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      copies.push_back({i, from.position(from.at(tensors[i].name))});
    }
    for (const bool seeks : {true, false}) {
      std::string text;
      FileWriter writer(std::make_unique<TestSink>(text, seeks), plan_file(specs_of(tensors)));
      writer.copy(*from.source(), copies);
      writer.commit();
      CHECK(text == wanted);
    }
    FileWriter writer(make_file_sink(folder / "to"), plan_file(specs_of(tensors)));
    CHECK(test::outcome_of([&] {
            writer.copy(*from.source(), std::vector<TensorCopy>{{2, wanted.size() - 100}});
          }) == "kInvalidArgument");
    writer.copy(*from.source(), copies);
    writer.commit();
    CHECK(test::read_text(folder / "to") == wanted);
  }
}

TEST_CASE("a source that was written to since it was opened is not copied") {
  const test::TempDir folder;
  const std::vector<OwnTensor> own = some_tensors();
  const std::vector<TensorData> tensors = test::views_of(own);
  safetensors::save_file(tensors, folder / "from");
  const SafeOpen from(folder / "from", {.backend = safetensors::Backend::kPread});
  std::string text = test::read_text(folder / "from");
  text.back() = '!';
  test::write_text(folder / "from", text);
  FileWriter writer(make_file_sink(folder / "to"), plan_file(specs_of(tensors)));
  const std::vector<TensorCopy> copies = {{0, from.position(from.at("b"))}};
  CHECK(test::outcome_of([&] { writer.copy(*from.source(), copies); }) == "kFileChanged");
  CHECK(test::outcome_of([&] { writer.commit(); }) == "kWriterClosed");
}

TEST_CASE("with the layout of blocks, tensors of whole blocks begin with a block") {
  const std::vector<OwnTensor> own = {
      test::tensor_of("odd", Dtype::kI64, {3}), test::tensor_of("z", Dtype::kF32, {1024}),
      test::tensor_of("y", Dtype::kU8, {8192}), test::tensor_of("odd 2", Dtype::kF32, {5})};
  const std::vector<TensorData> tensors = test::views_of(own);
  const LayoutPlan plan = plan_file(specs_of(tensors), nullptr, Layout::kBlocks);
  CHECK(plan.prologue.size() == 4096);
  CHECK(plan.order == std::vector<std::size_t>{1, 2, 0, 3});
  CHECK(plan.places[1].begin == 4096);
  CHECK(plan.places[2].begin == 8192);
  std::string text;
  FileWriter writer(std::make_unique<TestSink>(text, false), plan);
  for (std::size_t i = 0; i < tensors.size(); ++i) writer.write(i, tensors[i].bytes);
  writer.commit();
  const safetensors::ParsedBytes parsed = safetensors::parse_bytes(std::as_bytes(std::span(text)));
  for (const TensorData& each : tensors) {
    CHECK(test::text_of(parsed.bytes(*parsed.header.find(each.name))) == test::text_of(each.bytes));
  }
  const std::vector<TensorSpec> twice = {{"a", {}, Dtype::kU8}, {"a", {}, Dtype::kF32}};
  for (const Layout layout : {Layout::kCanonical, Layout::kBlocks, Layout::kGiven}) {
    CHECK(test::outcome_of([&] { (void)plan_file(twice, nullptr, layout); }) == "kDuplicateName");
  }
}

TEST_CASE("tensors may be added one by one, and the header follows") {
  const test::TempDir folder;
  for (const std::size_t count : {0U, 1U, 20U, 3000U}) {
    CAPTURE(count);
    const Metadata metadata = {{"format", "pt"}};
    FileWriter writer(make_file_sink(folder / "f"), &metadata, {.header_room = 4096});
    std::vector<std::string> texts;
    for (std::size_t i = 0; i < count; ++i) {
      texts.push_back("the text of tensor " + std::to_string(i));
      const std::vector<std::uint64_t> shape = {texts.back().size()};
      const std::string name = "tensor " + std::to_string(i);
      const std::size_t at = writer.add({name, shape, Dtype::kU8});
      CHECK(at == i);
      writer.write(at, test::bytes_of(texts.back()));
      CHECK(test::outcome_of([&] { writer.add({name, shape, Dtype::kU8}); }) == "kWrittenTwice");
    }
    writer.commit();
    const SafeOpen file(folder / "f");
    CHECK(file.header().size() == count);
    CHECK(file.data_offset() % 4096 == 0);
    CHECK(file.header().find_metadata("format") == "pt");
    for (std::size_t i = 0; i < count; ++i) {
      const auto view = file.get_tensor("tensor " + std::to_string(i));
      CHECK(test::text_of(view.bytes()) == texts[i]);
    }
  }
  std::string text;
  CHECK(test::outcome_of([&] { FileWriter(std::make_unique<TestSink>(text, false), nullptr); }) ==
        "kInvalidArgument");
  FileWriter writer(make_file_sink(folder / "f"), nullptr);
  const std::vector<std::uint64_t> shape = {2};
  writer.add({"a", shape, Dtype::kU8});
  CHECK(error_of_writer([&] { writer.commit(); }) ==
        "1 of 1 tensor was not written: `a` (in " + (folder / "f").string() + ")");
  CHECK(test::outcome_of([&] { writer.add({"b", shape, static_cast<Dtype>(99)}); }) ==
        "kUnsupportedDtype");
}

TEST_CASE("a descriptor is written from its position on, and cut back after a failure") {
  const test::TempDir folder;
  const std::vector<OwnTensor> own = some_tensors();
  const std::vector<TensorData> tensors = test::views_of(own);
  const std::string wanted = bytes_of_save(tensors);
  test::write_text(folder / "f", "before");
  const safetensors::io::Fd fd(::open((folder / "f").c_str(), O_RDWR | O_CLOEXEC));
  REQUIRE(::lseek(fd.get(), 0, SEEK_END) == 6);
  {
    FileWriter writer(make_descriptor_sink(fd.get(), "f"), plan_file(specs_of(tensors)));
    writer.write(2, tensors[2].bytes);
    CHECK(test::fs::file_size(folder / "f") > 6);
  }
  CHECK(test::read_text(folder / "f") == "before");
  CHECK(::lseek(fd.get(), 0, SEEK_CUR) == 6);
  FileWriter writer(make_descriptor_sink(fd.get(), "f"), plan_file(specs_of(tensors)));
  for (std::size_t i = 0; i < tensors.size(); ++i) writer.write(i, tensors[i].bytes);
  writer.commit();
  CHECK(test::read_text(folder / "f") == "before" + wanted);
  CHECK(::lseek(fd.get(), 0, SEEK_CUR) == static_cast<off_t>(6 + wanted.size()));

  const safetensors::io::Fd appending(
      ::open((folder / "f").c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
  CHECK(!make_descriptor_sink(appending.get(), "f")->seeks());
  CHECK(test::error_of([] { (void)make_descriptor_sink(-1, "closed"); }).os_error() == EBADF);
}

TEST_CASE("several threads may write at once") {
  constexpr std::size_t kCount = 64;
  std::vector<OwnTensor> own;
  for (std::size_t i = 0; i < kCount; ++i) {
    own.push_back(
        test::tensor_of("t" + std::to_string(i), Dtype::kU8, {i % 2 == 0 ? 100U : 300'000U}));
  }
  const std::vector<TensorData> tensors = test::views_of(own);
  const test::TempDir folder;
  std::uint64_t last = 0;
  const auto progress = [&](std::uint64_t done, std::uint64_t) { last = std::max(last, done); };
  const LayoutPlan plan = plan_file(specs_of(tensors));
  FileWriter writer(make_file_sink(folder / "f"), plan, {.progress = progress});
  {
    std::vector<std::thread> threads;
    for (std::size_t first = 0; first < 4; ++first) {
      threads.emplace_back([&, first] {
        for (std::size_t i = first; i < kCount; i += 4) writer.write(i, tensors[i].bytes);
      });
    }
    for (std::thread& each : threads) each.join();
  }
  writer.commit();
  CHECK(last == plan.total_nbytes);
  CHECK(test::read_text(folder / "f") == bytes_of_save(tensors));
}
