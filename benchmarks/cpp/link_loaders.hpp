// Loads over the fake driver's modelled link: by this library, and by models of other loaders.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace bench {

/// A file whose first tensors go to device 0, the next to device 1, and so on.
struct LinkFile {
  std::filesystem::path path;
  int devices = 1;
  std::span<std::byte> pinned;  ///< what models of other loaders keep from load to load

  /// Returns a device's part of the pinned memory.
  [[nodiscard]] std::span<std::byte> pinned_of(int device) const {
    const std::size_t nbytes = pinned.size() / static_cast<std::size_t>(devices);
    return pinned.subspan(static_cast<std::size_t>(device) * nbytes, nbytes);
  }
};

/// Pins memory for as long as the process runs.
void pin(std::span<std::byte> memory);

/// Opens the file and loads its tensors.
using LinkLoader = void (*)(const LinkFile&);

/// This library.
void load_by_engine(const LinkFile& file);
/// Upstream 0.8.0's get_slice: each tensor is copied from the mapped file, which is not pinned.
void load_pageable(const LinkFile& file);
/// Upstream 0.8.0's load_file: each tensor is copied to pinned memory, then to the device.
void load_pinned(const LinkFile& file);
/// Upstream 0.9's prefetch: eight threads read chunks of 16 MiB into 512 MiB of pinned memory, and
/// copy from there while they read on.
void load_prefetched(const LinkFile& file);

}  // namespace bench
