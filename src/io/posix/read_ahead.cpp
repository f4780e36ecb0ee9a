#include "io/read_ahead.hpp"

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <deque>
#include <exception>
#include <limits>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include "base/parse_integer.hpp"
#include "base/per_process.hpp"
#include "io/posix/procfs.hpp"
#include "io/read_plan.hpp"
#include "io/system.hpp"

namespace safetensors::io {
namespace {

// Bytes requested at a time. A mapping that is released meanwhile lives until the request ends.
constexpr std::uint64_t kWindow = std::uint64_t{8} << 20;
constexpr std::chrono::milliseconds kShortestSleep{1};
constexpr std::chrono::milliseconds kLongestSleep{50};
// If no page is touched for so long, the program does not need the rest.
constexpr std::chrono::seconds kPatience{30};

/// Returns the bytes of mapped files that the process has touched. Pages that were only read ahead
/// are not included. The third number of statm is shared resident pages.
std::uint64_t touched_nbytes() {
  const std::optional<std::string> text = read_kernel_file("/proc/self/statm");
  if (!text) return 0;
  std::string_view rest = *text;
  (void)next_token(rest);  // size
  (void)next_token(rest);  // resident
  return parse_integer<std::uint64_t>(next_token(rest)).value_or(0) * page_size();
}

/// Returns whether four sampled pages are all in the page cache. The first page is not sampled, as
/// the header was read already.
bool seems_cached(std::span<const std::byte> mapped) noexcept {
  constexpr std::size_t kSamples = 4;
  const std::size_t pages = mapped.size() / page_size();
  for (std::size_t i = 1; i <= kSamples; ++i) {
    const std::size_t page = pages * i / kSamples;
    if (page < 2) continue;
    if (!is_resident(mapped.subspan((page - 1) * page_size(), page_size()))) return false;
  }
  return true;
}

/// The background thread, and the files that it has yet to read, in the order of their loading.
class Reader {
 public:
  void add(const std::shared_ptr<const MappedFile>& file, std::uint64_t begin) {
    const std::lock_guard lock(mutex_);
    forget_unmapped();
    files_.push_back({file, file->bytes().size(), begin / kWindow * kWindow});
    // Measured here: much may be touched by the time the thread sees the file.
    start_ = touched_nbytes();
    last_sign_ = std::chrono::steady_clock::now();
    if (is_running_) return;
    std::thread([this] { run(); }).detach();
    is_running_ = true;
  }

 private:
  struct File {
    std::weak_ptr<const MappedFile> mapping;
    std::uint64_t nbytes;
    std::uint64_t next;
  };

  void run() noexcept {
    try {
      follow();
    } catch (const std::exception&) {  // out of memory: pages are read when they are touched
      const std::lock_guard lock(mutex_);
      end();
    }
  }

  /// Reads ahead of the process until there is nothing left to read, or the process stops touching
  /// pages. `touched` counts bytes touched since the last file was added, `asked` bytes requested
  /// since then. The loop keeps asked <= read_ahead_limit(touched).
  void follow() {
    std::uint64_t last = 0;
    std::uint64_t touched = 0;  // since the last file was added
    std::uint64_t asked = 0;
    auto sleep = kShortestSleep;
    while (!is_over()) {
      if (const std::optional<std::uint64_t> start = take_start()) {
        last = *start;
        touched = asked = 0;
      }
      const std::uint64_t now = touched_nbytes();
      if (now > last) {
        touched += now - last;
        sleep = kShortestSleep;
        const std::lock_guard lock(mutex_);
        last_sign_ = std::chrono::steady_clock::now();
      }
      last = now;  // decreases if other files are unmapped
      if (may_ask(asked + kWindow, touched)) {
        ask();
        asked += kWindow;
      } else {
        std::this_thread::sleep_for(sleep);
        sleep = std::min(2 * sleep, kLongestSleep);
      }
    }
  }

  /// Returns what the process had touched when a file was added, if one was added since the last
  /// call.
  std::optional<std::uint64_t> take_start() {
    const std::lock_guard lock(mutex_);
    return std::exchange(start_, std::nullopt);
  }

  void forget_unmapped() {
    std::erase_if(files_, [](const File& file) { return file.mapping.expired(); });
  }

  bool may_ask(std::uint64_t wanted, std::uint64_t touched) {
    constexpr std::uint64_t kAnyMemory = std::numeric_limits<std::uint64_t>::max();
    std::uint64_t nbytes = 0;
    {
      const std::lock_guard lock(mutex_);
      for (const File& file : files_) nbytes += file.nbytes;
    }
    // Checked in this order as memory_available() is slow.
    return wanted <= read_ahead_limit(touched, nbytes, kAnyMemory) &&
           wanted <= read_ahead_limit(touched, nbytes, memory_available());
  }

  /// Returns whether the thread must end; if so, the next add() starts another.
  bool is_over() {
    const std::lock_guard lock(mutex_);
    forget_unmapped();
    const bool is_waited_for = std::chrono::steady_clock::now() - last_sign_ < kPatience;
    if (!files_.empty() && is_waited_for) return false;
    end();
    return true;
  }
  void end() noexcept {
    files_.clear();
    start_.reset();
    is_running_ = false;
  }

  /// Requests the next window of the first file.
  void ask() {
    std::shared_ptr<const MappedFile> mapping;
    std::uint64_t begin = 0;
    {
      const std::lock_guard lock(mutex_);
      if (files_.empty()) return;
      File& file = files_.front();
      mapping = file.mapping.lock();
      begin = file.next;
      file.next += kWindow;
      if (!mapping || file.next >= mapping->bytes().size()) files_.pop_front();
    }
    if (!mapping) return;
    const std::uint64_t nbytes = std::min(kWindow, mapping->bytes().size() - begin);
    (void)::madvise(mapping->bytes().data() + begin, nbytes, MADV_WILLNEED);
  }

  std::mutex mutex_;
  std::deque<File> files_;
  std::optional<std::uint64_t> start_;
  std::chrono::steady_clock::time_point last_sign_;  // when a page was last touched
  bool is_running_ = false;
};

constinit PerProcess<Reader> own_reader;

}  // namespace

bool is_resident(std::span<const std::byte> mapped) noexcept {
  std::array<unsigned char, 1024> states{};
  const std::size_t window = states.size() * page_size();
  const std::uint64_t begin = address_of(mapped.data());
  const std::uint64_t end = begin + mapped.size();
  for (std::uint64_t at = begin / page_size() * page_size(); at < end; at += window) {
    const auto nbytes = static_cast<std::size_t>(std::min<std::uint64_t>(end - at, window));
    const std::size_t pages = (nbytes + page_size() - 1) / page_size();
    if (::mincore(pointer_of(at), nbytes, states.data()) != 0) continue;  // it does not say
    const auto is_absent = [](unsigned char state) { return (state & 1) == 0; };
    if (std::ranges::any_of(std::span(states).first(pages), is_absent)) return false;
  }
  return true;
}

void read_ahead(const std::shared_ptr<const MappedFile>& file, std::uint64_t begin) noexcept {
  try {
    if (seems_cached(file->bytes())) return;
    own_reader.get().add(file, begin);
  } catch (const std::exception&) {
    return;  // no thread or no memory: pages are read when they are touched
  }
}

}  // namespace safetensors::io

#endif
