#include "open/early_opens.hpp"

#include <utility>

#include "io/system.hpp"

namespace safetensors {

void EarlyOpens::add(const std::filesystem::path& path) {
  if (is_stopped_) return;
  if (!thread_) {
    thread_.emplace();
    if (io::processor_count() > 1) thread_->start(1, [this] { work(); });
  }
  {
    const std::lock_guard lock(mutex_);
    const auto [file, is_new] = files_.try_emplace(path.native(), File{path});
    if (is_new) order_.push_back(&file->second);
  }
  changed_.notify_all();
}

void EarlyOpens::stop() noexcept {
  {
    const std::lock_guard lock(mutex_);
    is_stopped_ = true;
  }
  changed_.notify_all();
  thread_.reset();
}

void EarlyOpens::forget() noexcept {
  stop();
  order_.clear();
  files_.clear();
}

SafeOpen EarlyOpens::open(const std::filesystem::path& path) {
  {
    std::unique_lock lock(mutex_);
    if (const auto found = files_.find(path.native()); found != files_.end()) {
      File& file = found->second;
      changed_.wait(lock, [&] { return file.state != State::kOpening; });
      file.state = State::kLeft;
      if (std::optional<SafeOpen> opened = std::exchange(file.opened, {}))
        return *std::move(opened);
    }
  }
  return opener_(path);
}

void EarlyOpens::work() noexcept {
  std::unique_lock lock(mutex_);
  for (std::size_t next = 0;; ++next) {
    changed_.wait(lock, [&] { return is_stopped_ || next < order_.size(); });
    if (is_stopped_) return;
    File& file = *order_[next];
    if (file.state != State::kAdded) continue;
    file.state = State::kOpening;
    lock.unlock();
    std::optional<SafeOpen> opened;
    try {
      opened = opener_(file.path);
    } catch (...) {
      opened.reset();  // open() meets it again
    }
    lock.lock();
    file.state = opened ? State::kOpened : State::kLeft;
    file.opened = std::move(opened);
    changed_.notify_all();
  }
}

}  // namespace safetensors
