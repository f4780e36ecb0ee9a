// C: sources by callbacks, among them those that fail, lie or call the library.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "c_support.hpp"
#include "hostile_cases.hpp"

using test::named;
using test::OwnTensor;

namespace {

/// A source of these tests. Each member changes what its callback does.
struct Fake {
  std::string bytes;
  std::size_t at_once = SIZE_MAX;           ///< bytes of one read
  std::int64_t fails_at = INT64_MAX;        ///< which read fails
  safetensors_error failure{};              ///< with what
  std::uint64_t ends_at = UINT64_MAX;       ///< reads return 0 from here on
  std::int64_t more = 0;                    ///< added to what a read returns
  const safetensors_file* reads = nullptr;  ///< another file that each read reads
  int meets = 0;                            ///< reads of data wait a while for so many others
  std::atomic<int> there = 0;
  std::atomic<int> most = 0;
  std::atomic<std::int64_t> calls = 0;
  std::atomic<int> releases = 0;
  std::atomic<bool> is_good = true;
};

std::int64_t read(void* context, std::uint64_t offset, void* to, std::size_t nbytes,
                  safetensors_error* error) {
  auto& fake = *static_cast<Fake*>(context);
  if (error->code != 0 || error->text[0] != '\0') fake.is_good = false;
  if (fake.calls++ >= fake.fails_at) {
    *error = fake.failure;
    return -1;
  }
  if (fake.reads != nullptr) {
    safetensors_tensor other{};
    float value = 0;
    if (safetensors_at(fake.reads, 0, &other, error) != 0 ||
        test::read(fake.reads, other, &value, sizeof value, error) != 0) {
      return -1;
    }
  }
  if (fake.meets != 0 && nbytes == 20) {
    const int now = ++fake.there;
    for (int seen = fake.most; seen < now && !fake.most.compare_exchange_weak(seen, now);) {
    }
    for (int i = 0; i < 1000 && fake.most < fake.meets; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    --fake.there;
  }
  const std::uint64_t end = std::min<std::uint64_t>(fake.bytes.size(), fake.ends_at);
  if (offset >= end) return fake.more;
  const std::size_t count = std::min({nbytes, fake.at_once, std::size_t{end - offset}});
  std::memcpy(to, fake.bytes.data() + offset, count);
  return static_cast<std::int64_t>(count) + fake.more;
}

safetensors_source source_of(Fake& fake) {
  auto source = test::sized<safetensors_source>();
  source.context = &fake;
  source.nbytes = fake.bytes.size();
  source.read = read;
  source.release = [](void* context) { ++static_cast<Fake*>(context)->releases; };
  return source;
}

std::int32_t open(const safetensors_source& source, safetensors_file** file,
                  safetensors_error* error = nullptr) {
  return safetensors_open_source(&source, SAFETENSORS_TEXT("a label"), nullptr, file, error);
}

std::string bytes_of(const std::vector<OwnTensor>& tensors) {
  return test::text_of(safetensors::serialize(test::views_of(tensors)).bytes());
}

}  // namespace

TEST_CASE("C: a source is read like a file, whatever its reads return at once") {
  std::vector<OwnTensor> tensors = test::some_tensors();
  tensors.push_back(test::tensor_of("long", safetensors::Dtype::kF16, {3000, 1001}));
  for (const std::size_t at_once : {SIZE_MAX, std::size_t{100'000}, std::size_t{4097}}) {
    for (const std::uint32_t is_request : {0U, 1U}) {
      Fake fake{bytes_of(tensors)};
      fake.at_once = at_once;
      safetensors_source source = source_of(fake);
      source.is_request = is_request;
      source.concurrency = 3;
      source.chunk_nbytes = 1 << 20;
      safetensors_file* opened = nullptr;
      REQUIRE(open(source, &opened) == SAFETENSORS_OK);
      CHECK(std::string(safetensors_file_path(opened, 0, nullptr)) == "a label");
      std::vector<safetensors_tensor> found(tensors.size());
      std::vector<std::vector<std::byte>> memory(tensors.size());
      std::vector<safetensors_request> requests;
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        REQUIRE(safetensors_find(opened, tensors[i].name.data(), tensors[i].name.size(), &found[i],
                                 nullptr) == SAFETENSORS_OK);
        CHECK(found[i].data == nullptr);
        memory[i].resize(tensors[i].bytes.size());
        requests.push_back(
            {&found[i], nullptr, 0, memory[i].data(), memory[i].size(), SAFETENSORS_AS_STORED, 0});
      }
      CHECK(safetensors_read(opened, requests.data(), requests.size(), nullptr, nullptr) == 0);
      for (std::size_t i = 0; i < tensors.size(); ++i) CHECK(memory[i] == tensors[i].bytes);
      // Columns, converted.
      const std::vector<safetensors_index> indices = {{SAFETENSORS_ALL, 0, 0, 0, 0},
                                                      {SAFETENSORS_ONE, 0, -1, 0, 0}};
      std::vector<float> floats(3000);
      CHECK(test::read(opened, found.back(), floats.data(), 12'000, nullptr, indices,
                       SAFETENSORS_F32) == SAFETENSORS_OK);
      CHECK(fake.is_good);
      CHECK(fake.releases == 0);
      safetensors_close(opened);
      CHECK(fake.releases == 1);
    }
  }
}

TEST_CASE("C: chunks of a source have any length, also below a page") {
  const std::vector<OwnTensor> tensors = {test::tensor_of("a", safetensors::Dtype::kU8, {3001}),
                                          test::tensor_of("b", safetensors::Dtype::kF32, {5, 700})};
  for (const std::uint64_t chunk_nbytes : {1U, 1000U, 4095U, 4097U}) {
    CAPTURE(chunk_nbytes);
    Fake fake{bytes_of(tensors)};
    safetensors_source source = source_of(fake);
    source.is_request = 1;
    source.chunk_nbytes = chunk_nbytes;
    safetensors_file* opened = nullptr;
    REQUIRE(open(source, &opened) == SAFETENSORS_OK);
    for (const OwnTensor& tensor : tensors) {
      safetensors_tensor found{};
      REQUIRE(safetensors_find(opened, tensor.name.data(), tensor.name.size(), &found, nullptr) ==
              SAFETENSORS_OK);
      std::vector<std::byte> memory(tensor.bytes.size());
      CHECK(test::read(opened, found, memory.data(), memory.size(), nullptr) == SAFETENSORS_OK);
      CHECK(memory == tensor.bytes);
    }
    safetensors_close(opened);
  }
}

TEST_CASE("C: tensors that share a chunk are one request") {
  std::vector<OwnTensor> tensors;
  for (int i = 0; i < 20; ++i) {
    tensors.push_back(test::tensor_of(std::to_string(i), safetensors::Dtype::kU8, {300'000}));
  }
  for (const auto& [is_request, calls] : {std::pair{1U, 1}, std::pair{0U, 20}}) {
    Fake fake{bytes_of(tensors)};
    safetensors_source source = source_of(fake);
    source.is_request = is_request;
    source.concurrency = 1;
    source.chunk_nbytes = 8 << 20;
    safetensors_file* opened = nullptr;
    REQUIRE(open(source, &opened) == SAFETENSORS_OK);
    std::vector<safetensors_tensor> found(tensors.size());
    std::vector<std::vector<std::byte>> memory(tensors.size(), std::vector<std::byte>(300'000));
    std::vector<safetensors_request> requests;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      REQUIRE(safetensors_find(opened, tensors[i].name.data(), tensors[i].name.size(), &found[i],
                               nullptr) == SAFETENSORS_OK);
      requests.push_back(
          {&found[i], nullptr, 0, memory[i].data(), memory[i].size(), SAFETENSORS_AS_STORED, 0});
    }
    fake.calls = 0;
    CHECK(safetensors_read(opened, requests.data(), requests.size(), nullptr, nullptr) == 0);
    CHECK(fake.calls == calls);
    for (std::size_t i = 0; i < tensors.size(); ++i) CHECK(memory[i] == tensors[i].bytes);
    safetensors_close(opened);
  }
}

TEST_CASE("C: a server is asked for several tensors at once, also if they are converted") {
  std::vector<OwnTensor> tensors;
  for (int i = 0; i < 8; ++i) {
    tensors.push_back(test::tensor_of(std::to_string(i), safetensors::Dtype::kF16, {10}));
  }
  Fake fake{bytes_of(tensors)};
  fake.meets = 4;
  safetensors_source source = source_of(fake);
  source.is_request = 1;
  source.concurrency = 4;
  safetensors_file* opened = nullptr;
  REQUIRE(open(source, &opened) == SAFETENSORS_OK);
  std::vector<safetensors_tensor> found(tensors.size());
  std::vector<std::vector<float>> memory(tensors.size(), std::vector<float>(10));
  std::vector<safetensors_request> requests;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    REQUIRE(safetensors_at(opened, i, &found[i], nullptr) == SAFETENSORS_OK);
    requests.push_back({&found[i], nullptr, 0, memory[i].data(), 40, SAFETENSORS_F32, 0});
  }
  CHECK(safetensors_read(opened, requests.data(), requests.size(), nullptr, nullptr) == 0);
  CHECK(fake.most == 4);
  safetensors_close(opened);
}

TEST_CASE("C: the hostile table gives the same codes through a source") {
  for (const test::HostileCase& hostile : test::read_hostile_cases(SAFETENSORS_HOSTILE_TABLE)) {
    if (hostile.heavy) continue;
    CAPTURE(hostile.name);
    Fake fake{hostile.file()};
    fake.at_once = 7777;
    safetensors_file* opened = nullptr;
    safetensors_error error{};
    CHECK(named(open(source_of(fake), &opened, &error)) == hostile.expect);
    if (error.code != 0) CHECK(std::string(error.text + error.path) == "a label");
    safetensors_close(opened);
    CHECK(fake.releases == 1);
  }
}

TEST_CASE("C: a source fails at each of its reads, and is released once") {
  const std::vector<OwnTensor> tensors = {
      test::tensor_of("t", safetensors::Dtype::kF32, {1 << 20})};
  const auto outcome = [&](std::int64_t fails_at, const safetensors_error& failure,
                           safetensors_error* error) {
    Fake fake{bytes_of(tensors)};
    fake.fails_at = fails_at;
    fake.failure = failure;
    fake.at_once = 1 << 20;
    safetensors_file* opened = nullptr;
    std::int32_t code = open(source_of(fake), &opened, error);
    if (code == 0) {
      safetensors_tensor tensor{};
      std::vector<std::byte> to(4 << 20);
      REQUIRE(safetensors_find(opened, "t", 1, &tensor, nullptr) == 0);
      code = test::read(opened, tensor, to.data(), to.size(), error);
      if (code == 0) CHECK(to == tensors[0].bytes);
    }
    safetensors_close(opened);
    CHECK(fake.releases == 1);
    return code;
  };
  safetensors_error error{};
  std::int64_t reads = 0;
  for (; reads < 100; ++reads) {
    safetensors_error failure{};
    failure.os_error = EACCES;
    const std::int32_t code = outcome(reads, failure, &error);
    if (code == SAFETENSORS_OK) break;
    CHECK(named(code) == "kIo");
    CHECK(error.os_error == EACCES);
    CHECK(std::string(error.text).find("Permission denied (os error 13): a label") !=
          std::string::npos);
  }
  CHECK(reads > 3);
  CHECK(reads < 100);
  for (std::int64_t at = 0; at < reads; ++at) {
    safetensors_error failure{};
    CHECK(named(outcome(at, failure, &error)) == "kIo");
    CHECK(std::string(error.text).find("the source failed (in a label)") != std::string::npos);
    failure.code = SAFETENSORS_STOPPED;
    failure.detail = 7;
    CHECK(outcome(at, failure, &error) == SAFETENSORS_STOPPED);
    CHECK(error.detail == 7);
    failure.code = SAFETENSORS_OUT_OF_MEMORY;
    CHECK(outcome(at, failure, &error) == SAFETENSORS_OUT_OF_MEMORY);
    failure.code = SAFETENSORS_DAMAGED;
    std::memset(failure.text, 'x', sizeof failure.text);  // no NUL
    failure.text[1] = '\n';
    CHECK(named(outcome(at, failure, &error)) == "kDamaged");
    CHECK(std::string(error.text).find("x\\u000axxx") != std::string::npos);
    failure.code = 1000;
    CHECK(named(outcome(at, failure, &error)) == "kIo");
    failure.code = -1;
    CHECK(named(outcome(at, failure, &error)) == "kIo");
  }
}

TEST_CASE("C: a source that lies about what it has") {
  const std::vector<OwnTensor> tensors = {test::tensor_of("t", safetensors::Dtype::kU8, {100'000})};
  const std::string bytes = bytes_of(tensors);
  safetensors_error error{};
  safetensors_file* opened = nullptr;
  const auto read_all = [&] {
    safetensors_tensor tensor{};
    std::vector<std::byte> to(100'000);
    REQUIRE(safetensors_find(opened, "t", 1, &tensor, nullptr) == 0);
    const std::string code = named(test::read(opened, tensor, to.data(), to.size(), &error));
    safetensors_close(opened);
    opened = nullptr;
    return code;
  };
  {  // it ends early, in its header and in its data
    Fake fake{bytes};
    fake.ends_at = 50;
    CHECK(named(open(source_of(fake), &opened, &error)) == "kFileChanged");
    CHECK(std::string(error.text).find("the source ends after 50 bytes: it said that it has") !=
          std::string::npos);
    fake.ends_at = 90'000;
    REQUIRE(open(source_of(fake), &opened) == 0);
    CHECK(read_all() == "kFileChanged");
    CHECK(fake.releases == 2);
  }
  {  // it says that it has read more than was asked for, which would be a write past the memory
    Fake fake{bytes};
    REQUIRE(open(source_of(fake), &opened) == 0);
    fake.more = 1;
    CHECK(read_all() == "kInvalidArgument");
    CHECK(std::string(error.text).find("when it was asked for") != std::string::npos);
    fake.more = INT64_MAX / 2;
    CHECK(named(open(source_of(fake), &opened, &error)) == "kInvalidArgument");
  }
  for (const std::uint64_t nbytes :
       {std::uint64_t{0}, std::uint64_t{7}, bytes.size() - 1, bytes.size() + 1, UINT64_MAX}) {
    Fake fake{bytes};
    safetensors_source source = source_of(fake);
    source.nbytes = nbytes;
    const std::string code = named(open(source, &opened, &error));
    CHECK(code == (nbytes < 8 ? "kHeaderTooSmall" : "kIncompleteData"));
    CHECK(fake.releases == 1);
  }
}

TEST_CASE("C: a source may call the library, from several threads") {
  const std::string inner_bytes =
      bytes_of({test::tensor_of("inner", safetensors::Dtype::kF32, {1})});
  const test::File inner = test::open_memory(inner_bytes);
  const std::vector<OwnTensor> tensors = {
      test::tensor_of("t", safetensors::Dtype::kF32, {6 << 20})};
  Fake fake{bytes_of(tensors)};
  fake.reads = inner.get();
  safetensors_file* opened = nullptr;
  REQUIRE(open(source_of(fake), &opened) == SAFETENSORS_OK);
  safetensors_tensor tensor{};
  REQUIRE(safetensors_find(opened, "t", 1, &tensor, nullptr) == 0);
  std::vector<std::vector<std::byte>> memory(2, std::vector<std::byte>(24 << 20));
  std::vector<std::thread> threads;
  std::atomic<int> right = 0;
  for (auto& to : memory) {
    threads.emplace_back([&] { right += test::read(opened, tensor, to.data(), to.size()) == 0; });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(right == 2);
  for (const auto& to : memory) CHECK(to == tensors[0].bytes);
  CHECK(fake.is_good);
  safetensors_close(opened);
  CHECK(fake.releases == 1);
}

TEST_CASE("C: a struct of a source that is wrong is not taken, other errors release it") {
  Fake fake{bytes_of({})};
  safetensors_file* opened = nullptr;
  safetensors_source source = source_of(fake);
  source.read = nullptr;
  CHECK(named(open(source, &opened)) == "kInvalidArgument");
  source = source_of(fake);
  source.size = 3;
  CHECK(named(open(source, &opened)) == "kInvalidArgument");
  CHECK(named(safetensors_open_source(nullptr, nullptr, 0, nullptr, &opened, nullptr)) ==
        "kInvalidArgument");
  CHECK(fake.releases == 0);
  source = source_of(fake);
  source.is_request = 2;
  CHECK(named(open(source, &opened)) == "kInvalidArgument");
  CHECK(fake.releases == 1);
  source = source_of(fake);
  CHECK(named(open(source, nullptr)) == "kInvalidArgument");
  CHECK(named(safetensors_open_source(&source, "a\0b", 3, nullptr, &opened, nullptr)) ==
        "kInvalidArgument");
  const safetensors_options pread = test::with_backend(SAFETENSORS_PREAD);
  CHECK(named(safetensors_open_source(&source, nullptr, 0, &pread, &opened, nullptr)) ==
        "kInvalidArgument");
  CHECK(fake.releases == 4);
  CHECK(opened == nullptr);
  REQUIRE(safetensors_open_source(&source, nullptr, 0, nullptr, &opened, nullptr) == 0);
  CHECK(safetensors_file_path(opened, 0, nullptr) == nullptr);
  safetensors_close(opened);
  CHECK(fake.releases == 5);
}
