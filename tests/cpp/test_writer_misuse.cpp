// FileWriter against sinks, plans and callers that do wrong.
#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "posix_support.hpp"
#include "roundtrip.hpp"
#include "safetensors/safe_open.hpp"
#include "safetensors/save.hpp"
#include "safetensors/writer.hpp"

using safetensors::ByteSink;
using safetensors::Dtype;
using safetensors::FileWriter;
using safetensors::LayoutPlan;
using safetensors::make_file_sink;
using safetensors::MemorySource;
using safetensors::plan_file;
using safetensors::TensorCopy;
using safetensors::TensorSpec;

namespace {

/// A sink in memory.
struct Text final : ByteSink {
  Text(std::string& to, bool seeks) : text(to), can_seek(seeks) {}
  [[nodiscard]] bool seeks() const noexcept override { return can_seek; }
  [[nodiscard]] std::size_t write_at(std::uint64_t offset,
                                     std::span<const std::byte> bytes) override {
    if (text.size() < offset + bytes.size()) text.resize(offset + bytes.size());
    text.replace(offset, bytes.size(), test::text_of(bytes));
    last_offset = offset;
    if (was_complete) throw std::logic_error("written after the length of the header");
    was_complete = can_seek && text.substr(0, 8) != std::string(8, '\0');
    return bytes.size() + too_many;
  }
  [[nodiscard]] std::uint64_t copy_from(const safetensors::ByteSource&, std::uint64_t,
                                        std::uint64_t nbytes, std::uint64_t) override {
    return copies_too_many ? nbytes + 1 : 0;
  }
  void commit(std::uint64_t nbytes, bool) override {
    if (nbytes != text.size()) throw std::logic_error("not the whole file");
  }

  std::string& text;
  bool can_seek;
  bool was_complete = false;
  std::uint64_t last_offset = 0;
  std::size_t too_many = 0;
  bool copies_too_many = false;
};

const std::vector<std::uint64_t> kTen = {10};
const std::vector<std::uint64_t> kLarge = {100'000};
const std::vector<TensorSpec> kTwo = {{"a", kTen}, {"b", kTen}};

std::vector<std::byte> bytes(std::size_t count) { return test::pattern(count, 1); }

std::string text_of_error(const std::function<void()>& work) { return test::error_of(work).what(); }

}  // namespace

TEST_CASE("a copy that is refused marks none of its tensors as written") {
  const std::vector<std::byte> ten = bytes(10);
  const MemorySource source(ten);
  for (const bool seeks : {true, false}) {
    std::string text;
    FileWriter writer(std::make_unique<Text>(text, seeks), plan_file(kTwo));
    writer.write(1, ten);
    const std::array<TensorCopy, 2> both = {{{0, 0}, {1, 0}}};
    const std::array<TensorCopy, 2> twice = {{{0, 0}, {0, 0}}};
    if (seeks) {
      CHECK(test::outcome_of([&] { writer.copy(source, both); }) == "kWrittenTwice");
      CHECK(test::outcome_of([&] { writer.copy(source, twice); }) == "kWrittenTwice");
      CHECK(writer.missing() == std::vector<std::size_t>{0});
      CHECK(writer.nbytes_written() == 10);
    }
    writer.copy(source, {both.data(), 1});
    writer.commit();
    CHECK(text.substr(text.size() - 20) == test::text_of(ten) + test::text_of(ten));
  }
}

TEST_CASE("a tensor written twice is noticed before the budget") {
  std::string text;
  FileWriter writer(std::make_unique<Text>(text, false), plan_file(kTwo), {.budget_nbytes = 0});
  const std::vector<std::byte> ten = bytes(10);
  CHECK(test::outcome_of([&] { writer.write(1, ten); }) == "kOutOfOrder");
  writer.write(0, ten);
  CHECK(test::outcome_of([&] { writer.write(0, ten); }) == "kWrittenTwice");
  writer.write(1, ten);
  CHECK(test::outcome_of([&] { writer.write_at(1, 5, std::span(ten).first(5)); }) ==
        "kWrittenTwice");
  writer.commit();
}

TEST_CASE("overlapping parts cannot complete a file that is written in order") {
  std::string text;
  FileWriter writer(std::make_unique<Text>(text, false), plan_file(kTwo));
  const std::vector<std::byte> ten = bytes(10);
  const std::span<const std::byte> half = std::span(ten).first(5);
  writer.write(0, ten);
  writer.write_at(1, 0, half);
  writer.write_at(1, 0, half);
  CHECK(writer.missing().empty());
  CHECK(text_of_error([&] { writer.commit(); }) ==
        "the parts written of tensor `b` overlap: its byte 5 is missing");
}

TEST_CASE("an empty part does not begin a tensor, and an empty tensor is written once") {
  const std::vector<std::uint64_t> none = {0};
  const std::vector<TensorSpec> specs = {{"a", kTen}, {"empty", none}};
  std::string text;
  FileWriter writer(std::make_unique<Text>(text, true), plan_file(specs));
  const std::vector<std::byte> ten = bytes(10);
  writer.write_at(0, 3, {});
  writer.write(0, ten);
  writer.write(1, {});
  CHECK(test::outcome_of([&] { writer.write(1, {}); }) == "kWrittenTwice");
  writer.commit();
}

TEST_CASE("parts that are out of order are refused as a whole") {
  const std::vector<std::uint64_t> shape = {4, 4};
  const std::vector<TensorSpec> specs = {{"first", kTen}, {"m", shape}};
  std::string text;
  FileWriter writer(std::make_unique<Text>(text, false), plan_file(specs), {.budget_nbytes = 7});
  const std::array column = {safetensors::Index::all(), safetensors::Index::slice(0, 2)};
  const auto runs = safetensors::byte_runs(safetensors::resolve(column, shape), shape, Dtype::kU8);
  const std::vector<std::byte> eight = bytes(8);
  CHECK(test::outcome_of([&] { writer.write_runs(1, runs, eight); }) == "kOutOfOrder");
  CHECK(writer.nbytes_written() == 0);
  CHECK(writer.missing().size() == 2);
}

TEST_CASE("a sink that claims too much ends the writer") {
  const std::vector<TensorSpec> specs = {{"a", kLarge}};
  const std::vector<std::byte> large = bytes(100'000);
  std::string text;
  auto sink = std::make_unique<Text>(text, true);
  sink->too_many = 1;
  FileWriter writer(std::move(sink), plan_file(specs));
  CHECK(text_of_error([&] { writer.write(0, large); }) ==
        "the sink was given 100000 bytes, and says that it has written 100001");
  CHECK(test::outcome_of([&] { writer.commit(); }) == "kWriterClosed");
  sink = std::make_unique<Text>(text, true);
  sink->copies_too_many = true;
  FileWriter other(std::move(sink), plan_file(specs));
  const TensorCopy copy = {0, 0};
  CHECK(test::outcome_of([&] { other.copy(MemorySource(large), {&copy, 1}); }) ==
        "kInvalidArgument");
}

TEST_CASE("the length of the header is written after everything else") {
  const std::vector<TensorSpec> specs = {{"a", kLarge}, {"b", kLarge}, {"c", kTen}};
  std::string text;
  FileWriter writer(std::make_unique<Text>(text, true), plan_file(specs));
  writer.write(1, bytes(100'000));
  writer.write(0, bytes(100'000));
  writer.write(2, bytes(10));
  writer.commit();  // the sink throws if anything follows
  CHECK(safetensors::parse_bytes(std::as_bytes(std::span(text))).header.size() == 3);
}

TEST_CASE("plans that were not made by the library are refused") {
  std::string text;
  const auto outcome = [&](LayoutPlan plan) {
    return test::outcome_of(
        [&] { FileWriter(std::make_unique<Text>(text, true), std::move(plan)); });
  };
  CHECK(outcome({}) == "kInvalidArgument");
  LayoutPlan plan = plan_file(kTwo);
  plan.places.pop_back();
  CHECK(outcome(plan) == "kInvalidArgument");
}

TEST_CASE("errors name the file, if the sink knows it") {
  const test::TempDir folder;
  const std::vector<std::byte> ten = bytes(10);
  FileWriter writer(make_file_sink(folder / "f"), plan_file(kTwo));
  writer.write(0, ten);
  const std::string in_file = " (in " + (folder / "f").string() + ")";
  const safetensors::Error error = test::error_of([&] { writer.commit(); });
  CHECK(error.what() == "1 of 2 tensors was not written: `b`" + in_file);
  CHECK(error.path() == folder / "f");
  CHECK(error.subject() == "b");
  CHECK(text_of_error([&] { writer.write(0, ten); }) == "tensor `a` was written before" + in_file);
  CHECK(text_of_error([&] { writer.write(7, ten); }) == "there is no tensor 7 of 2" + in_file);
  writer.write(1, ten);
  writer.commit();
  CHECK(text_of_error([&] { writer.commit(); }) == "the writer is closed" + in_file);

  std::string text;
  FileWriter unnamed(std::make_unique<Text>(text, true), plan_file(kTwo));
  CHECK(test::error_of([&] { unnamed.commit(); }).path().empty());
}

TEST_CASE("offsets past the end of the largest file are refused") {
  const test::TempDir folder;
  const std::vector<std::uint64_t> huge = {(std::uint64_t{1} << 61) - 8};
  const std::vector<std::string> names = {"0", "1", "2", "3", "4", "5", "6"};
  FileWriter added(make_file_sink(folder / "f"), nullptr);
  std::vector<TensorSpec> specs;
  for (const std::string& name : names) {
    specs.push_back({name, huge});
    added.add(specs.back());
  }
  CHECK(test::outcome_of([&] { added.add({"7", huge}); }) == "kOverflow");
  const std::vector<std::byte> large = bytes(100'000);
  CHECK(test::error_of([&] { added.write_at(5, 0, large); }).os_error() == EFBIG);
  FileWriter writer(make_file_sink(folder / "f"), plan_file(specs));
  CHECK(test::error_of([&] { writer.write_at(0, 0, large); }).os_error() == EFBIG);
  added.abort();
  writer.abort();
  CHECK(folder.count() == 0);
}

TEST_CASE("room for a header is limited, and grows also before tensors without bytes") {
  const test::TempDir folder;
  CHECK(test::outcome_of([&] {
          FileWriter(make_file_sink(folder / "f"), nullptr, {.header_room = UINT64_MAX});
        }) == "kHeaderTooLarge");
  CHECK(test::outcome_of([&] {
          FileWriter(make_file_sink(folder / "f"), nullptr, {.header_room = 100'000'000});
        }) == "kHeaderTooLarge");
  CHECK(folder.count() == 0);
  FileWriter writer(make_file_sink(folder / "f"), nullptr, {.header_room = 1});
  const std::vector<std::uint64_t> none = {0};
  for (int i = 0; i < 200; ++i) writer.add({"tensor " + std::to_string(i), none});
  writer.commit();
  const safetensors::SafeOpen file(folder / "f");
  CHECK(file.header().size() == 200);
}

TEST_CASE("threads that write to a sink which fails all end, and nothing is left") {
  /// Fails from its tenth call on.
  struct Failing final : ByteSink {
    [[nodiscard]] bool seeks() const noexcept override { return true; }
    [[nodiscard]] std::size_t write_at(std::uint64_t, std::span<const std::byte> some) override {
      if (calls.fetch_add(1) >= 10) throw std::runtime_error("full");
      return some.size();
    }
    void commit(std::uint64_t, bool) override { throw std::logic_error("committed"); }
    std::atomic<int> calls = 0;
  };
  std::vector<std::string> names;
  for (int i = 0; i < 64; ++i) names.push_back(std::to_string(i));
  std::vector<TensorSpec> specs;
  for (const std::string& name : names) specs.push_back({name, kLarge});
  const std::vector<std::byte> large = bytes(100'000);
  FileWriter writer(std::make_unique<Failing>(), plan_file(specs));
  std::atomic<int> failures = 0;
  {
    std::vector<std::thread> threads;
    for (std::size_t first = 0; first < 4; ++first) {
      threads.emplace_back([&, first] {
        for (std::size_t i = first; i < specs.size(); i += 4) {
          try {
            writer.write(i, large);
          } catch (const std::exception&) {
            failures.fetch_add(1);
          }
        }
      });
    }
    for (std::thread& each : threads) each.join();
  }
  CHECK(failures >= 64 - 10);
  CHECK(test::outcome_of([&] { writer.commit(); }) == "kWriterClosed");
}

TEST_CASE("a file is not completed while bytes are being written") {
  /// Blocks while it writes a large piece.
  struct Blocking final : ByteSink {
    [[nodiscard]] bool seeks() const noexcept override { return true; }
    [[nodiscard]] std::size_t write_at(std::uint64_t, std::span<const std::byte> some) override {
      block(some.size() >= 100'000);
      return some.size();
    }
    [[nodiscard]] std::uint64_t copy_from(const safetensors::ByteSource&, std::uint64_t,
                                          std::uint64_t nbytes, std::uint64_t) override {
      block(true);
      return nbytes;
    }
    void commit(std::uint64_t, bool) override { commits.fetch_add(1); }
    void block(bool is_large) {
      if (!is_large) return;
      is_blocked = true;
      is_blocked.notify_all();
      may_go_on.wait(false);
    }
    std::atomic<bool> is_blocked = false;
    std::atomic<bool> may_go_on = false;
    std::atomic<int> commits = 0;
  };
  const std::vector<TensorSpec> specs = {{"t", kLarge}};
  const std::vector<std::byte> large = bytes(100'000);
  const auto source = std::make_shared<MemorySource>(large);
  for (int how = 0; how < 4; ++how) {
    auto made = std::make_unique<Blocking>();
    Blocking& sink = *made;
    FileWriter writer(std::move(made), plan_file(specs));
    std::thread thread([&] {
      const TensorCopy copy = {0, 0};
      if (how == 0) writer.write(0, large);
      if (how == 1) writer.write_at(0, 0, large);
      if (how == 2) writer.write_runs(0, {.run_nbytes = 100'000, .loops = {}}, large);
      if (how == 3) writer.copy(*source, {&copy, 1});
    });
    sink.is_blocked.wait(false);
    CHECK(writer.missing().empty());
    CHECK(test::outcome_of([&] { writer.commit(); }) == "kMissingTensors");
    CHECK(sink.commits == 0);
    sink.may_go_on = true;
    sink.may_go_on.notify_all();
    thread.join();
    // Of several calls, one completes the file.
    std::atomic<int> completed = 0;
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i) {
      threads.emplace_back([&] {
        const std::string outcome = test::outcome_of([&] { writer.commit(); });
        if (outcome != "kWriterClosed") completed.fetch_add(1);
      });
    }
    for (std::thread& each : threads) each.join();
    CHECK(completed == 1);
  }
}
