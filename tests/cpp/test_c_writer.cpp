// C: writing tensor by tensor.
#include <doctest/doctest.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "c_support.hpp"
#include "safetensors/save.hpp"

using safetensors::Dtype;
using test::named;
using test::OwnTensor;

namespace {

struct Free {
  void operator()(safetensors_writer* writer) const { safetensors_writer_free(writer); }
};
using Writer = std::unique_ptr<safetensors_writer, Free>;

/// Returns the tensors without their bytes.
std::vector<safetensors_tensor> c_specs(const std::vector<OwnTensor>& tensors) {
  std::vector<safetensors_tensor> specs = test::c_tensors(tensors);
  for (safetensors_tensor& each : specs) {
    each.data = nullptr;
    each.nbytes = 0;
    each.begin = 99;
  }
  return specs;
}

Writer create(const test::fs::path& path, const std::vector<OwnTensor>& tensors,
              std::uint32_t flags = 0) {
  const std::vector<safetensors_tensor> specs = c_specs(tensors);
  safetensors_writer* writer = nullptr;
  const safetensors_save_options options = test::with_flags(flags);
  REQUIRE(safetensors_writer_create(SAFETENSORS_TEXT(path.string().c_str()), specs.data(),
                                    specs.size(), &options, &writer, nullptr) == SAFETENSORS_OK);
  return Writer(writer);
}

std::string write(const Writer& writer, const OwnTensor& tensor,
                  safetensors_error* error = nullptr) {
  return named(safetensors_writer_write(writer.get(), tensor.name.c_str(), tensor.name.size(), 0,
                                        tensor.bytes.data(), tensor.bytes.size(), error));
}

std::string commit(const Writer& writer, safetensors_error* error = nullptr) {
  return named(safetensors_writer_commit(writer.get(), error));
}

/// What a sink of these tests has received.
struct Received {
  std::string text;
  std::size_t calls = 0;
  std::size_t fails_at = SIZE_MAX;  ///< which call fails
  std::uint64_t committed = 0;      ///< bytes of the whole file
  std::int32_t commit_error = 0;
  int releases = 0;
};

std::int32_t receive(void* context, std::uint64_t offset, const void* bytes, std::size_t nbytes) {
  auto& to = *static_cast<Received*>(context);
  if (to.calls++ == to.fails_at) return ENOSPC;
  to.text.resize(std::max<std::size_t>(to.text.size(), offset + nbytes));
  to.text.replace(offset, nbytes, static_cast<const char*>(bytes), nbytes);
  return 0;
}

std::int32_t finish(void* context, std::uint64_t nbytes) {
  auto& to = *static_cast<Received*>(context);
  to.committed = nbytes;
  return to.commit_error;
}

void release(void* context) { ++static_cast<Received*>(context)->releases; }

safetensors_sink sink_of(Received& to, bool seeks) {
  auto sink = test::sized<safetensors_sink>();
  sink.context = &to;
  sink.write = receive;
  sink.commit = finish;
  sink.release = release;
  sink.seeks = seeks ? 1 : 0;
  return sink;
}

Writer create_sink(Received& to, bool seeks, const std::vector<OwnTensor>& tensors) {
  const safetensors_sink sink = sink_of(to, seeks);
  const std::vector<safetensors_tensor> specs = c_specs(tensors);
  safetensors_writer* writer = nullptr;
  REQUIRE(safetensors_writer_create_sink(&sink, specs.data(), specs.size(), nullptr, &writer,
                                         nullptr) == SAFETENSORS_OK);
  return Writer(writer);
}

std::vector<OwnTensor> three() {
  return {test::tensor_of("a", Dtype::kF32, {100, 3}), test::tensor_of("b", Dtype::kU8, {200'000}),
          test::tensor_of("c", Dtype::kI64, {0})};
}

}  // namespace

TEST_CASE("C: tensors written one by one give the bytes of a save") {
  const test::TempDir folder;
  const std::vector<OwnTensor> tensors = test::some_tensors();
  const std::string wanted = test::saved(folder / "wanted", tensors);
  const test::fs::path path = folder / "f";
  for (const std::uint32_t flags : {0U, std::uint32_t{SAFETENSORS_FSYNC}}) {
    const Writer writer = create(path, tensors, flags);
    for (auto at = tensors.rbegin(); at != tensors.rend(); ++at) CHECK(write(writer, *at) == "ok");
    CHECK(commit(writer) == "ok");
    CHECK(test::read_text(path) == wanted);
    CHECK(commit(writer) == "kWriterClosed");
  }
  for (const bool seeks : {false, true}) {
    Received received;
    const Writer writer = create_sink(received, seeks, tensors);
    for (auto at = tensors.rbegin(); at != tensors.rend(); ++at) CHECK(write(writer, *at) == "ok");
    CHECK(commit(writer) == "ok");
    CHECK(received.text == wanted);
    CHECK(received.committed == wanted.size());
    CHECK(received.releases == 1);
  }
}

TEST_CASE("C: parts of a tensor, and the layout of blocks") {
  const test::TempDir folder;
  const std::vector<OwnTensor> tensors = three();
  const Writer writer = create(folder / "f", tensors, SAFETENSORS_BLOCKS | SAFETENSORS_FSYNC);
  const auto part = [&](std::size_t begin, std::size_t nbytes) {
    return named(safetensors_writer_write(writer.get(), "b", 1, begin,
                                          tensors[1].bytes.data() + begin, nbytes, nullptr));
  };
  CHECK(part(150'000, 50'000) == "ok");
  CHECK(part(150'000, 50'001) == "kInvalidArgument");
  CHECK(part(0, 150'000) == "ok");
  CHECK(part(0, 1) == "kWrittenTwice");
  CHECK(write(writer, tensors[0]) == "ok");
  CHECK(write(writer, tensors[2]) == "ok");
  CHECK(commit(writer) == "ok");
  const test::File file = test::open(folder / "f");
  CHECK(test::info_of(file).data_offset % 4096 == 0);
  for (const OwnTensor& each : tensors) {
    const safetensors_tensor found = test::find(file, each.name);
    CHECK(std::string_view(static_cast<const char*>(found.data), found.nbytes) ==
          test::text_of(each.bytes));
  }
}

TEST_CASE("C: tensors are copied from open files") {
  const test::TempDir folder;
  const std::vector<OwnTensor> tensors = three();
  const std::string wanted = test::saved(folder / "from", tensors);
  const auto copy = [&](const Writer& writer, const test::File& file, const char* name,
                        const safetensors_tensor& tensor, safetensors_error* error = nullptr) {
    return named(safetensors_writer_copy(writer.get(), name, SAFETENSORS_NUL_TERMINATED, file.get(),
                                         &tensor, error));
  };
  for (const std::int32_t backend : {SAFETENSORS_MMAP, SAFETENSORS_PREAD}) {
    const test::File file = test::open(folder / "from", backend);
    const Writer writer = create(folder / "to", tensors);
    for (const char* const name : {"b", "c", "a"}) {
      CHECK(copy(writer, file, name, test::find(file, name)) == "ok");
    }
    CHECK(copy(writer, file, "a", test::find(file, "a")) == "kWrittenTwice");
    CHECK(commit(writer) == "ok");
    CHECK(test::read_text(folder / "to") == wanted);
  }
  const test::File file = test::open_memory(wanted);
  const std::vector<OwnTensor> others = {test::tensor_of("row", Dtype::kF32, {3}),
                                         test::tensor_of("bytes", Dtype::kU8, {1200})};
  const Writer writer = create(folder / "to", others);
  const safetensors_tensor whole = test::find(file, "a");
  safetensors_error error{};
  CHECK(copy(writer, file, "bytes", whole, &error) == "kInvalidTensorInfo");
  CHECK(std::string(error.text) ==
        "tensor `bytes` is 1,200 bytes of U8, what is to be copied is 1,200 bytes of F32");
  CHECK(copy(writer, file, "row", whole) == "kInvalidTensorInfo");
  const safetensors_index second = {SAFETENSORS_ONE, 0, 1, 0, 0};
  std::uint64_t shape[3];
  safetensors_tensor part{};
  REQUIRE(safetensors_slice(file.get(), &whole, &second, 1, shape, &part, nullptr) ==
          SAFETENSORS_OK);
  CHECK(copy(writer, file, "row", part) == "ok");
  safetensors_tensor outside = part;
  outside.begin = UINT64_MAX - 4;
  CHECK(copy(writer, file, "bytes", outside) == "kInvalidArgument");
  CHECK(write(writer, others[1]) == "ok");
  CHECK(commit(writer) == "ok");
  const test::File written = test::open(folder / "to");
  CHECK(std::memcmp(test::find(written, "row").data, tensors[0].bytes.data() + 12, 12) == 0);
}

TEST_CASE("C: a mistake leaves the writer as it was, and an unfinished file leaves nothing") {
  const test::TempDir folder;
  const test::fs::path path = folder / "f";
  test::write_text(path, "old");
  const std::vector<OwnTensor> tensors = three();
  {
    const Writer writer = create(path, tensors);
    safetensors_error error{};
    CHECK(named(safetensors_writer_write(writer.get(), "nope", 4, 0, "x", 1, &error)) ==
          "kTensorNotFound");
    CHECK(std::string(error.text) == "the file to be written has no tensor `nope`");
    const std::vector<std::byte> longer(1201);
    CHECK(named(safetensors_writer_write(writer.get(), "a", 1, 0, longer.data(), longer.size(),
                                         nullptr)) == "kInvalidArgument");
    CHECK(named(safetensors_writer_write(writer.get(), "a", 1, 0, nullptr, 1200, nullptr)) ==
          "kInvalidArgument");
    CHECK(named(safetensors_writer_write(writer.get(), nullptr, 1, 0, "x", 1, nullptr)) ==
          "kInvalidArgument");
    CHECK(named(safetensors_writer_write(nullptr, "a", 1, 0, "x", 1, nullptr)) ==
          "kInvalidArgument");
    CHECK(write(writer, tensors[0]) == "ok");
    CHECK(write(writer, tensors[0]) == "kWrittenTwice");
    CHECK(commit(writer, &error) == "kMissingTensors");
    CHECK(std::string(error.text) ==
          "1 of 3 tensors was not written: `b` (in " + path.string() + ")");
  }
  CHECK(test::read_text(path) == "old");
  CHECK(folder.count() == 1);
  safetensors_writer_free(nullptr);

  safetensors_writer* writer = nullptr;
  std::vector<safetensors_tensor> specs = c_specs(tensors);
  const auto outcome = [&](std::uint32_t flags) {
    const safetensors_save_options options = test::with_flags(flags);
    return named(safetensors_writer_create(SAFETENSORS_TEXT(path.string().c_str()), specs.data(),
                                           specs.size(), &options, &writer, nullptr));
  };
  CHECK(outcome(SAFETENSORS_SUMS) == "kInvalidArgument");
  specs[1] = specs[0];
  CHECK(outcome(0) == "kDuplicateName");
  specs[1].dtype = -1;
  CHECK(outcome(0) == "kUnsupportedDtype");
  Received received;
  safetensors_sink sink = sink_of(received, false);
  sink.write = nullptr;
  CHECK(test::named(safetensors_writer_create_sink(&sink, nullptr, 0, nullptr, &writer, nullptr)) ==
        "kInvalidArgument");
  CHECK(received.releases == 0);  // it was not taken
  sink.write = receive;
  const safetensors_save_options fsync = test::with_flags(SAFETENSORS_FSYNC);
  CHECK(test::named(safetensors_writer_create_sink(&sink, nullptr, 0, &fsync, &writer, nullptr)) ==
        "kInvalidArgument");
  CHECK(received.releases == 1);
  CHECK(writer == nullptr);
  CHECK(folder.count() == 1);
}

TEST_CASE("C: the error of a sink is reported, and ends the writer") {
  const std::vector<OwnTensor> tensors = three();
  for (const bool seeks : {false, true}) {
    Received received;
    received.fails_at = 0;
    const Writer writer = create_sink(received, seeks, tensors);
    safetensors_error error{};
    CHECK(write(writer, tensors[0]) == "ok");  // small: it is gathered
    CHECK(write(writer, tensors[1], &error) == "kIo");
    CHECK(error.os_error == ENOSPC);
    CHECK(std::string(error.text) == "the sink failed with error " + std::to_string(ENOSPC));
    CHECK(write(writer, tensors[2]) == "kWriterClosed");
    CHECK(commit(writer) == "kWriterClosed");
  }
}

TEST_CASE("C: a sink is released once, and its commit may fail") {
  const std::vector<OwnTensor> tensors = three();
  Received received;
  received.commit_error = EIO;
  {
    const Writer writer = create_sink(received, true, tensors);
    for (const OwnTensor& each : tensors) CHECK(write(writer, each) == "ok");
    safetensors_error error{};
    CHECK(commit(writer, &error) == "kIo");
    CHECK(error.os_error == EIO);
    CHECK(received.releases == 0);
  }
  CHECK(received.releases == 1);
  safetensors_sink sink = sink_of(received, true);
  sink.seeks = 2;
  safetensors_writer* writer = nullptr;
  CHECK(test::named(safetensors_writer_create_sink(&sink, nullptr, 0, nullptr, &writer, nullptr)) ==
        "kInvalidArgument");
  CHECK(received.releases == 2);
}

TEST_CASE("C: several threads write to one writer") {
  const test::TempDir folder;
  std::vector<OwnTensor> tensors;
  for (std::size_t i = 0; i < 40; ++i) {
    tensors.push_back(
        test::tensor_of("t" + std::to_string(i), Dtype::kU8, {i % 2 == 0 ? 50U : 150'000U}));
  }
  const std::string wanted = test::saved(folder / "wanted", tensors);
  const Writer writer = create(folder / "f", tensors);
  {
    std::vector<std::thread> threads;
    for (std::size_t first = 0; first < 4; ++first) {
      threads.emplace_back([&, first] {
        for (std::size_t i = first; i < tensors.size(); i += 4) (void)write(writer, tensors[i]);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  CHECK(commit(writer) == "ok");
  CHECK(test::read_text(folder / "f") == wanted);
}
