// Patches of tensors in memory, without memory.
#include <doctest/doctest.h>

#include <string>

#include "faults.hpp"
#include "patch_support.hpp"

TEST_CASE("a tensor in memory is whole when any allocation of its patch fails") {
  for (const std::uint64_t rows : {10U, 2500U}) {  // for one thread, and for several
    test::OwnTensor before = test::tensor_of("t", safetensors::Dtype::kBF16, {rows, 2000});
    test::OwnTensor after = before;
    for (std::size_t i = 3; i < after.bytes.size(); i += 97) after.bytes[i] ^= std::byte{1};
    const std::string text =
        test::patch_between(test::state_of({before}), test::state_of({after})).text();
    const safetensors::PatchFile patch = test::open_patch_text(text);
    for (const bool digests : {false, true}) {
      std::vector<std::byte> bytes;
      const auto prepare = [&] { bytes = before.bytes; };
      const auto apply = [&] {
        patch.apply("t", before.dtype, before.shape, bytes, {.digests = digests});
        return std::string();
      };
      int failures = 0;
      const std::size_t count =
          faults::fail_each_allocation(prepare, apply, [&](const faults::Outcome& outcome) {
            const bool is_made = outcome.verdict == "ok";
            if (!is_made) ++failures;
            CHECK((is_made || outcome.verdict == "bad_alloc" || outcome.verdict == "kOutOfMemory"));
            CHECK(bytes == (is_made ? after.bytes : before.bytes));
          });
      CHECK(failures > 3);
      MESSAGE(count, " allocations, of which ", failures, " are needed");
    }
  }
}
