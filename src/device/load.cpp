// Load and wait_all() of the public header.
#include <algorithm>
#include <utility>

#include "device/load_state.hpp"
#include "io/parallel.hpp"
#include "safetensors/device.hpp"

namespace safetensors {
namespace {

/// Returns what reads on the calling thread if no thread can be started; nothing if threads read.
device::ChunkQueue::Help help_of(device::ReaderPool& readers) {
  if (readers.try_start()) return {};
  return [&](const std::function<bool()>& is_enough) { readers.help(is_enough); };
}

/// An interrupt for waits of a load: calls the caller's, then checks that it did not fork.
Interrupt poll_of(const device::LoadState& state, const Interrupt& interrupt) {
  if (!interrupt) return {};
  return [&] {
    interrupt();
    state.check_own();
  };
}

}  // namespace

Load::Load(Device device, std::vector<std::shared_ptr<const ByteSource>> sources,
           LoadOptions options)
    : state_(new device::LoadState(device.context_, std::move(sources), options)) {}

Load::~Load() {
  if (!state_->is_own()) return;  // see LoadState::is_own()
  state_->stop();
  delete state_;
}

Load::Index Load::add(std::span<const LoadTensor> tensors, void* stream, bool is_first) {
  state_->check_own();
  const std::span<const io::PlannedSource> sources = state_->sources().planned();
  device::check_tensors(tensors, sources);
  auto batch = device::plan_batch(tensors, sources);
  if (state_->context() != nullptr && batch->plan.chunk_count() != 0) {
    batch->ready = device::RecordedEvent(*state_->context(), stream);
  }
  return state_->queue().add(std::move(batch), tensors, is_first);
}

void Load::finish() {
  state_->check_own();
  state_->queue().finish();
}

void Load::start() {
  state_->check_own();
  (void)state_->readers().try_start();
}

void Load::wait(const Interrupt& interrupt, const Progress& progress) {
  state_->check_own();
  device::ChunkQueue& queue = state_->queue();
  device::ReaderPool& readers = state_->readers();
  const Interrupt poll = [&] {
    if (interrupt) interrupt();
    if (progress) {
      const std::uint64_t done = done_nbytes();  // before the total, which may grow meanwhile
      progress(done, total_nbytes());
    }
    state_->check_own();
  };
  try {
    if (readers.is_small() || !readers.try_start()) {
      io::InterruptTimer timer(poll);
      readers.read_here([&] { timer.poll(); });
    } else {
      queue.wait_for_all(poll);
    }
  } catch (...) {
    if (is_own()) stop();
    throw;
  }
  readers.join();
  queue.rethrow_error();
  poll();
}

bool Load::wait_for(Index tensor, const Interrupt& interrupt) {
  state_->check_own();
  state_->queue().check_added(tensor);
  const auto help = help_of(state_->readers());
  return state_->queue().wait_for(tensor, poll_of(*state_, interrupt), help);
}

std::optional<Load::Index> Load::next_ready(const Interrupt& interrupt) {
  state_->check_own();
  const auto help = help_of(state_->readers());
  return state_->queue().next_ready(poll_of(*state_, interrupt), help);
}

bool Load::is_own() const noexcept { return state_->is_own(); }

bool Load::is_stopped() const noexcept { return state_->queue().is_stopping(); }

void Load::stop() noexcept { state_->stop(); }

std::uint64_t Load::done_nbytes() const noexcept { return state_->queue().done_nbytes(); }

std::uint64_t Load::total_nbytes() const noexcept { return state_->queue().total_nbytes(); }

unsigned Load::thread_count() const noexcept { return state_->readers().thread_count(); }

void wait_all(std::span<Load* const> loads, const Interrupt& interrupt,
              const Load::Progress& progress) {
  if (loads.size() > 1) {
    for (Load* const load : loads) {
      load->state_->check_own();
      load->state_->readers().share(static_cast<unsigned>(loads.size()));
      load->start();
    }
  }
  const auto report = [&](std::uint64_t, std::uint64_t) {
    std::uint64_t done = 0;
    std::uint64_t total = 0;
    for (const Load* const load : loads) {
      done += load->done_nbytes();
      total += load->total_nbytes();
    }
    progress(done, total);
  };
  const auto is_any_stopped = [&] {
    return std::any_of(loads.begin(), loads.end(),
                       [](const Load* load) { return load->is_stopped(); });
  };
  try {
    for (Load* const waited : loads) {
      // A load that stopped, by an error or stop(), stops the one that is waited for: its wait()
      // returns, and the error is thrown when its own turn comes.
      const Interrupt poll = [&] {
        if (interrupt) interrupt();
        if (is_any_stopped()) waited->stop();
      };
      waited->wait(poll, progress ? Load::Progress(report) : Load::Progress());
    }
  } catch (...) {
    for (Load* const load : loads) {
      if (load->is_own()) load->stop();
    }
    throw;
  }
}

}  // namespace safetensors
