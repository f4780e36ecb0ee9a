// SafeOpen on a ByteSource: bytes in memory, and a source that is read.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "fake_source.hpp"
#include "safetensors/safe_open.hpp"

using safetensors::Backend;
using safetensors::Dtype;
using safetensors::ErrorCode;
using safetensors::Index;
using safetensors::MemorySource;
using safetensors::SafeOpen;
using safetensors::TensorView;
using test::OwnTensor;

namespace {

std::vector<OwnTensor> some_tensors() {
  return {test::tensor_of("matrix", Dtype::kF32, {6, 4}), test::tensor_of("empty", Dtype::kU8, {0}),
          test::tensor_of("row", Dtype::kU8, {5})};
}

std::vector<std::byte> file_with(const std::vector<OwnTensor>& tensors) {
  const safetensors::Metadata metadata = {{"format", "pt"}};
  const safetensors::Buffer file = safetensors::serialize(test::views_of(tensors), &metadata);
  return {file.bytes().begin(), file.bytes().end()};
}

bool same(const TensorView& view, const OwnTensor& tensor) {
  return view.name == tensor.name && view.dtype == tensor.dtype &&
         std::ranges::equal(view.shape, tensor.shape) &&
         std::ranges::equal(view.bytes(), tensor.bytes);
}

/// The file's bytes with an owner whose end can be observed.
std::shared_ptr<const std::vector<std::byte>> shared_file() {
  return std::make_shared<const std::vector<std::byte>>(file_with(some_tensors()));
}

}  // namespace

TEST_CASE("a file in memory is used in place") {
  const auto bytes = shared_file();
  const SafeOpen file(std::make_shared<const MemorySource>(*bytes));
  CHECK(file.backend() == Backend::kSource);
  CHECK(file.mapping() == nullptr);
  CHECK(file.path().empty());
  CHECK(file.metadata().size() == 1);
  for (const OwnTensor& tensor : some_tensors()) {
    const TensorView view = file.get_tensor(tensor.name);
    CHECK(same(view, tensor));
    CHECK(view.bytes().data() == bytes->data() + file.position(file.at(tensor.name)));
    CHECK(view.writable_bytes().empty());  // the memory is const
  }
  CHECK(file.get_tensors().size() == 3);
  const auto rows = file.get_slice("matrix", {Index::slice(2, 4)});
  CHECK(rows.bytes().data() == bytes->data() + file.position(file.at("matrix")) + 2 * 16);
  CHECK(rows.writable_bytes().empty());
  const auto row = rows.slice({Index::at(0)});
  REQUIRE(row);
  CHECK(row->writable_bytes().empty());
  const auto column = file.get_slice("matrix", {Index::all(), Index::at(1)});
  CHECK(column.writable_bytes().size() == 6 * sizeof(float));  // a copy
  CHECK(file.header_json().size() == file.header_nbytes());
  CHECK(file.source()->size() == bytes->size());
  CHECK(file.source()->memory().data() == bytes->data());
  file.warm();
  file.read_ahead();
}

TEST_CASE("a file in memory is read and copied like any other") {
  const auto bytes = shared_file();
  const SafeOpen file(std::make_shared<const MemorySource>(*bytes));
  const OwnTensor wanted = some_tensors().front();
  std::vector<std::byte> to(wanted.bytes.size());
  file.read(file.at("matrix"), to);
  CHECK(to == wanted.bytes);
  std::vector<float> column(6);
  file.copy_slice_to("matrix", {Index::all(), Index::at(-1)}, column);
  std::uint32_t last = 0;
  for (std::size_t i = 4; i-- > 0;)
    last = last << 8 | std::to_integer<unsigned>(wanted.bytes[92 + i]);
  CHECK(std::bit_cast<std::uint32_t>(column[5]) == last);
  CHECK(test::outcome_of([&] { file.read(file.at("row"), to); }) == "kInvalidArgument");
  std::vector<std::byte> start(8);
  file.source()->read_at(0, start);
  CHECK(std::ranges::equal(start, std::span(*bytes).first(8)));
  const auto past_end = [&](std::uint64_t offset) {
    return test::outcome_of([&] { file.source()->read_at(offset, start); });
  };
  CHECK(past_end(bytes->size() - 8) == "ok");
  CHECK(past_end(bytes->size() - 7) == "kInvalidArgument");
  CHECK(past_end(UINT64_MAX) == "kInvalidArgument");
}

TEST_CASE("only views keep the owner of a source's memory") {
  auto bytes = shared_file();
  const std::weak_ptr<const void> owner = bytes;
  std::vector<TensorView> views;
  {
    SafeOpen file(std::make_shared<const MemorySource>(*bytes, bytes));
    bytes.reset();
    CHECK_FALSE(owner.expired());
    views.push_back(file.get_tensor("matrix"));
    views.push_back(file.get_slice("matrix", {Index::slice(2, 4)}));
  }
  const OwnTensor wanted = some_tensors().front();
  CHECK(same(views[0], wanted));
  views.erase(views.begin());
  CHECK_FALSE(owner.expired());
  CHECK(std::ranges::equal(views[0].bytes(), std::span(wanted.bytes).subspan(32, 32)));
  views.clear();
  CHECK(owner.expired());
}

TEST_CASE("a source without memory is read when its tensors are requested") {
  const std::vector<OwnTensor> tensors = some_tensors();
  const auto source = std::make_shared<const test::FakeSource>(file_with(tensors));
  const SafeOpen file(source, "over/there");
  CHECK(source->reads().size() == 1);  // the header
  CHECK(file.backend() == Backend::kSource);
  CHECK(file.path() == "over/there");
  CHECK(file.source() == source);
  for (const OwnTensor& tensor : tensors) {
    const TensorView view = file.get_tensor(tensor.name);
    CHECK(same(view, tensor));
    CHECK(view.writable_bytes().size() == tensor.bytes.size());
  }
  for (const TensorView& view : file.get_tensors()) {
    const auto wanted = std::ranges::find(tensors, view.name, &OwnTensor::name);
    CHECK(same(view, *wanted));
  }
  const std::uint64_t before = source->nbytes_read();
  CHECK(file.get_slice("matrix", {Index::at(1)}).nbytes() == 16);
  CHECK(source->nbytes_read() == before + 16);
  CHECK(file.header_json().size() == file.header_nbytes());
  file.warm();
  file.read_ahead();
}

TEST_CASE("a long header of a source is read in two parts") {
  std::vector<OwnTensor> tensors;
  for (int i = 0; i < 2000; ++i) {
    tensors.push_back(test::tensor_of("tensor " + std::to_string(i), Dtype::kU8, {1}));
  }
  const auto source = std::make_shared<const test::FakeSource>(file_with(tensors));
  const SafeOpen file(source);
  CHECK(file.header().size() == tensors.size());
  CHECK(source->reads().size() == 2);
  CHECK(source->nbytes_read() == file.data_offset());
}

TEST_CASE("errors name a source by its label") {
  const std::string broken = test::file_of("[]");
  const auto text_of = [&](auto source, const char* label) {
    return std::string(test::error_of([&] { (void)SafeOpen(source, label); }).what());
  };
  const auto in_memory = [&] {
    return std::make_shared<const MemorySource>(test::bytes_of(broken));
  };
  const std::string bare = text_of(in_memory(), "");
  CHECK(bare.starts_with("Error while deserializing: invalid JSON"));
  CHECK(bare.find("(in ") == std::string::npos);
  const std::string named = text_of(in_memory(), "s3://models/a.safetensors");
  CHECK(named.starts_with("Error while deserializing header: invalid JSON"));
  CHECK(named.ends_with(" (in s3://models/a.safetensors)"));
  CHECK(test::error_of([&] { (void)safetensors::parse_bytes(test::bytes_of(broken)); }).what() ==
        bare);

  const auto bytes = shared_file();
  const SafeOpen file(std::make_shared<const MemorySource>(*bytes), "a label");
  const auto missing = test::error_of([&] { (void)file.at("gone"); });
  CHECK(std::string(missing.what()) == "File does not contain tensor gone (in a label)");
  const SafeOpen nameless(std::make_shared<const MemorySource>(*bytes));
  CHECK(std::string(test::error_of([&] { (void)nameless.at("gone"); }).what()) ==
        "File does not contain tensor gone");
  const safetensors::TensorInfo foreign{.name = {}, .shape = {}, .begin = 0, .end = 1000};
  CHECK(test::outcome_of([&] { (void)nameless.get_tensor(foreign); }) == "kInvalidArgument");
}

TEST_CASE("errors of a source propagate") {
  const auto breaking = std::make_shared<test::FakeSource>(file_with(some_tensors()));
  breaking->breaks_at = 3;
  CHECK_THROWS_AS((void)SafeOpen(breaking), std::runtime_error);
  const auto shrinking = std::make_shared<test::FakeSource>(file_with(some_tensors()));
  const SafeOpen file(shrinking);
  shrinking->ends_at = 9;
  CHECK(test::outcome_of([&] { (void)file.get_tensor("matrix"); }) == "kFileChanged");
  CHECK(test::outcome_of([&] { (void)file.header_json(); }) == "kFileChanged");
  const std::shared_ptr<const MemorySource> none;
  CHECK(test::outcome_of([&] { (void)SafeOpen(none); }) == "kInvalidArgument");
  const auto empty = std::make_shared<const MemorySource>(std::span<const std::byte>());
  CHECK(test::outcome_of([&] { (void)SafeOpen(empty); }) == "kHeaderTooSmall");
}
