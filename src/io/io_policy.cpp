#include "io/io_policy.hpp"

#include <algorithm>
#include <array>

#include "io/parallel.hpp"

namespace safetensors::io {

AutoPlan plan_auto(const FileFacts& facts) noexcept {
  if (!facts.is_remote) return AutoPlan::kMap;
  const std::uint64_t room = facts.memory_available / 10 * 9;
  return facts.nbytes <= room ? AutoPlan::kWarmAndMap : AutoPlan::kRead;
}

bool is_read_past_cache(const FileFacts& facts) noexcept {
  return facts.nbytes > facts.memory_available / 2 && facts.cached_nbytes < facts.nbytes / 2;
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
      0x01021997,  // 9P: the drives of WSL, of many sandboxes
      0x19830326,  // BeeGFS
      0x47504653,  // GPFS
      0x5346414F,  // AFS
      0x73757245,  // Coda
  };
  return std::find(kRemote.begin(), kRemote.end(), f_type) != kRemote.end();
}

void warm(const ByteSource& source, std::uint64_t begin, std::uint64_t end,
          const Interrupt& interrupt) {
  constexpr std::uint64_t kStretch = std::uint64_t{16} << 20;
  const std::uint64_t nbytes = end - begin;
  parallel_for(
      static_cast<std::size_t>((nbytes + kStretch - 1) / kStretch), nbytes,
      [&](std::size_t i) {
        const Buffer scratch(std::size_t{1} << 20);  // small: it stays in the processor's cache
        const std::uint64_t last = std::min(begin + (i + 1) * kStretch, end);
        for (std::uint64_t at = begin + i * kStretch; at < last; at += scratch.size()) {
          source.read_at(at, scratch.bytes().first(static_cast<std::size_t>(
                                 std::min<std::uint64_t>(scratch.size(), last - at))));
        }
      },
      interrupt, readers_of(source, nbytes));
}

}  // namespace safetensors::io
