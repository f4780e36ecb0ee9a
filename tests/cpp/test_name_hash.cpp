#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <set>
#include <string>
#include <vector>

#include "base/name_hash.hpp"
#include "support.hpp"

using safetensors::hash_name;
using safetensors::multiply_fold;

TEST_CASE("texts of every length are hashed to their end and no further") {
  for (std::size_t size = 0; size < 100; ++size) {
    const test::ExactBytes exact(std::string(size, 'a'));  // a sanitizer sees a read past the end
    const std::string text = test::text_of(exact.span());
    const auto* const data = reinterpret_cast<const char*>(exact.span().data());
    const std::uint64_t hash = hash_name({data, size}, 1);
    CHECK(hash == hash_name(text, 1));
    for (std::size_t at = 0; at < size; ++at) {
      for (const int bit : {0, 3, 7}) {
        std::string other = text;
        other[at] = static_cast<char>(other[at] ^ (1 << bit));
        if (hash_name(other, 1) == hash) FAIL("size ", size, ": byte ", at, " does not count");
      }
    }
  }
}

TEST_CASE("the hash depends on length and seed") {
  std::set<std::uint64_t> hashes;
  for (std::size_t size = 0; size < 200; ++size) {
    hashes.insert(hash_name(std::string(size, '\0'), 7));
    hashes.insert(hash_name("a", 1000 + size));
  }
  CHECK(hashes.size() == 400);
}

TEST_CASE("names of models spread over low and high bits") {
  constexpr std::size_t kCount = 1U << 16;
  std::vector<unsigned> low(kCount, 0);
  std::vector<unsigned> high(1024, 0);
  for (std::size_t i = 0; i < kCount; ++i) {
    const std::uint64_t hash =
        hash_name("model.layers." + std::to_string(i / 8) + ".w" + std::to_string(i % 8), 42);
    ++low[hash % kCount];
    ++high[hash >> 54];
  }
  // By chance about 8 fall on the fullest of as many places as there are names, 64 +- 8 on each.
  CHECK(*std::max_element(low.begin(), low.end()) < 14);
  CHECK(*std::max_element(high.begin(), high.end()) < 64 + 60);
}

TEST_CASE("a changed bit of the name changes about half of the hash") {
  unsigned changed = 0;
  unsigned tries = 0;
  for (const std::string text : {"a", "lm_head", "model.norm", "model.embed_tokens.weight"}) {
    for (std::size_t at = 0; at < text.size(); ++at) {
      for (int bit = 0; bit < 8; ++bit, ++tries) {
        std::string other = text;
        other[at] = static_cast<char>(other[at] ^ (1 << bit));
        changed += static_cast<unsigned>(std::popcount(hash_name(text, 5) ^ hash_name(other, 5)));
      }
    }
  }
  CHECK(changed > tries * 29);
  CHECK(changed < tries * 35);
}

TEST_CASE("the folded product") {
  CHECK(multiply_fold(0, 5) == 0);
  CHECK(multiply_fold(1, UINT64_MAX) == UINT64_MAX);
  CHECK(multiply_fold(UINT64_MAX, UINT64_MAX) == UINT64_MAX);  // (2^64 - 2) and 1
  CHECK(multiply_fold(std::uint64_t{1} << 32, std::uint64_t{1} << 32) == 1);
  CHECK(multiply_fold(std::uint64_t{1} << 63, 4) == 2);
}
