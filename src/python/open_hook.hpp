// Keeps arrays that are views of a file when this process overwrites the file.
#pragma once

#include <atomic>
#include <filesystem>

namespace safetensors::python {

namespace hook {
#if defined(__linux__)
inline constinit std::atomic<bool> has_open_hook{false};
void add_open_hook() noexcept;
#endif
}  // namespace hook

/// Call when a view of a mapped file is handed out, other than to torch. From the first call on,
/// whenever Python code of this process opens a file for writing or truncates one by its path, the
/// process's mappings of that file are replaced by copies first. If that fails, Python warns
/// (RuntimeWarning), and the file is opened all the same.
///
/// Implemented by an audit hook of CPython, which cannot be removed again, and makes id() slower:
/// so programs that never need it do not get it. Linux only: other systems do not list a process's
/// mappings.
/// Requires: the GIL, which also the hook holds while it copies, so that Python code of other
///   threads does not write to the arrays meanwhile.
inline void install_open_hook() noexcept {
#if defined(__linux__)
  if (!hook::has_open_hook.load(std::memory_order_relaxed)) hook::add_open_hook();
#endif
}

#if !defined(_WIN32)
/// Tells the audit hooks of Python that the core is about to open a file to change it, as os.open()
/// does. Throws what they raise. Requires: this thread is inside a GilRelease.
void announce_change(const std::filesystem::path& path);
#endif

}  // namespace safetensors::python
