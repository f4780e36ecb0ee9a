#include "shared_writer.hpp"

#include "safetensors/error.hpp"

namespace safetensors::python {

constinit thread_local const SharedWriter::Call* SharedWriter::innermost_ = nullptr;

SharedWriter::Call::Call(SharedWriter& shared, Purpose purpose)
    : shared_(shared), outer_(innermost_), purpose_(purpose) {
  if (outer_ != nullptr && shared.is_in_call()) {
    throw Error(ErrorCode::kInvalidArgument,
                "a callback or signal handler called the writer, which was working: it must raise "
                "an exception instead");
  }
  const std::lock_guard lock(shared.mutex_);
  if (!shared.file_) throw Error(ErrorCode::kWriterClosed, "the writer is closed");
  if (shared.is_committing_) {
    throw Error(ErrorCode::kWriterClosed, "the writer is being closed");
  }
  if (purpose == Purpose::kCommit && shared.writing_ != 0) {
    throw Error(ErrorCode::kMissingTensors,
                "another thread is still writing a tensor: wait for it before the file is closed");
  }
  // Under the lock, so that no call is refused because of a commit that cannot succeed.
  if (purpose == Purpose::kCommit && !shared.file_->missing().empty()) {
    shared.file_->commit();  // throws: it names the tensors
  }
  file_ = shared.file_;
  if (purpose == Purpose::kWrite) ++shared.writing_;
  if (purpose == Purpose::kCommit) shared.is_committing_ = true;
  innermost_ = this;
}

SharedWriter::Call::~Call() {
  innermost_ = outer_;
  const std::lock_guard lock(shared_.mutex_);
  if (purpose_ == Purpose::kWrite) --shared_.writing_;
  if (purpose_ == Purpose::kCommit) shared_.is_committing_ = false;  // the file refuses calls now
}

void SharedWriter::Call::check_kept() const {
  if (shared_.is_aborted_) throw Error(ErrorCode::kWriterClosed, "the writer is closed");
}

bool SharedWriter::abort() {
  std::shared_ptr<FileWriter> dropped;  // after the lock
  const std::lock_guard lock(mutex_);
  dropped.swap(file_);
  is_aborted_ = true;
  return dropped != nullptr;
}

std::uint64_t SharedWriter::nbytes_written() const noexcept {
  const std::lock_guard lock(mutex_);
  return file_ ? file_->nbytes_written() : 0;
}

bool SharedWriter::is_in_call() const noexcept {
  const Call* call = innermost_;
  while (call != nullptr && &call->shared_ != this) call = call->outer_;
  return call != nullptr;
}

}  // namespace safetensors::python
