// Opens the files of a model while its index is being read.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "io/parallel.hpp"
#include "safetensors/model.hpp"

namespace safetensors {

/// Opens files on one more thread, from add() to stop(). One is enough: headers take about as long
/// to parse as the index that leads to them. It goes on while other threads call open(), of whom
/// none opens a file that it has begun to open.
///
/// A file that cannot be opened early is left to open(), so that all errors are those, and come in
/// the order, of a model that opens nothing early. The same holds for all files if there is just
/// one processor, or the system starts no more threads.
class EarlyOpens {
 public:
  explicit EarlyOpens(Model::Opener opener) : opener_(std::move(opener)) {}
  EarlyOpens(const EarlyOpens&) = delete;
  EarlyOpens& operator=(const EarlyOpens&) = delete;
  ~EarlyOpens() { stop(); }

  /// Opens a file soon; does nothing after stop(). Called by one thread, as stop() and forget().
  void add(const std::filesystem::path& path);
  /// Ends the thread, once it has opened the file that it has begun to open.
  void stop() noexcept;
  /// Stops, and closes the files that were opened: others may have their names now.
  void forget() noexcept;

  /// Returns a file that was opened early, once, or opens it. Throws: what the opener throws.
  ///
  /// Thread safety: may be called by several threads at once.
  [[nodiscard]] SafeOpen open(const std::filesystem::path& path);

 private:
  enum class State : std::uint8_t { kAdded, kOpening, kOpened, kLeft };
  struct File {
    std::filesystem::path path;
    State state = State::kAdded;
    std::optional<SafeOpen> opened{};  // set in kOpened
  };

  void work() noexcept;

  Model::Opener opener_;
  std::mutex mutex_;  // for the next four
  std::condition_variable changed_;
  std::map<std::filesystem::path::string_type, File> files_;  // by their paths
  std::vector<File*> order_;                                  // in which they were added
  bool is_stopped_ = false;
  std::optional<io::Threads> thread_;
};

}  // namespace safetensors
