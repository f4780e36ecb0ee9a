#include "link_loaders.hpp"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "fake_cuda.hpp"
#include "safetensors/safetensors.hpp"

namespace bench {
namespace {

using safetensors::Load;
using safetensors::LoadTensor;
using safetensors::SafeOpen;

void succeed(int code) {
  if (code != 0) throw std::runtime_error("the driver returned " + std::to_string(code));
}

/// Returns the tensors of each device. In timed mode nothing is written to the destination.
std::vector<std::vector<LoadTensor>> shares_of(const SafeOpen& file, int devices) {
  const std::size_t count = file.header().size();
  std::vector<std::vector<LoadTensor>> shares(static_cast<std::size_t>(devices));
  std::size_t number = 0;
  for (const safetensors::TensorInfo& info : file.header().tensors()) {
    shares[number++ * shares.size() / count].push_back(
        {.name = info.name, .offset = file.position(info), .nbytes = info.nbytes(), .to = 512});
  }
  return shares;
}

/// Makes a device's context current on this thread.
class Current {
 public:
  explicit Current(int device) {
    succeed(cuInit(0));
    void* context = nullptr;
    succeed(cuDevicePrimaryCtxRetain(&context, device));
    succeed(cuCtxPushCurrent_v2(context));
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;
  ~Current() { cuCtxPopCurrent_v2(nullptr); }
};

/// A stream of the current context.
class Stream {
 public:
  Stream() { succeed(cuStreamCreate(&handle_, 1)); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() { cuStreamDestroy_v2(handle_); }
  void copy(std::uint64_t to, const std::byte* from, std::uint64_t nbytes) const {
    succeed(cuMemcpyHtoDAsync_v2(to, from, static_cast<std::size_t>(nbytes), handle_));
  }
  void record(void* event) const { succeed(cuEventRecord(event, handle_)); }
  void wait() const { succeed(cuStreamSynchronize(handle_)); }

 private:
  void* handle_ = nullptr;
};

/// Calls `work(device, tensors)` on a thread for each device.
template <typename Work>
void on_each_device(const std::vector<std::vector<LoadTensor>>& shares, const Work& work) {
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < shares.size(); ++i) {
    threads.emplace_back([&, i] { work(static_cast<int>(i), shares[i]); });
  }
  for (std::thread& thread : threads) thread.join();
}

/// Pinned memory in slabs, which are used in turn. Belongs to the current context.
class Slabs {
 public:
  static constexpr std::size_t kNbytes = std::size_t{16} << 20;
  struct Slab {
    std::byte* memory = nullptr;
    void* event = nullptr;  ///< of the copy that used it last
  };

  Slabs(std::byte* memory, std::size_t nbytes) {
    for (std::size_t at = 0; at + kNbytes <= nbytes; at += kNbytes) {
      free_.push_back({memory + at});
      succeed(cuEventCreate(&free_.back().event, 2));
    }
  }
  Slabs(const Slabs&) = delete;
  Slabs& operator=(const Slabs&) = delete;
  ~Slabs() {
    for (const Slab& slab : free_) cuEventDestroy_v2(slab.event);
  }
  Slab take() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !free_.empty(); });
    const Slab slab = free_.front();
    free_.pop_front();
    return slab;
  }
  void give_back(Slab slab) {
    const std::lock_guard lock(mutex_);
    free_.push_back(slab);
    changed_.notify_one();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Slab> free_;
};

/// Reads chunks of the tensors' bytes, and starts a copy of each, until none is left.
void prefetch_chunks(const SafeOpen& file, std::span<const LoadTensor> tensors,
                     std::atomic<std::uint64_t>& next, Slabs& slabs, const Stream& stream) {
  const std::uint64_t begin = tensors.front().offset;
  const std::uint64_t end = tensors.back().offset + tensors.back().nbytes;
  while (true) {
    const std::uint64_t at = begin + next++ * Slabs::kNbytes;
    if (at >= end) return;
    const std::uint64_t nbytes = std::min<std::uint64_t>(Slabs::kNbytes, end - at);
    const Slabs::Slab slab = slabs.take();
    succeed(cuEventSynchronize(slab.event));
    file.source()->read_at(at, {slab.memory, static_cast<std::size_t>(nbytes)});
    stream.copy(tensors.front().to, slab.memory, nbytes);
    stream.record(slab.event);
    slabs.give_back(slab);
  }
}

}  // namespace

void pin(std::span<std::byte> memory) {
  const Current current(0);
  succeed(cuMemHostRegister_v2(memory.data(), memory.size(), 1));
}

void load_by_engine(const LinkFile& from) {
  const SafeOpen file(from.path, {.is_for_device = true});
  const auto shares = shares_of(file, from.devices);
  std::vector<std::unique_ptr<Load>> loads;
  std::vector<Load*> waited;
  for (std::size_t i = 0; i < shares.size(); ++i) {
    const auto device = safetensors::Device::cuda(static_cast<int>(i));
    loads.push_back(std::make_unique<Load>(
        device, std::vector<std::shared_ptr<const safetensors::ByteSource>>{file.source()}));
    loads.back()->add(shares[i]);
    loads.back()->finish();
    waited.push_back(loads.back().get());
  }
  safetensors::wait_all(waited);
}

void load_pageable(const LinkFile& from) {
  const SafeOpen file(from.path);
  on_each_device(shares_of(file, from.devices), [&](int device, const auto& tensors) {
    const Current current(device);
    const Stream stream;
    const std::byte* const mapped = file.mapping()->bytes().data();
    for (const LoadTensor& tensor : tensors) {
      stream.copy(tensor.to, mapped + tensor.offset, tensor.nbytes);
    }
  });
}

void load_pinned(const LinkFile& from) {
  const SafeOpen file(from.path);
  on_each_device(shares_of(file, from.devices), [&](int device, const auto& tensors) {
    const Current current(device);
    const Stream stream;
    const std::byte* const mapped = file.mapping()->bytes().data();
    const std::span<std::byte> pinned = from.pinned_of(device);
    for (const LoadTensor& tensor : tensors) {
      if (tensor.nbytes > pinned.size()) throw std::runtime_error("a tensor is too large");
      std::memcpy(pinned.data(), mapped + tensor.offset, static_cast<std::size_t>(tensor.nbytes));
      stream.copy(tensor.to, pinned.data(), tensor.nbytes);
      stream.wait();
    }
  });
}

void load_prefetched(const LinkFile& from) {
  constexpr int kThreads = 8;
  const SafeOpen file(from.path, {.backend = safetensors::Backend::kPread});
  on_each_device(shares_of(file, from.devices), [&](int device, const auto& tensors) {
    const Current current(device);
    const Stream stream;
    Slabs slabs(from.pinned_of(device).data(), from.pinned_of(device).size());
    std::atomic<std::uint64_t> next{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([&] {
        const Current same(device);
        prefetch_chunks(file, tensors, next, slabs, stream);
      });
    }
    for (std::thread& thread : threads) thread.join();
    stream.wait();
  });
}

}  // namespace bench
