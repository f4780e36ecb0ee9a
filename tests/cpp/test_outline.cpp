// Outlines: trees of the parts of names, with rows for siblings that are alike.
#include <doctest/doctest.h>

#include <array>
#include <limits>
#include <string>
#include <vector>

#include "safetensors/detail/outline.hpp"

namespace {

using safetensors::detail::Outline;
using safetensors::detail::outline_of;
using safetensors::detail::OutlineLimits;
using safetensors::detail::OutlineRow;
using safetensors::detail::OutlineTensor;

constexpr std::array<std::uint64_t, 2> kShape = {4, 8};
constexpr std::array<std::uint64_t, 1> kOther = {3};

OutlineTensor tensor(std::string_view name, std::span<const std::uint64_t> shape = kShape) {
  return {name, "F32", shape, 4 * safetensors::detail::element_count(shape)};
}

void describe(const std::vector<OutlineRow>& rows, const std::string& indent, std::string& text) {
  for (const OutlineRow& row : rows) {
    text += indent + row.first;
    if (row.alike > 1) text += ".." + row.last + "*" + std::to_string(row.alike);
    if (row.tensor == OutlineRow::kGroup) text += " " + std::to_string(row.tensors);
    text += '\n';
    describe(row.rows, indent + " ", text);
  }
}

std::string described(const std::vector<OutlineTensor>& tensors, OutlineLimits limits = {}) {
  std::string text;
  describe(outline_of(tensors, limits).rows, "", text);
  return text;
}

TEST_CASE("Rows are in natural order, and a group with one member is joined with it") {
  CHECK(described({tensor("h.10.b"), tensor("h.10.a"), tensor("h.2.a"), tensor("wte.weight"),
                   tensor("h.9.x.y.z")}) == "h 4\n 2.a\n 9.x.y.z\n 10 2\n  a\n  b\nwte.weight\n");
  CHECK(described({tensor("a10"), tensor("a9b"), tensor("a9"), tensor("a-"), tensor("a09")}) ==
        "a09\na9\na9b\na10\na-\n");
}

TEST_CASE("Names that share nothing are not divided beyond a number of groups") {
  std::vector<std::string> names;
  for (int i = 0; i < 1000; ++i) {
    names.push_back(std::to_string(i));
    for (int part = 0; part < 32; ++part) names.back() += "." + std::to_string(part % 2);
  }
  std::vector<OutlineTensor> tensors;
  for (const std::string& name : names) tensors.push_back(tensor(name));
  // Of 32 groups for each of 1,000 tensors, there are 8,096. A chain of groups is one row anyway.
  const Outline outline = outline_of(tensors, {.rows = 2000});
  std::uint64_t count = outline.omitted;
  for (const OutlineRow& row : outline.rows) count += row.tensors;
  CHECK(count == names.size());
  CHECK(outline.rows.back().last == names.back());
}

TEST_CASE("Three or more neighbours with the same tensors are one row") {
  CHECK(described({tensor("h.0.w"), tensor("h.0.b", kOther), tensor("h.1.b", kOther),
                   tensor("h.1.w"), tensor("h.2.w"), tensor("h.2.b", kOther)}) ==
        "h 6\n 0..2*3 6\n  b\n  w\n");
  // Joined names keep what they are joined with.
  CHECK(described({tensor("h.0.w"), tensor("h.1.w"), tensor("h.2.w")}) == "h 3\n 0.w..2.w*3\n");
  // Two stay two rows, and so do others with other shapes, types or names.
  CHECK(described({tensor("h.0"), tensor("h.1")}) == "h 2\n 0\n 1\n");
  CHECK(described({tensor("h.0"), tensor("h.1", kOther), tensor("h.2")}) == "h 3\n 0\n 1\n 2\n");
  CHECK(described({tensor("h.0.a"), tensor("h.1.b"), tensor("h.2.a")}) ==
        "h 3\n 0.a\n 1.b\n 2.a\n");
  CHECK(described({tensor("a0"), tensor("b1"), tensor("b2")}) == "a0\nb1\nb2\n");
  std::vector<OutlineTensor> types = {tensor("h.0"), tensor("h.1"), tensor("h.2")};
  types[1].type = "F16";
  CHECK(described(types) == "h 3\n 0\n 1\n 2\n");
}

TEST_CASE("A name may be the start of others, and may be in two files") {
  CHECK(described({tensor("a.b"), tensor("a"), tensor("a.c")}) == "a\na 2\n b\n c\n");
  CHECK(described({tensor("a1"), tensor("a1"), tensor("a1")}) == "a1\na1\na1\n");
  CHECK(described({tensor(""), tensor("."), tensor("..")}) == "\n 2\n \n .\n");
}

TEST_CASE("Sums are those of all that are alike") {
  const std::vector<OutlineTensor> tensors = {tensor("h.0.w"), tensor("h.1.w"), tensor("h.2.w"),
                                              tensor("x", kOther)};
  const Outline outline = outline_of(tensors, {});
  REQUIRE(outline.rows.size() == 2);
  CHECK(outline.rows[0].tensors == 3);
  CHECK(outline.rows[0].elements == 96);
  CHECK(outline.rows[0].nbytes == 384);
  CHECK(outline.rows[0].rows.at(0).nbytes == 384);
  CHECK(outline.rows[1].tensor == 3);
  REQUIRE(outline.types.size() == 1);
  CHECK(outline.types[0].type == "F32");
  CHECK(outline.types[0].tensors == 4);
  CHECK(outline.types[0].nbytes == 396);
}

TEST_CASE("The largest groups are unfolded first, as far as the rows suffice") {
  const std::vector<OutlineTensor> tensors = {tensor("a.x", kOther), tensor("a.y", kOther),
                                              tensor("b.x"), tensor("b.y"), tensor("c")};
  CHECK(described(tensors, {.rows = 5}) == "a 2\nb 2\n x\n y\nc\n");
  CHECK(described(tensors, {.rows = 7}) == "a 2\n x\n y\nb 2\n x\n y\nc\n");
  CHECK(described(tensors, {.depth = 1}) == "a 2\nb 2\nc\n");
  CHECK(described(tensors, {.rows = 2}) == "a 2\nb 2\n");
  CHECK(outline_of(tensors, {.rows = 2}).omitted == 1);
  CHECK(outline_of(tensors, {.rows = 0}).omitted == 5);
  CHECK(outline_of({}, {}).rows.empty());
}

TEST_CASE("A name of a million dots has a limited depth") {
  const std::string dots(1'000'000, '.');
  CHECK(described({tensor(dots)}) == dots + "\n");
  const std::string other = dots + "x";
  const Outline outline = outline_of(std::vector{tensor(dots), tensor(other)}, {});
  CHECK(outline.rows.at(0).tensors == 2);
}

TEST_CASE("Sizes of shapes do not overflow") {
  constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();
  using Shape = std::vector<std::uint64_t>;
  CHECK(safetensors::detail::element_count(Shape{}) == 1);
  CHECK(safetensors::detail::element_count(Shape{kMax, kMax, 0}) == 0);
  CHECK(safetensors::detail::element_count(Shape{kMax, 2}) == kMax);
}

}  // namespace
