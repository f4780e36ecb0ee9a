#include "write/in_place_file.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/checked.hpp"
#include "base/display_path.hpp"
#include "io/os_error.hpp"
#include "io/posix/held_file.hpp"
#include "safetensors/byte_source.hpp"
#include "safetensors/digest.hpp"
#include "safetensors/error.hpp"

namespace safetensors {
namespace {

using io::HeldFile;

constexpr std::uint64_t kMarkedByte = kLengthSize - 1;  // the last one of the header's length
constexpr std::byte kMark{0x80};
constexpr std::size_t kPieceSize = std::size_t{1} << 20;
constexpr const char* kBusy = "another process is changing it";

/// Opens the file, without following a link.
std::optional<HeldFile> open_held(const detail::Folder& folder, const std::string& name,
                                  const std::filesystem::path& path) {
  try {
    return HeldFile::open(folder, detail::OwnName(name), {.writes = true, .owned = false});
  } catch (const Error& error) {
    if (error.os_error() == EWOULDBLOCK) refuse_in_place(path, kBusy);  // it has a write lease
    if (error.code() != ErrorCode::kNotRegularFile || error.os_error() != 0) throw;
    throw error.with_context(display_path(path) + " is not changed in place: ");
  }
}

}  // namespace

/// Reads the file as it is without its mark.
class InPlaceFile::Unmarked final : public ByteSource {
 public:
  explicit Unmarked(HeldFile file) : file_(std::move(file)), nbytes_(file_.size()) {}

  [[nodiscard]] const HeldFile& file() const noexcept { return file_; }
  [[nodiscard]] std::uint64_t size() const noexcept override { return nbytes_; }
  void read_at(std::uint64_t offset, std::span<std::byte> to) const override {
    file_.read_at(offset, to);
    if (offset <= kMarkedByte && kMarkedByte - offset < to.size()) {
      to[static_cast<std::size_t>(kMarkedByte - offset)] &= ~kMark;
    }
  }

 private:
  HeldFile file_;
  std::uint64_t nbytes_;
};

InPlaceFile::InPlaceFile(std::string name, std::shared_ptr<const Unmarked> file, SafeOpen tensors)
    : name_(std::move(name)), file_(std::move(file)), tensors_(std::move(tensors)) {
  std::vector<std::byte> header(static_cast<std::size_t>(tensors_.data_offset()));
  file_->read_at(0, header);
  Xxh3Hasher hasher;
  hasher.update(header);
  identity_ = {file_->size(), hasher.digest().text()};
}

std::optional<InPlaceFile> InPlaceFile::open(const detail::Folder& folder, const std::string& name,
                                             const detail::BeforeOpen& before_open) {
  const std::filesystem::path path = folder.path() / name;
  if (before_open) before_open(path);
  std::optional<HeldFile> held = open_held(folder, name, path);
  if (!held) return std::nullopt;
  const int error = held->lock();
  if (error == EWOULDBLOCK) refuse_in_place(path, kBusy);
  if (error != 0) io::fail_os(error, path);
  if (held->name_count() > 1) refuse_in_place(path, "it has several names (hard links)");
  auto unmarked = std::make_shared<const Unmarked>(*std::move(held));
  SafeOpen tensors(unmarked, path);
  return InPlaceFile(name, std::move(unmarked), std::move(tensors));
}

bool InPlaceFile::is_marked() const {
  std::byte byte{};
  file_->file().read_at(kMarkedByte, {&byte, 1});
  return (byte & kMark) != std::byte{};
}

void InPlaceFile::set_mark(bool is_marked) const {
  std::byte byte{};
  file_->read_at(kMarkedByte, {&byte, 1});
  if (is_marked) byte |= kMark;
  file_->file().write_at(kMarkedByte, {&byte, 1});
}

Buffer InPlaceFile::read(const TensorInfo& tensor) const {
  Buffer bytes(memory_size(tensor.nbytes()));
  tensors_.read(tensor, bytes.bytes());
  return bytes;
}

void InPlaceFile::write(const TensorInfo& tensor, std::span<const std::byte> old,
                        std::span<const std::byte> now) const {
  const std::uint64_t begin = tensors_.position(tensor);
  for (std::size_t at = 0; at < now.size(); at += kPieceSize) {
    const std::size_t size = std::min(kPieceSize, now.size() - at);
    const auto piece = now.subspan(at, size);
    if (!std::ranges::equal(piece, old.subspan(at, size))) {
      file_->file().write_at(begin + at, piece);
    }
  }
}

void InPlaceFile::flush() const { file_->file().flush(); }

void InPlaceFile::take_lease() {
  lease_.emplace(file_->file().descriptor());
  if (!lease_->refusal().empty()) {
    refuse_in_place(path(),
                    std::string(lease_->refusal()) + ", and the option `shared` is not set");
  }
}

void InPlaceFile::check_lease() const {
  if (lease_ && !lease_->is_held()) {
    refuse_in_place(path(), "another process opened it while the change was prepared");
  }
}

void refuse_in_place(const std::filesystem::path& path, const std::string& reason) {
  fail(ErrorCode::kInvalidArgument, display_path(path) + " is not changed in place: " + reason,
       {.path = path});
}

}  // namespace safetensors
