// C: reads of parts, lists, conversions, and callbacks that watch.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "c_support.hpp"
#include "safetensors/cast.hpp"
#include "safetensors/mapped_file.hpp"
#include "safetensors/region.hpp"
#include "safetensors/safe_open.hpp"

#if defined(__linux__)
#include "posix_support.hpp"
#endif

using safetensors::Dtype;
using safetensors::Index;
using test::named;
using test::OwnTensor;

namespace {

using Indices = std::vector<safetensors_index>;

safetensors_index range(std::int64_t start, std::int64_t stop, std::int64_t step = 1) {
  return {SAFETENSORS_RANGE, 0, start, stop, step};
}
safetensors_index one(std::int64_t at) { return {SAFETENSORS_ONE, 0, at, 0, 0}; }
safetensors_index list(std::uint32_t count) { return {SAFETENSORS_LIST, count, 0, 0, 0}; }
const safetensors_index kAll = {SAFETENSORS_ALL, 0, 0, 0, 0};

/// Returns a random expression for a tensor of `rank` axes, in C and in C++.
std::pair<Indices, std::vector<safetensors::IndexEntry>> random_expression(std::mt19937& random,
                                                                           std::size_t rank) {
  Indices c;
  std::vector<safetensors::IndexEntry> cpp;
  const auto below = [&](int count) { return static_cast<int>(random() % count); };
  for (std::size_t axis = 0; axis < rank; ++axis) {
    const int kind = below(4);
    if (kind == 0) {
      c.push_back(kAll);
      cpp.emplace_back(Index::all());
    } else if (kind == 1) {
      const int at = below(4) - 2;
      c.push_back(one(at));
      cpp.emplace_back(Index::at(at));
    } else {
      const auto size = static_cast<std::uint32_t>(kind == 2 ? 0 : 1 + below(3));
      if (kind == 3) c.push_back(list(size));
      std::vector<Index> items;
      for (std::uint32_t i = 0; i < std::max(size, 1U); ++i) {
        if (kind == 3 && below(2) == 0) {
          const int at = below(4) - 2;
          c.push_back(one(at));
          items.push_back(Index::at(at));
        } else {
          const int start = below(5), stop = start + below(5), step = 1 + below(2);
          c.push_back(range(start, stop, step));
          items.push_back(Index::slice(start, stop, step));
        }
      }
      if (kind == 3) {
        cpp.emplace_back(items);
      } else {
        cpp.emplace_back(items.front());
      }
    }
  }
  return {c, cpp};
}

/// Counts the calls of callbacks, on the thread that made it only.
struct Watched {
  std::thread::id thread = std::this_thread::get_id();
  int interrupts = 0;
  int shown = 0;
  std::int32_t stop_with = 0;
  int stop_at = 0;  ///< which call of `progress`
  std::uint64_t done = 0;
  std::uint64_t total = 0;
  bool is_good = true;
};

safetensors_watch watch_of(Watched& watched) {
  auto watch = test::sized<safetensors_watch>();
  watch.context = &watched;
  watch.interrupt = [](void* context) -> std::int32_t {
    auto& to = *static_cast<Watched*>(context);
    to.is_good = to.is_good && to.thread == std::this_thread::get_id();
    ++to.interrupts;
    return 0;
  };
  watch.progress = [](void* context, std::uint64_t done, std::uint64_t total) -> std::int32_t {
    auto& to = *static_cast<Watched*>(context);
    to.is_good = to.is_good && to.thread == std::this_thread::get_id() && done >= to.done &&
                 done <= total && (to.shown == 0 || to.total == total);
    to.done = done;
    to.total = total;
    return to.shown++ == to.stop_at ? to.stop_with : 0;
  };
  return watch;
}

}  // namespace

TEST_CASE("C: slices with lists equal those of C++, stored and converted") {
  const test::TempDir folder;
  const test::fs::path path = folder / "f";
  std::vector<OwnTensor> tensors = {test::tensor_of("t", Dtype::kI16, {4, 5, 3})};
  const std::string bytes = test::saved(path, tensors);
  const safetensors::SafeOpen cpp(path);
  std::mt19937 random(7);
  for (int way = 0; way < 3; ++way) {
    const test::File file = way == 0 ? test::open_memory(bytes) : test::open(path, way - 1);
    const safetensors_tensor tensor = test::find(file, "t");
    for (int round = 0; round < 300; ++round) {
      const auto [indices, entries] = random_expression(random, 3);
      const auto wanted = safetensors::select_part(cpp.at("t"), entries);
      std::vector<std::byte> right(wanted.nbytes()), read(wanted.nbytes());
      cpp.read(cpp.at("t"), wanted.runs, right);
      std::uint64_t shape[6];
      safetensors_tensor part{};
      REQUIRE(safetensors_slice(file.get(), &tensor, indices.data(), indices.size(), shape, &part,
                                nullptr) == SAFETENSORS_OK);
      CHECK(std::ranges::equal(std::span(part.shape, part.rank), wanted.region.shape));
      CHECK(part.nbytes == right.size());
      CHECK(test::read(file.get(), tensor, read.data(), read.size(), nullptr, indices) == 0);
      CHECK(read == right);
      std::vector<float> floats(read.size() / 2);
      REQUIRE(test::read(file.get(), tensor, floats.data(), 4 * floats.size(), nullptr, indices,
                         SAFETENSORS_F32) == 0);
      std::vector<float> converted(floats.size());
      safetensors::cast_elements(Dtype::kI16, right, Dtype::kF32,
                                 std::as_writable_bytes(std::span(converted)));
      CHECK(floats == converted);
    }
  }
}

TEST_CASE("C: lists that are not lists are refused") {
  const std::vector<OwnTensor> tensors = {test::tensor_of("t", Dtype::kU8, {4, 5})};
  const auto bytes = safetensors::serialize(test::views_of(tensors));
  const std::string text = test::text_of(bytes.bytes());
  const test::File file = test::open_memory(text);
  const safetensors_tensor tensor = test::find(file, "t");
  const auto outcome = [&](const Indices& indices) {
    std::byte room[20];
    safetensors_error error{};
    (void)test::read(file.get(), tensor, room, 20, &error, indices);
    return std::string(error.text);
  };
  CHECK(outcome({list(3), one(0), one(1)}) ==
        "a list of 3 entries reaches past the last of the 3 indices");
  CHECK(outcome({list(UINT32_MAX)}).starts_with("a list of 4294967295 entries"));
  CHECK(outcome({list(1), list(0)}) == "a list holds integers and ranges, and no list");
  CHECK(!outcome({list(1), {SAFETENSORS_ELLIPSIS, 0, 0, 0, 0}}).empty());
  CHECK(outcome({list(1), kAll}).empty());
  CHECK(outcome({list(2), range(0, 2), range(2, 4)}).empty());
}

TEST_CASE("C: every dtype that has numbers is converted to every float, in pieces") {
  const test::TempDir folder;
  std::vector<OwnTensor> tensors;
  for (const Dtype dtype : safetensors::all_dtypes()) {
    // Of two of them more than a piece, whose rows are no multiple of one.
    const bool is_long = dtype == Dtype::kF16 || dtype == Dtype::kF4;
    const std::uint64_t columns = is_long ? 900'008 : 5'008;
    tensors.push_back(test::tensor_of(std::string(safetensors::name(dtype)), dtype, {3, columns}));
  }
  (void)test::saved(folder / "f", tensors);
  for (const std::int32_t backend : {SAFETENSORS_MMAP, SAFETENSORS_PREAD}) {
    const test::File file = test::open(folder / "f", backend);
    for (const OwnTensor& each : tensors) {
      const safetensors_tensor tensor = test::find(file, each.name);
      CAPTURE(each.name);
      const std::uint64_t row = each.shape[1], count = 3 * row;
      const bool has_numbers =
          each.dtype != Dtype::kC64 && each.dtype != Dtype::kF6E2M3 && each.dtype != Dtype::kF6E3M2;
      for (const Dtype to :
           {Dtype::kF64, Dtype::kF32, Dtype::kF16, Dtype::kBF16, Dtype::kF8E4M3, Dtype::kF8E5M2}) {
        const std::uint64_t nbytes = count * safetensors::bit_size(to) / 8;
        std::vector<std::byte> whole(nbytes), cast(nbytes), odd(nbytes + 1);
        const auto number = static_cast<std::int32_t>(to);
        const std::int32_t code =
            test::read(file.get(), tensor, odd.data() + 1, nbytes, nullptr, {}, number);
        CHECK(named(code) == (has_numbers ? "ok" : "kUnsupportedDtype"));
        CHECK(safetensors_convert(tensor.dtype, each.bytes.data(), each.bytes.size(), number,
                                  cast.data(), cast.size(), nullptr) == code);
        if (!has_numbers) continue;
        CHECK(std::equal(cast.begin(), cast.end(), odd.begin() + 1));
        if (to != Dtype::kF32) continue;
        // Columns, whose runs are shorter than a piece, and all of whose rows are longer.
        const Indices most = {{SAFETENSORS_ALL, 0, 0, 0, 0},
                              range(0, static_cast<std::int64_t>(row) - 8)};
        const std::uint64_t part = (row - 8) * 4;
        std::vector<std::byte> columns(3 * part);
        REQUIRE(test::read(file.get(), tensor, columns.data(), columns.size(), nullptr, most,
                           number) == 0);
        for (std::size_t i = 0; i < 3; ++i) {
          CHECK(std::memcmp(columns.data() + i * part, cast.data() + i * row * 4, part) == 0);
        }
      }
    }
  }
}

#if defined(__linux__)
TEST_CASE("C: a conversion of a mapped file that was truncated fails") {
  const test::TempDir folder;
  const test::fs::path path = folder / "a.safetensors";
  const std::string whole =
      test::saved(path, {test::tensor_of("a", safetensors::Dtype::kF16, {3000, 1000})});
  const auto outcome = [&](std::uintmax_t size, const Indices& indices, std::size_t count) {
    test::write_text(path, whole);
    return test::in_child([&] {
      const test::File file = test::open(path);
      const safetensors_tensor tensor = test::find(file, "a");
      std::vector<float> floats(count);
      test::fs::resize_file(path, size);
      return test::read(file.get(), tensor, floats.data(), count * sizeof(float), nullptr, indices,
                        SAFETENSORS_F32);
    });
  };
  test::write_text(path, whole);
  const safetensors::SafeOpen opened(path);
  test::fs::resize_file(path, 50'000);
  if (!safetensors::is_truncated(opened.mapping()->bytes())) {
    MESSAGE("skipped: this system cannot tell that a page is gone");
    return;
  }
  CHECK(outcome(50'000, {}, 3'000'000) == SAFETENSORS_FILE_CHANGED);
  CHECK(outcome(50'000, {range(2000, 2001)}, 1000) == SAFETENSORS_FILE_CHANGED);
  CHECK(outcome(50'000, {range(0, 2)}, 2000) == SAFETENSORS_OK);  // they are there
  CHECK(outcome(3'000'000, {}, 3'000'000) == SAFETENSORS_FILE_CHANGED);
  CHECK(outcome(50'000, {kAll, one(0)}, 3000) == SAFETENSORS_FILE_CHANGED);  // read, then converted
}
#endif

TEST_CASE("C: the size of a conversion is exact") {
  const std::vector<OwnTensor> tensors = {test::tensor_of("t", Dtype::kBF16, {4})};
  const auto bytes = safetensors::serialize(test::views_of(tensors));
  const std::string text = test::text_of(bytes.bytes());
  const test::File file = test::open_memory(text);
  const safetensors_tensor tensor = test::find(file, "t");
  const auto outcome = [&](std::uint64_t room, std::int32_t dtype) {
    std::byte to[64];
    return named(test::read(file.get(), tensor, to, room, nullptr, {}, dtype));
  };
  CHECK(outcome(16, SAFETENSORS_F32) == "ok");
  CHECK(outcome(15, SAFETENSORS_F32) == "kInvalidArgument");
  CHECK(outcome(17, SAFETENSORS_F32) == "kInvalidArgument");
  CHECK(outcome(8, SAFETENSORS_BF16) == "ok");
  CHECK(outcome(8, SAFETENSORS_U16) == "kUnsupportedDtype");
  CHECK(outcome(8, 22) == "kUnsupportedDtype");
  CHECK(outcome(8, -2) == "kUnsupportedDtype");
  safetensors_request request = {&tensor, nullptr, 0, nullptr, 0, SAFETENSORS_AS_STORED, 1};
  CHECK(named(safetensors_read(file.get(), &request, 1, nullptr, nullptr)) == "kInvalidArgument");
  request.tensor = nullptr;
  request.reserved = 0;
  CHECK(named(safetensors_read(file.get(), &request, 1, nullptr, nullptr)) == "kInvalidArgument");
  CHECK(named(safetensors_read(file.get(), nullptr, 1, nullptr, nullptr)) == "kInvalidArgument");
  CHECK(named(safetensors_read(file.get(), nullptr, 0, nullptr, nullptr)) == "ok");
  std::byte to[8]{};
  CHECK(named(safetensors_convert(99, to, 1, 4, to, 4, nullptr)) == "kUnsupportedDtype");
  CHECK(named(safetensors_convert(7, nullptr, 2, 4, to, 4, nullptr)) == "kInvalidArgument");
  CHECK(named(safetensors_convert(7, to, 3, 4, to + 4, 4, nullptr)) == "kInvalidArgument");
  CHECK(named(safetensors_convert(21, to, 3, 21, to + 4, 3, nullptr)) == "ok");
}

TEST_CASE("C: a watch sees the progress, on the calling thread, and can end the call") {
  const test::TempDir folder;
  const std::vector<OwnTensor> tensors = {test::tensor_of("a", Dtype::kF16, {12 << 20}),
                                          test::tensor_of("b", Dtype::kU8, {3})};
  (void)test::saved(folder / "f", tensors);
  for (const std::int32_t backend : {SAFETENSORS_MMAP, SAFETENSORS_PREAD}) {
    const test::File file = test::open(folder / "f", backend);
    const safetensors_tensor a = test::find(file, "a"), b = test::find(file, "b");
    for (const std::int32_t dtype : {SAFETENSORS_AS_STORED, std::int32_t{SAFETENSORS_BF16}}) {
      std::vector<std::byte> to(a.nbytes), small(3);
      const safetensors_request requests[] = {
          {&a, nullptr, 0, to.data(), to.size(), dtype, 0},
          {&b, nullptr, 0, small.data(), 3, SAFETENSORS_AS_STORED, 0}};
      Watched watched;
      safetensors_watch watch = watch_of(watched);
      CHECK(safetensors_read(file.get(), requests, 2, &watch, nullptr) == SAFETENSORS_OK);
      CHECK(watched.is_good);
      CHECK(watched.done == a.nbytes + 3);
      CHECK(watched.total == a.nbytes + 3);
      CHECK(small == tensors[1].bytes);
      if (dtype == SAFETENSORS_AS_STORED) CHECK(to == tensors[0].bytes);
      watched = {};
      watched.stop_with = -77;
      safetensors_error error{};
      CHECK(safetensors_read(file.get(), requests, 2, &watch, &error) == SAFETENSORS_STOPPED);
      CHECK(error.detail == -77);
      CHECK(watched.shown == 1);
      watch.progress = nullptr;
      watch.interrupt = [](void*) -> std::int32_t { return 5; };
      const std::int32_t code = safetensors_read(file.get(), requests, 2, &watch, &error);
      CHECK((code == SAFETENSORS_STOPPED || code == SAFETENSORS_OK));
      if (code != SAFETENSORS_OK) CHECK(error.detail == 5);
    }
  }
}

TEST_CASE("C: a save is watched, too, and undone if it is stopped") {
  const test::TempDir folder;
  const std::string path = (folder / "f.safetensors").string();
  const std::vector<OwnTensor> tensors = {test::tensor_of("a", Dtype::kU8, {1000})};
  const std::vector<safetensors_tensor> given = test::c_tensors(tensors);
  Watched watched;
  const safetensors_watch watch = watch_of(watched);
  safetensors_save_options options = test::with_flags(SAFETENSORS_SUMS);
  options.watch = &watch;
  const auto save = [&] {
    return safetensors_save(path.data(), path.size(), given.data(), 1, &options, nullptr);
  };
  CHECK(save() == SAFETENSORS_OK);
  CHECK(watched.done == test::read_text(path).size());
  CHECK(test::fs::exists(folder / "f.sums.json"));
  test::fs::remove(path);
  watched = {};
  watched.stop_with = 1;
  CHECK(save() == SAFETENSORS_STOPPED);
  CHECK(!test::fs::exists(path));
  std::uint64_t nbytes = 0;
  options.flags = 0;
  CHECK(named(safetensors_serialize(given.data(), 1, &options, nullptr, 0, &nbytes, nullptr)) ==
        "kInvalidArgument");
}
