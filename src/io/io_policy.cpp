#include "io/io_policy.hpp"

#include <algorithm>
#include <array>

namespace safetensors::io {

IoPolicy choose_io_policy(const FileInfo& file) noexcept {
  if (!file.is_remote) return IoPolicy::kMap;
  return file.nbytes <= room_in(file.memory_available) ? IoPolicy::kWarmAndMap : IoPolicy::kRead;
}

bool should_bypass_page_cache(const FileInfo& file) noexcept {
  return file.nbytes > file.memory_available / 2 && file.cached_nbytes < file.nbytes / 2;
}

bool is_remote_type(std::uint64_t f_type) noexcept {
  constexpr std::array<std::uint64_t, 12> kRemote = {
      0x6969,      // NFS
      0x0BD00BD0,  // Lustre
      0x00C36400,  // Ceph
      0xFF534D42,  // CIFS
      0xFE534D42,  // SMB2
      0x0000517B,  // SMB
      0x65735546,  // FUSE: sshfs, gcsfuse, juicefs, virtiofs
      0x01021997,  // 9P: drives in WSL and in many sandboxes
      0x19830326,  // BeeGFS
      0x47504653,  // GPFS
      0x5346414F,  // AFS
      0x73757245,  // Coda
  };
  return std::find(kRemote.begin(), kRemote.end(), f_type) != kRemote.end();
}

}  // namespace safetensors::io
