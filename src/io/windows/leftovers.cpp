#include "io/windows/leftovers.hpp"

#include <atomic>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "io/windows/open_file.hpp"

namespace safetensors::io {
namespace {

struct Leftovers {
  std::mutex mutex;
  std::vector<std::wstring> paths;
};

std::atomic<bool> has_leftovers{false};

Leftovers& leftovers() {
  // Never destroyed: a mapping in a static object may go after everything here.
  static auto* const all = new Leftovers;
  return *all;
}

bool remove(const std::wstring& path) {
  return ::DeleteFileW(path.c_str()) != 0 || ::GetLastError() == ERROR_FILE_NOT_FOUND;
}

}  // namespace

void remove_or_remember(const std::filesystem::path& path) {
  std::wstring absolute = system_path(path);
  if (remove(absolute)) return;
  Leftovers& all = leftovers();
  const std::lock_guard lock(all.mutex);
  all.paths.push_back(std::move(absolute));
  has_leftovers.store(true);
}

void remove_leftovers() noexcept {
  if (!has_leftovers.load()) return;
  Leftovers& all = leftovers();
  const std::lock_guard lock(all.mutex);
  std::erase_if(all.paths, remove);
  has_leftovers.store(!all.paths.empty());
}

}  // namespace safetensors::io
