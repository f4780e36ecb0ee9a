// Load and Device: what the public header says, over the inside.
#include <algorithm>
#include <utility>

#include "device/load_state.hpp"
#include "safetensors/device.hpp"
#include "safetensors/error.hpp"

namespace safetensors {

Load::Load(Device device, std::vector<std::shared_ptr<const ByteSource>> sources,
           LoadOptions options)
    : state_(new device::LoadState(device.context_, std::move(sources), options)) {}

Load::~Load() {
  // In a forked process its threads are not there, and its locks may never be free.
  if (!state_->is_own()) return;
  state_->stop();
  delete state_;
}

Load::Index Load::add(std::span<const LoadTensor> tensors, void* stream, bool is_first) {
  return state_->add(tensors, stream, is_first);
}

void Load::finish() { state_->finish(); }

void Load::start() { state_->start(); }

void Load::wait(const Interrupt& interrupt, const Progress& progress) {
  state_->wait(interrupt, progress);
}

bool Load::wait_for(Index tensor, const Interrupt& interrupt) {
  return state_->wait_for(tensor, interrupt);
}

std::optional<Load::Index> Load::next_ready(const Interrupt& interrupt) {
  return state_->next_ready(interrupt);
}

bool Load::is_own() const noexcept { return state_->is_own(); }

bool Load::is_stopped() const noexcept { return state_->is_stopping(); }

void Load::stop() noexcept { state_->stop(); }

std::uint64_t Load::done_nbytes() const noexcept { return state_->done_nbytes(); }

std::uint64_t Load::total_nbytes() const noexcept { return state_->total_nbytes(); }

unsigned Load::thread_count() const noexcept { return state_->thread_count(); }

void wait_all(std::span<Load* const> loads, const Interrupt& interrupt,
              const Load::Progress& progress) {
  if (loads.size() > 1) {
    for (Load* const load : loads) {
      load->state_->share_readers(static_cast<unsigned>(loads.size()));
      load->start();
    }
  }
  const auto report = [&](std::uint64_t, std::uint64_t) {
    std::uint64_t done = 0;
    std::uint64_t total = 0;
    for (const Load* const load : loads) {
      total += load->total_nbytes();
      done += load->done_nbytes();
    }
    progress(done, total);
  };
  const auto is_any_stopped = [&] {
    return std::any_of(loads.begin(), loads.end(),
                       [](const Load* load) { return load->is_stopped(); });
  };
  try {
    for (Load* const waited : loads) {
      const Interrupt look_after = [&] {
        if (interrupt) interrupt();
        if (is_any_stopped()) waited->stop();  // then it does not wait for the rest
      };
      waited->wait(look_after, progress ? Load::Progress(report) : Load::Progress());
    }
  } catch (...) {
    for (Load* const load : loads) {
      if (load->is_own()) load->stop();
    }
    throw;
  }
}

}  // namespace safetensors
