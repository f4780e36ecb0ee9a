// C: functions that open, and callbacks of the program, without memory and with failing system
// calls.
#include <doctest/doctest.h>

#include <cstdint>
#include <functional>
#include <new>
#include <string>
#include <vector>

#include "c_sources.hpp"
#include "c_support.hpp"
#include "faults.hpp"
#include "safetensors/save.hpp"

using faults::Effect;
using faults::MemoryFile;
using faults::MemoryFiles;
using faults::Outcome;
using faults::Plan;

namespace {

const std::vector<test::OwnTensor>& tensors() {
  static const std::vector<test::OwnTensor> all = {
      test::tensor_of("s", safetensors::Dtype::kF32, {5, 5}, 1),
      test::tensor_of("t", safetensors::Dtype::kU8, {100}, 2)};
  return all;
}

/// Returns a file with the tensor of this number.
std::string file_with(std::size_t number) {
  const std::vector<test::OwnTensor> one = {tensors()[number]};
  return test::text_of(safetensors::serialize(test::views_of(one)).bytes());
}

constexpr const char* kFirst = "model-00001-of-00002.safetensors";
constexpr const char* kSecond = "model-00002-of-00002.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr const char* kIndexText =
    R"({"weight_map": {"s": "model-00001-of-00002.safetensors",
                       "t": "model-00002-of-00002.safetensors"}})";

/// Reads all tensors of what a function opens, and closes it.
std::int32_t use(std::int32_t code, safetensors_file* file, std::string& read,
                 safetensors_error& error) {
  read.clear();
  for (std::size_t i = 0; code == SAFETENSORS_OK && i < safetensors_count(file); ++i) {
    safetensors_tensor tensor{};
    code = safetensors_at(file, i, &tensor, &error);
    if (code != SAFETENSORS_OK) break;
    std::byte bytes[100];
    code = test::read(file, tensor, bytes, static_cast<std::size_t>(tensor.nbytes), &error);
    // Once, so that no allocation of the test is among those of the library.
    read.append(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(tensor.nbytes));
  }
  safetensors_close(file);
  return code;
}

/// Runs `open` with each of its allocations failing.
void fail_allocations(const std::function<std::int32_t()>& open,
                      const std::function<bool()>& is_released) {
  std::int32_t code = SAFETENSORS_OK;
  const auto work = [&] {
    code = open();
    if (code != SAFETENSORS_OK) throw std::bad_alloc();
    return std::string();
  };
  const auto check = [&](const Outcome&) {
    CHECK((code == SAFETENSORS_OK || code == SAFETENSORS_OUT_OF_MEMORY));
    CHECK(is_released());
  };
  CHECK(faults::fail_each_allocation([] {}, work, check) > 5);
}

}  // namespace

TEST_CASE("C: sources and sinks are released once if any allocation fails") {
  safetensors_error error{};
  std::string read;
  read.reserve(1000);
  {
    MemoryFile file{"t", file_with(1)};
    fail_allocations(
        [&] {
          file.opened = file.released = 0;
          const safetensors_source source = file.source();
          safetensors_file* opened = nullptr;
          const std::int32_t code = safetensors_open_source(&source, SAFETENSORS_TEXT("source"),
                                                            nullptr, &opened, &error);
          return use(code, opened, read, error);
        },
        [&] { return file.opened == 1 && file.released == 1; });
  }
  for (const bool has_index : {false, true}) {
    std::vector<MemoryFile> files = {{kFirst, file_with(0)}, {kSecond, file_with(1)}};
    if (has_index) files.push_back({kIndex, kIndexText});
    MemoryFiles folder(std::move(files));
    fail_allocations(
        [&] {
          const safetensors_model_source source = folder.source();
          safetensors_file* opened = nullptr;
          const std::int32_t code = safetensors_open_model_source(
              &source, SAFETENSORS_TEXT("label"), nullptr, &opened, &error);
          return use(code, opened, read, error);
        },
        [&] { return folder.are_released(); });
  }
  {
    int releases = 0;
    const std::vector<safetensors_tensor> specs = test::c_tensors(tensors());
    auto sink = test::sized<safetensors_sink>();
    sink.context = &releases;
    sink.write = [](void*, std::uint64_t, const void*, std::size_t) -> std::int32_t { return 0; };
    sink.release = [](void* context) { ++*static_cast<int*>(context); };
    fail_allocations(
        [&] {
          releases = 0;
          safetensors_writer* writer = nullptr;
          const std::int32_t code = safetensors_writer_create_sink(
              &sink, specs.data(), specs.size(), nullptr, &writer, &error);
          safetensors_writer_free(writer);
          return code;
        },
        [&] { return releases == 1; });
  }
}

TEST_CASE("C: opening by a path while each system call and each allocation fails") {
  const test::TempDir folder;
  test::write_text(folder / kFirst, file_with(0));
  test::write_text(folder / kSecond, file_with(1));
  test::write_text(folder / kIndex, kIndexText);
  const std::string file = (folder / kFirst).string();
  const std::string model = folder.path().string();
  const std::string index = (folder / kIndex).string();
  std::string read;
  read.reserve(1000);
  for (const bool is_model : {false, true}) {
    for (const std::int32_t backend : {SAFETENSORS_MMAP, SAFETENSORS_PREAD}) {
      CAPTURE(is_model);
      CAPTURE(backend);
      const safetensors_options options = test::with_backend(backend);
      safetensors_error error{};
      std::int32_t code = SAFETENSORS_OK;
      std::string path = is_model ? model : file;
      const auto open = [&] {
        const auto function = is_model ? safetensors_open_model : safetensors_open;
        safetensors_file* opened = nullptr;
        code = function(path.data(), path.size(), &options, &opened, &error);
        if (code != SAFETENSORS_OK && opened != nullptr) code = SAFETENSORS_INTERNAL;
        code = use(code, opened, read, error);
        return code;
      };
      const std::size_t descriptors = test::open_descriptors();
      const auto work = [&] {
        (void)open();
        return std::string();
      };
      const std::vector<faults::Call> calls = faults::run({}, work).first;
      REQUIRE(code == SAFETENSORS_OK);
      const std::string wanted = read;
      CHECK(calls.size() > 3);
      std::size_t failed = 0;
      for (std::size_t nth = 0; nth < calls.size(); ++nth) {
        for (Plan plan : faults::plans_for(calls[nth].kind)) {
          plan.nth = nth;
          (void)faults::run(plan, work);
          CAPTURE(faults::shown(plan, calls[nth]));
          CAPTURE(error.text);
          const std::string name = test::named(code);
          if (code == SAFETENSORS_OK) CHECK(read == wanted);
          if (code != SAFETENSORS_OK) {
            ++failed;
            const bool is_short = plan.effect == Effect::kNothing;
            CHECK(
                (name == "kIo" || name == "kOutOfMemory" || (is_short && name == "kFileChanged")));
            if (name == "kIo") CHECK(error.os_error == plan.error);
            CHECK(std::string(error.text + error.path).starts_with(model));
          }
          CHECK(test::open_descriptors() == descriptors);
        }
      }
      CHECK(failed > 10);
      // Not of a folder: libstdc++ aborts if an allocation of its directory_iterator fails.
      if (is_model) path = index;
      fail_allocations(open, [&] { return test::open_descriptors() == descriptors; });
    }
  }
}
