// Helpers for tests of loads: devices of the fake driver, sources, and expected results.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fake_support.hpp"
#include "safetensors/detail/cuda_driver.hpp"
#include "safetensors/device.hpp"
#include "safetensors/slice.hpp"
#include "support.hpp"

namespace test {

using safetensors::ByteRuns;
using safetensors::Device;
using safetensors::Load;
using safetensors::LoadConfig;
using safetensors::LoadTensor;

/// Returns a device of the fake driver, which the library uses from the first call on.
inline Device fake_device(int index = 0) {
  static const bool is_used = [] {
    safetensors::detail::use_cuda_driver(SAFETENSORS_FAKE_CUDA);
    return true;
  }();
  (void)is_used;
  return Device::cuda(index);
}

/// Sets the process's settings while it lives. Tests use small chunks, so that few bytes make many
/// chunks.
class Config {
 public:
  explicit Config(LoadConfig config) { safetensors::set_load_config(config); }
  Config(const Config&) = delete;
  Config& operator=(const Config&) = delete;
  ~Config() {
    safetensors::set_load_config({});
    safetensors::release_staging();
  }
};

/// A source in memory that can be slow, end early, fail, or call the test at each read.
class MemorySource final : public safetensors::ByteSource {
 public:
  explicit MemorySource(std::size_t nbytes, std::uint32_t seed = 1)
      : bytes_(pattern(nbytes, seed)) {}

  std::chrono::microseconds delay{0};
  std::uint64_t ends_at = UINT64_MAX;  ///< reading further throws kFileChanged
  std::function<void()> on_read;       ///< called by each read
  unsigned readers_wanted = 0;         ///< what concurrency() returns; not 0: I/O-bound

  [[nodiscard]] const std::vector<std::byte>& bytes() const { return bytes_; }
  [[nodiscard]] int most_readers() const { return most_readers_; }
  [[nodiscard]] std::uint64_t nbytes_read() const { return nbytes_read_; }

  [[nodiscard]] std::uint64_t size() const noexcept override { return bytes_.size(); }
  [[nodiscard]] unsigned concurrency() const noexcept override { return readers_wanted; }
  void read_at(std::uint64_t offset, std::span<std::byte> to) const override {
    const int now = ++readers_;
    for (int most = most_readers_; most < now && !most_readers_.compare_exchange_weak(most, now);) {
    }
    const std::shared_ptr<void> leave(nullptr, [&](void*) { --readers_; });
    if (on_read) on_read();
    if (delay.count() != 0) std::this_thread::sleep_for(delay);
    if (offset + to.size() > ends_at) {
      safetensors::fail(safetensors::ErrorCode::kFileChanged, "the file was cut short");
    }
    if (offset > bytes_.size() || to.size() > bytes_.size() - offset) {
      throw std::logic_error("read past the end");
    }
    if (!to.empty()) std::memcpy(to.data(), bytes_.data() + offset, to.size());
    nbytes_read_ += to.size();
  }

 private:
  std::vector<std::byte> bytes_;
  mutable std::atomic<int> readers_{0};
  mutable std::atomic<int> most_readers_{0};
  mutable std::atomic<std::uint64_t> nbytes_read_{0};
};

/// Tensors of some sources and their destinations, which hold kPoison before a load.
class Wanted {
 public:
  static constexpr std::byte kPoison{0xEE};

  Wanted() = default;
  explicit Wanted(std::shared_ptr<const MemorySource> source) { sources_.push_back(source); }
  Wanted(const Wanted&) = delete;
  Wanted& operator=(const Wanted&) = delete;

  std::uint32_t add_source(std::shared_ptr<const MemorySource> source) {
    sources_.push_back(std::move(source));
    return static_cast<std::uint32_t>(sources_.size() - 1);
  }
  /// `misaligned`: offset of the destination from an aligned address.
  void add(std::uint64_t offset, std::uint64_t nbytes, std::uint32_t source = 0,
           std::size_t misaligned = 0) {
    items_.push_back({"t" + std::to_string(items_.size()),
                      source,
                      offset,
                      nbytes,
                      {},
                      misaligned,
                      std::vector<std::byte>(nbytes + misaligned + kMargin, kPoison)});
  }
  /// Adds a part of the tensor at `offset`, without gaps at the destination.
  void add_runs(std::uint64_t offset, ByteRuns runs, std::uint32_t source = 0) {
    runs.concatenate();
    add_parts(offset, {runs}, runs.nbytes(), source);
  }
  /// Adds parts of the tensor at `offset`, each to where it says in `room` bytes.
  void add_parts(std::uint64_t offset, std::vector<ByteRuns> runs, std::size_t room,
                 std::uint32_t source = 0) {
    add(offset, room, source);
    items_.back().nbytes = 0;
    for (const ByteRuns& each : runs) items_.back().nbytes += each.nbytes();
    items_.back().runs = std::move(runs);
  }
  /// Adds adjacent tensors of one size that cover the first source.
  void add_all(std::uint64_t nbytes) {
    for (std::uint64_t at = 0; at < sources_[0]->size(); at += nbytes) {
      add(at, std::min(nbytes, sources_[0]->size() - at));
    }
  }

  [[nodiscard]] std::size_t size() const { return items_.size(); }
  [[nodiscard]] std::uint64_t nbytes() const {
    std::uint64_t sum = 0;
    for (const Item& item : items_) sum += item.nbytes;
    return sum;
  }
  [[nodiscard]] std::vector<std::shared_ptr<const safetensors::ByteSource>> sources() const {
    return {sources_.begin(), sources_.end()};
  }
  [[nodiscard]] std::vector<LoadTensor> tensors() {
    std::vector<LoadTensor> all;
    for (Item& item : items_) {
      all.push_back(
          {item.name, item.source, item.offset, item.nbytes, address_of(item.begin()), item.runs});
    }
    return all;
  }
  [[nodiscard]] std::byte* memory_of(std::size_t tensor) { return items_[tensor].begin(); }
  [[nodiscard]] const std::string& name(std::size_t tensor) const { return items_[tensor].name; }

  /// Returns whether a tensor has its bytes and nothing around its destination was written.
  [[nodiscard]] bool is_right(std::size_t tensor) const {
    const Item& item = items_[tensor];
    const std::vector<std::byte>& source = sources_[item.source]->bytes();
    std::vector<std::byte> expected(item.memory.size(), kPoison);
    std::byte* const to = expected.data() + item.misaligned;
    if (item.nbytes != 0 && item.runs.empty()) {
      std::memcpy(to, source.data() + item.offset, item.nbytes);
    }
    for (const ByteRuns& runs : item.runs) {
      gather(source.data() + item.offset, runs, 0, runs.first, to + runs.to_first);
    }
    return expected == item.memory;
  }
  [[nodiscard]] std::size_t right_count() const {
    std::size_t count = 0;
    for (std::size_t i = 0; i < items_.size(); ++i) count += is_right(i) ? 1 : 0;
    return count;
  }
  [[nodiscard]] bool is_all_right() const { return right_count() == items_.size(); }
  void poison() {
    for (Item& item : items_) std::ranges::fill(item.memory, kPoison);
  }
  [[nodiscard]] bool is_poisoned() const {
    return std::ranges::all_of(items_, [](const Item& item) {
      return std::ranges::all_of(item.memory, [](std::byte byte) { return byte == kPoison; });
    });
  }

  /// Loads all tensors.
  void load(const Device& device, unsigned threads = 0, void* stream = nullptr) {
    Load load(device, sources(), {.threads = threads});
    load.add(tensors(), stream);
    load.finish();
    load.wait();
  }

 private:
  static constexpr std::size_t kMargin = 3;
  struct Item {
    std::string name;
    std::uint32_t source;
    std::uint64_t offset;
    std::uint64_t nbytes;
    std::vector<ByteRuns> runs;
    std::size_t misaligned;
    std::vector<std::byte> memory;
    [[nodiscard]] std::byte* begin() { return memory.data() + misaligned; }
  };

  /// Copies the runs of nested loops by recursion.
  static void gather(const std::byte* tensor, const ByteRuns& runs, std::size_t depth,
                     std::uint64_t position, std::byte* to) {
    if (depth == runs.loops.size()) {
      std::memcpy(to, tensor + position, runs.run_nbytes);
      return;
    }
    const ByteRuns::Loop& loop = runs.loops[depth];
    for (std::uint64_t i = 0; i < loop.count; ++i) {
      gather(tensor, runs, depth + 1, position + i * loop.stride, to + i * loop.to_stride);
    }
  }

  std::vector<std::shared_ptr<const MemorySource>> sources_;
  std::deque<Item> items_;  // a deque, as LoadTensor refers to the names
};

/// Returns an interrupt that throws when the time is over, so that a test that hangs fails.
inline safetensors::Interrupt deadline(std::chrono::seconds after = std::chrono::seconds(60)) {
  const auto end = std::chrono::steady_clock::now() + after;
  return [end] {
    if (std::chrono::steady_clock::now() > end) throw std::runtime_error("waited for too long");
  };
}

}  // namespace test
