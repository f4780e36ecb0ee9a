#include "io/windows/descriptor.hpp"

#include <io.h>

#include <cstdint>
#include <cstdlib>

#if defined(_UCRT) && !defined(_MSC_VER)
// In MinGW's libraries, but not in its headers.
extern "C" __declspec(dllimport) _invalid_parameter_handler __cdecl
_set_thread_local_invalid_parameter_handler(_invalid_parameter_handler);
#endif

namespace safetensors::io {

HANDLE handle_of(int descriptor) {
#if defined(_UCRT) || defined(_MSC_VER)
  // By default the C run-time ends the process if the descriptor is invalid.
  const auto ignore = [](const wchar_t*, const wchar_t*, const wchar_t*, unsigned, std::uintptr_t) {
  };
  const auto old = ::_set_thread_local_invalid_parameter_handler(ignore);
  const std::intptr_t handle = ::_get_osfhandle(descriptor);
  ::_set_thread_local_invalid_parameter_handler(old);
#else
  const std::intptr_t handle = ::_get_osfhandle(descriptor);
#endif
  constexpr std::intptr_t kNoStream = -2;  // a standard stream of a program without a console
  return handle == kNoStream ? INVALID_HANDLE_VALUE : reinterpret_cast<HANDLE>(handle);
}

Handle duplicate(HANDLE handle) {
  HANDLE copy = nullptr;
  const HANDLE process = ::GetCurrentProcess();
  if (::DuplicateHandle(process, handle, process, &copy, 0, FALSE, DUPLICATE_SAME_ACCESS) == 0) {
    return {};
  }
  return Handle(copy);
}

}  // namespace safetensors::io
