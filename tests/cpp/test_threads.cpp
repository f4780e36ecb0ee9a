// All operations at the same time, for the thread sanitizer.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <latch>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "posix_support.hpp"
#include "safetensors/safetensors.hpp"

using safetensors::Backend;
using safetensors::Dtype;
using safetensors::SafeOpen;
using safetensors::TensorView;
using test::OwnTensor;

namespace {

constexpr int kThreads = 16;

/// Runs `work(i)` on many threads at once. Returns how many calls did not return true.
template <typename Work>
int failures_of(const Work& work) {
  std::atomic<int> failures{0};
  std::atomic<int> waiting{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      ++waiting;
      while (waiting < kThreads) std::this_thread::yield();
      try {
        if (!work(i)) ++failures;
      } catch (...) {
        ++failures;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return failures;
}

bool all_there(const SafeOpen& file, const std::vector<OwnTensor>& tensors) {
  const std::vector<TensorView> views = file.get_tensors();
  if (views.size() != tensors.size() || file.keys().size() != tensors.size()) return false;
  return std::ranges::all_of(tensors, [&](const OwnTensor& tensor) {
    const TensorView view = file.get_tensor(tensor.name);
    return std::ranges::equal(view.bytes(), tensor.bytes) && file.find("nope") == nullptr;
  });
}

}  // namespace

TEST_CASE("all threads open and read one file") {
  const test::TempDir folder;
  std::vector<OwnTensor> tensors = test::some_tensors();
  tensors.push_back(test::tensor_of("large", Dtype::kU8, {9U << 20}));  // read by helpers
  safetensors::save_file(test::views_of(tensors), folder / "f");
  for (const Backend backend : {Backend::kMmap, Backend::kPread}) {
    const SafeOpen shared(folder / "f", {backend});
    CHECK(failures_of([&](int i) {
            if (i % 2 == 0) return all_there(shared, tensors);
            const SafeOpen own(folder / "f", {backend});
            return all_there(own, tensors);
          }) == 0);
  }
}

TEST_CASE("all threads read slices of one tensor") {
  const test::TempDir folder;
  const OwnTensor tensor = test::tensor_of("t", Dtype::kU8, {64, 1000});
  const std::vector<OwnTensor> tensors = {tensor};
  safetensors::save_file(test::views_of(tensors), folder / "f");
  for (const Backend backend : {Backend::kMmap, Backend::kPread}) {
    const SafeOpen file(folder / "f", {backend});
    const auto& info = file.at("t");
    CHECK(failures_of([&](int i) {
            using safetensors::Index;
            const std::vector<Index> column = {Index::all(), Index::at(i)};
            const auto runs = safetensors::byte_runs(safetensors::resolve(column, info.shape),
                                                     info.shape, info.dtype);
            std::vector<std::byte> to(runs.nbytes());
            file.read(info, runs, to);
            for (std::size_t row = 0; row < to.size(); ++row) {
              if (to[row] != tensor.bytes[row * 1000 + static_cast<std::size_t>(i)]) return false;
            }
            return to.size() == 64;
          }) == 0);
  }
}

TEST_CASE("the last copy of a handle can be destroyed on any thread") {
  const test::TempDir folder;
  const std::vector<OwnTensor> tensors = test::some_tensors();
  safetensors::save_file(test::views_of(tensors), folder / "f");
  std::vector<SafeOpen> copies(kThreads, SafeOpen(folder / "f"));
  CHECK(failures_of([&](int i) {
          const SafeOpen own = std::move(copies[static_cast<std::size_t>(i)]);
          return all_there(own, tensors);
        }) == 0);
}

TEST_CASE("with many writers and readers of one path, a reader sees one whole file") {
  const test::TempDir folder;
  const auto tensors_of = [](int writer) {
    return std::vector<OwnTensor>{test::tensor_of("t", Dtype::kU8,
                                                  {100'000U + static_cast<unsigned>(writer)},
                                                  static_cast<std::uint32_t>(writer))};
  };
  safetensors::save_file(test::views_of(tensors_of(0)), folder / "f");
  CHECK(failures_of([&](int i) {
          const std::vector<OwnTensor> own = tensors_of(i);
          for (int round = 0; round < 5; ++round) {
            if (i % 2 == 0) {
              safetensors::save_file(test::views_of(own), folder / "f");
              continue;
            }
            const SafeOpen file(folder / "f", {i % 4 == 1 ? Backend::kMmap : Backend::kPread});
            const auto writer = static_cast<int>(file.at("t").shape[0]) - 100'000;
            if (!all_there(file, tensors_of(writer))) return false;
          }
          return true;
        }) == 0);
  CHECK(folder.count() == 1);
}

TEST_CASE("opening, slicing, closing and saving at once") {
  const test::TempDir folder;
  const OwnTensor tensor = test::tensor_of("t", Dtype::kU8, {64, 1000});
  const std::vector<OwnTensor> tensors = {tensor};
  safetensors::save_file(test::views_of(tensors), folder / "f");
  for (const Backend backend : {Backend::kMmap, Backend::kPread}) {
    std::mutex mutex;
    auto current =
        std::make_shared<const SafeOpen>(folder / "f", safetensors::OpenOptions{backend});
    CHECK(failures_of([&](int i) {
            for (int round = 0; round < 8; ++round) {
              if (i % 4 == 0) {  // the handle that the others had may go away in their hands
                auto own = std::make_shared<const SafeOpen>(folder / "f",
                                                            safetensors::OpenOptions{backend});
                const std::lock_guard lock(mutex);
                current.swap(own);
                continue;
              }
              if (i % 4 == 1) {
                safetensors::save_file(test::views_of(tensors), folder / "f");
                continue;
              }
              std::shared_ptr<const SafeOpen> file;
              {
                const std::lock_guard lock(mutex);
                file = current;
              }
              const TensorView whole = file->get_tensor("t");
              using safetensors::Index;
              const auto& info = file->at("t");
              const std::vector<Index> row = {Index::at(i)};
              const auto runs = safetensors::byte_runs(safetensors::resolve(row, info.shape),
                                                       info.shape, info.dtype);
              std::vector<std::byte> to(runs.nbytes());
              file->read(info, runs, to);
              file.reset();
              const auto wanted =
                  std::span(tensor.bytes).subspan(static_cast<std::size_t>(i) * 1000, 1000);
              if (!std::ranges::equal(to, wanted)) return false;
              if (!std::ranges::equal(whole.bytes(), tensor.bytes)) return false;
            }
            return true;
          }) == 0);
  }
  CHECK(folder.count() == 1);
}

TEST_CASE("all threads serialize to memory") {
  const std::vector<OwnTensor> tensors = {test::tensor_of("t", Dtype::kU8, {9U << 20})};
  const safetensors::Buffer wanted = safetensors::serialize(test::views_of(tensors));
  CHECK(failures_of([&](int) {
          const safetensors::Buffer file = safetensors::serialize(test::views_of(tensors));
          return std::ranges::equal(file.bytes(), wanted.bytes());
        }) == 0);
}

TEST_CASE("fork between calls: the child reads and saves") {
  // Helpers live for one call only, so there is none that the child could miss.
  const test::TempDir folder;
  const std::vector<OwnTensor> tensors = {test::tensor_of("t", Dtype::kU8, {9U << 20})};
  safetensors::save_file(test::views_of(tensors), folder / "f");
  const SafeOpen file(folder / "f", {Backend::kPread});
  CHECK(all_there(file, tensors));
  CHECK(test::in_child([&] {
          if (!all_there(file, tensors)) return 1;
          safetensors::save_file(test::views_of(tensors), folder / "g");
          return all_there(SafeOpen(folder / "g"), tensors) ? 0 : 2;
        }) == 0);
}

TEST_CASE("a child opens the file of a model that a thread of its parent is opening") {
  const test::TempDir folder;
  const std::vector<OwnTensor> tensors = {test::tensor_of("t", Dtype::kU8, {9})};
  safetensors::save_file(test::views_of(tensors), folder / "f.safetensors");
  const test::fs::path index = folder / "model.safetensors.index.json";
  test::write_text(index, R"({"weight_map": {"t": "f.safetensors"}})");
  std::latch opening{1};
  std::latch allowed{1};
  const pid_t parent = ::getpid();
  const safetensors::Model model(safetensors::find_model_files(index), [&](const auto& path) {
    if (::getpid() == parent) {
      opening.count_down();
      allowed.wait();
    }
    return SafeOpen(path);
  });
  const auto is_there = [&] {
    const TensorView view = model.get_tensor("t");
    return std::ranges::equal(view.bytes(), tensors[0].bytes);
  };
  std::thread opener([&] { (void)model.file(0); });
  opening.wait();
  CHECK(test::in_child([&] {
          ::alarm(20);  // ends a child that hangs
          return is_there() ? 0 : 1;
        }) == 0);
  allowed.count_down();
  opener.join();
  CHECK(is_there());
}
