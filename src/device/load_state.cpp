#include "device/load_state.hpp"

#include <exception>
#include <utility>

#include "base/per_process.hpp"
#include "device/device_reader.hpp"
#include "device/host_reader.hpp"
#include "io/environment.hpp"
#include "safetensors/error.hpp"

namespace safetensors::device {
namespace {

/// Returns the NUMA node for a load's readers; -1 if they may run anywhere.
int numa_node_of(const Context* context) {
  if (context == nullptr || !io::env_flag("SAFETENSORS_NUMA").value_or(true)) return -1;
  return context->properties().numa_node;
}

}  // namespace

LoadState::LoadState(Context* context, std::vector<std::shared_ptr<const ByteSource>> sources,
                     const LoadOptions& options)
    : context_(context),
      config_(load_config()),
      sources_(std::move(sources), config_.chunk_nbytes,
               context == nullptr ? UINT64_MAX : config_.chunk_nbytes),
      generation_(fork_generation()),
      readers_(queue_,
               {.threads = options.threads != 0 ? options.threads : config_.threads,
                .is_io_bound = sources_.is_any_io_bound(),
                .requests = sources_.requests(),
                .numa_node = numa_node_of(context)},
               [this](const Turn& turn) { read(turn); }) {}

void LoadState::stop() noexcept {
  queue_.stop();
  readers_.join();
}

bool LoadState::is_own() const noexcept { return generation_ == fork_generation(); }

void LoadState::check_own() const {
  if (is_own()) return;
  fail(ErrorCode::kInvalidArgument,
       "this load belongs to the process that this one was forked from");
}

void LoadState::read(const Turn& turn) noexcept {
  try {
    if (context_ == nullptr) {
      read_for_host(*this, turn);
    } else {
      context_->check_process();
      read_for_device(*this, turn);
    }
  } catch (...) {
    // Errors of a task were reported before, with the names of its tensors: the first one is kept.
    queue_.fail_with(std::current_exception(), nullptr);
    if (!turn.is_help()) queue_.remove_reader();
  }
}

}  // namespace safetensors::device
