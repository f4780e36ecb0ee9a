// C: callbacks of the program, without memory.
#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <new>
#include <string>
#include <vector>

#include "c_support.hpp"
#include "faults.hpp"
#include "safetensors/save.hpp"

namespace {

/// What a source reads, and how often it or a sink was released.
struct Context {
  std::string bytes;
  int releases = 0;
};

void release(void* context) { ++static_cast<Context*>(context)->releases; }

std::int64_t read(void* context, std::uint64_t offset, void* to, std::size_t nbytes,
                  safetensors_error*) {
  std::memcpy(to, static_cast<Context*>(context)->bytes.data() + offset, nbytes);
  return static_cast<std::int64_t>(nbytes);
}

}  // namespace

TEST_CASE("C: a source and a sink are released once if any allocation fails") {
  const std::vector<test::OwnTensor> tensors = {
      test::tensor_of("t", safetensors::Dtype::kU8, {100})};
  Context context{test::text_of(safetensors::serialize(test::views_of(tensors)).bytes())};
  const std::vector<safetensors_tensor> specs = test::c_tensors(tensors);
  auto source = test::sized<safetensors_source>();
  source.context = &context;
  source.nbytes = context.bytes.size();
  source.read = read;
  source.release = release;
  auto sink = test::sized<safetensors_sink>();
  sink.context = &context;
  sink.write = [](void*, std::uint64_t, const void*, std::size_t) -> std::int32_t { return 0; };
  sink.release = release;
  for (const bool is_source : {true, false}) {
    CAPTURE(is_source);
    std::int32_t code = SAFETENSORS_OK;
    const auto prepare = [&] { context.releases = 0; };
    const auto work = [&] {
      if (is_source) {
        safetensors_file* file = nullptr;
        code =
            safetensors_open_source(&source, SAFETENSORS_TEXT("source"), nullptr, &file, nullptr);
        safetensors_close(file);
      } else {
        safetensors_writer* writer = nullptr;
        code = safetensors_writer_create_sink(&sink, specs.data(), specs.size(), nullptr, &writer,
                                              nullptr);
        safetensors_writer_free(writer);
      }
      if (code != SAFETENSORS_OK) throw std::bad_alloc();
      return std::string();
    };
    const std::size_t count =
        faults::fail_each_allocation(prepare, work, [&](const faults::Outcome&) {
          CHECK((code == SAFETENSORS_OK || code == SAFETENSORS_OUT_OF_MEMORY));
          CHECK(context.releases == 1);
        });
    CHECK(count > 5);
  }
}
