#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <exception>
#include <filesystem>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "safetensors/save.hpp"
#include "safetensors/staged_save.hpp"
#include "support.hpp"
#include "write/save_memory.hpp"

using safetensors::Dtype;
using safetensors::StagedPlace;
using safetensors::StagedSave;
using test::OwnTensor;

namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kChunk = 16 << 20;

/// Returns tensors of three chunks in all, of which one begins in the first and ends in the last.
std::vector<OwnTensor> long_tensors() {
  std::vector<OwnTensor> tensors = test::some_tensors();
  tensors.push_back(test::tensor_of("long", Dtype::kU8, {kChunk / 2, 5}, 9));
  tensors.push_back(test::tensor_of("nothing", Dtype::kF32, {0}, 10));
  return tensors;
}

/// Runs write() of a save on a thread.
class Writer {
 public:
  explicit Writer(StagedSave& save)
      : thread_([&] {
          try {
            save.write();
          } catch (...) {
            error_ = std::current_exception();
          }
        }) {}
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;
  ~Writer() {
    if (thread_.joinable()) thread_.join();
  }
  void finish() {
    thread_.join();
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::exception_ptr error_;
  std::thread thread_;
};

}  // namespace

TEST_CASE("a staged save writes what save_file writes") {
  const test::TempDir folder;
  const std::vector<OwnTensor> tensors = long_tensors();
  const safetensors::Metadata metadata = {{"a", "b"}};
  const auto views = test::views_of(tensors);
  safetensors::save_file(views, folder / "wanted.safetensors", &metadata, {.sums = true});
  const std::string wanted = test::read_text(folder / "wanted.safetensors");
  std::string sums = test::read_text(folder / "wanted.sums.json");
  for (std::size_t at = 0; (at = sums.find("wanted", at)) != std::string::npos;) {
    sums.replace(at, 6, "f");
  }
  for (const std::uint64_t budget : {std::uint64_t{0}, 2 * kChunk, 10 * kChunk}) {
    std::vector<OwnTensor> copy = tensors;
    StagedSave save(test::views_of(copy), folder / "f.safetensors", &metadata, {.sums = true});
    Writer writer(save);
    save.stage({}, budget);
    for (OwnTensor& each : copy) std::ranges::fill(each.bytes, std::byte{7});  // it may change now
    writer.finish();
    CHECK(test::read_text(folder / "f.safetensors") == wanted);
    CHECK(test::read_text(folder / "f.sums.json") == sums);
    CHECK(save.nbytes_done() > 2 * kChunk);
    const safetensors::SaveMemoryUse use = safetensors::save_memory_use();
    CHECK(use.used_nbytes == 0);
    CHECK(use.kept_nbytes >= kChunk);
  }
  CHECK(safetensors::release_save_memory() >= kChunk);
  CHECK(safetensors::save_memory_use().kept_nbytes == 0);
  CHECK(folder.count() == 4);
}

TEST_CASE("one thread copies and writes by turns") {
  const test::TempDir folder;
  const std::vector<OwnTensor> tensors = long_tensors();
  const auto views = test::views_of(tensors);
  StagedSave save(views, folder / "f");
  save.write_here({}, kChunk);
  CHECK(safetensors::save_memory_use().used_nbytes == 0);
  const safetensors::Buffer wanted = safetensors::serialize(views);
  CHECK(test::read_text(folder / "f") == test::text_of(wanted.bytes()));
  (void)safetensors::release_save_memory();
}

TEST_CASE("a function reads a tensor that is elsewhere") {
  const test::TempDir folder;
  const std::vector<OwnTensor> tensors = long_tensors();
  const auto views = test::views_of(tensors);
  std::vector<StagedPlace> places(views.size());
  std::uint64_t next = 0;
  const auto at = static_cast<std::size_t>(
      std::ranges::find(views, "long", &safetensors::TensorData::name) - views.begin());
  places[at].read = [&](std::uint64_t begin, std::span<std::byte> to) {
    CHECK(begin == next);
    next += to.size();
    std::memcpy(to.data(), tensors[at].bytes.data() + begin, to.size());
  };
  {
    StagedSave save(views, folder / "f");
    Writer writer(save);
    save.stage(places);
    writer.finish();
  }
  CHECK(next == tensors[at].bytes.size());
  const safetensors::Buffer wanted = safetensors::serialize(views);
  CHECK(test::read_text(folder / "f") == test::text_of(wanted.bytes()));

  places[at].read = [](std::uint64_t, std::span<std::byte>) { throw std::runtime_error("no"); };
  StagedSave save(views, folder / "f");
  Writer writer(save);
  CHECK_THROWS_AS(save.stage(places), std::runtime_error);
  CHECK(test::outcome_of([&] { writer.finish(); }) == "kWriterClosed");
  CHECK(test::read_text(folder / "f") == test::text_of(wanted.bytes()));
  CHECK(folder.count() == 1);
  CHECK(safetensors::save_memory_use().used_nbytes == 0);
  (void)safetensors::release_save_memory();
}

TEST_CASE("each tensor has a place, or none has") {
  const test::TempDir folder;
  const std::vector<OwnTensor> tensors = test::some_tensors();
  StagedSave save(test::views_of(tensors), folder / "f");
  const std::vector<StagedPlace> places(tensors.size() - 1);
  CHECK(test::outcome_of([&] { save.stage(places); }) == "kInvalidArgument");
  CHECK(test::outcome_of([&] { save.write_here(places); }) == "kInvalidArgument");
  save.write_here();
  CHECK(folder.count() == 1);
}

TEST_CASE("saves share a budget, also when several ask for memory at once") {
  safetensors::SaveMemory& memory = safetensors::SaveMemory::get();
  const auto reserve = [&](std::uint64_t budget, std::size_t most) {
    const std::lock_guard lock(memory.mutex);
    return memory.reserve(budget, most);
  };
  CHECK(reserve(3 * kChunk, 2) == 2);
  CHECK(reserve(3 * kChunk, 2) == 1);
  CHECK(reserve(3 * kChunk, 2) == 0);
  memory.unreserve(3);
  CHECK(reserve(0, 2) == 1);  // one save always goes on
  memory.unreserve(1);
  CHECK(safetensors::save_memory_use().used_nbytes == 0);
}

TEST_CASE("an interrupt may wait for a thread that asks for the memory of saves") {
  const test::TempDir folder;
  const std::vector<OwnTensor> tensors = long_tensors();
  StagedSave save(test::views_of(tensors), folder / "f", nullptr, {.interrupt = [] {
                    std::thread([] { (void)safetensors::save_memory_use(); }).join();
                  }});
  Writer writer(save);
  save.stage({}, kChunk);
  writer.finish();
  (void)safetensors::release_save_memory();
}

TEST_CASE("a save that was stopped waits for nothing") {
  const test::TempDir folder;
  const std::vector<OwnTensor> tensors = long_tensors();
  StagedSave save(test::views_of(tensors), folder / "f");
  save.stop();
  save.stage();
  CHECK(test::outcome_of([&] { save.write(); }) == "kWriterClosed");
  CHECK(folder.count() == 0);
}
