// A ByteSource that records all reads, and can be set to fail or to wait.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "safetensors/byte_source.hpp"
#include "support.hpp"

namespace test {

class FakeSource final : public safetensors::ByteSource {
 public:
  explicit FakeSource(std::vector<std::byte> bytes) : bytes_(std::move(bytes)) {}

  std::uint64_t ends_at = UINT64_MAX;    ///< the file was truncated to this
  std::uint64_t breaks_at = UINT64_MAX;  ///< reading this byte throws std::runtime_error
  std::chrono::milliseconds delay{0};
  safetensors::ReadCost read_cost;

  [[nodiscard]] const std::vector<std::byte>& bytes() const { return bytes_; }
  /// Returns positions and sizes of all reads, sorted.
  [[nodiscard]] std::vector<std::pair<std::uint64_t, std::size_t>> reads() const {
    const std::lock_guard lock(mutex_);
    auto sorted = reads_;
    std::sort(sorted.begin(), sorted.end());
    return sorted;
  }
  [[nodiscard]] std::uint64_t nbytes_read() const {
    std::uint64_t sum = 0;
    for (const auto& read : reads()) sum += read.second;
    return sum;
  }

  [[nodiscard]] std::uint64_t size() const noexcept override { return bytes_.size(); }
  [[nodiscard]] unsigned concurrency() const noexcept override {
    ++times_asked;
    return 0;
  }
  mutable std::atomic<int> times_asked{0};  ///< calls of concurrency()
  [[nodiscard]] safetensors::ReadCost cost() const noexcept override { return read_cost; }
  /// One read, if reads are requests.
  void read_parts(std::uint64_t offset, std::uint64_t nbytes,
                  std::span<const safetensors::ReadPiece> parts) const override {
    if (!read_cost.is_request) {
      ByteSource::read_parts(offset, nbytes, parts);
      return;
    }
    std::vector<std::byte> answer(nbytes);
    read_at(offset, answer);
    for (const safetensors::ReadPiece& part : parts) {
      if (part.offset < offset || part.offset + part.to.size() > offset + nbytes) {
        throw std::logic_error("a part outside the read");
      }
      std::memcpy(part.to.data(), answer.data() + (part.offset - offset), part.to.size());
    }
  }
  void read_at(std::uint64_t offset, std::span<std::byte> to) const override {
    if (delay.count() != 0) std::this_thread::sleep_for(delay);
    if (offset > bytes_.size() || to.size() > bytes_.size() - offset) {
      throw std::logic_error("read past the end");
    }
    if (offset <= breaks_at && breaks_at < offset + to.size()) throw std::runtime_error("broken");
    if (offset + to.size() > ends_at) {
      safetensors::fail(ErrorCode::kFileChanged, "cut short");
    }
    const std::lock_guard lock(mutex_);
    reads_.emplace_back(offset, to.size());
    if (!to.empty()) std::memcpy(to.data(), bytes_.data() + offset, to.size());
  }

 private:
  std::vector<std::byte> bytes_;
  mutable std::mutex mutex_;
  mutable std::vector<std::pair<std::uint64_t, std::size_t>> reads_;
};

}  // namespace test
