#include "io/windows/pending_deletes.hpp"

#include <atomic>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "io/windows/open_file.hpp"

namespace safetensors::io {
namespace {

struct Pending {
  std::mutex mutex;
  std::vector<std::wstring> paths;
};

std::atomic<bool> has_pending{false};

Pending& pending() {
  // Never destroyed: a mapping in a static object may be released after all statics here.
  static auto* const all = new Pending;
  return *all;
}

bool remove(const std::wstring& path) {
  return ::DeleteFileW(path.c_str()) != 0 || ::GetLastError() == ERROR_FILE_NOT_FOUND;
}

}  // namespace

void delete_or_defer(const std::filesystem::path& path) {
  std::wstring absolute = system_path(path);
  if (remove(absolute)) return;
  Pending& all = pending();
  const std::lock_guard lock(all.mutex);
  all.paths.push_back(std::move(absolute));
  has_pending.store(true);
}

void delete_pending() noexcept {
  if (!has_pending.load()) return;
  Pending& all = pending();
  const std::lock_guard lock(all.mutex);
  std::erase_if(all.paths, remove);
  has_pending.store(!all.paths.empty());
}

}  // namespace safetensors::io
