// Memory that Python code gets for the time of one call.
#pragma once

#include <span>
#include <string_view>

#include "python.hpp"

namespace safetensors::python {

/// Says, while it lives, which Python object owns memory that this thread gives to the core. What
/// a sink gets of that memory can be lent without a copy.
///
/// Lifetime: the caller keeps `owner` and the bytes meanwhile.
class MemoryOwner {
 public:
  /// `owner` may be null: nobody that is known owns the bytes.
  MemoryOwner(py::handle owner, std::span<const std::byte> bytes) noexcept;
  MemoryOwner(const MemoryOwner&) = delete;
  MemoryOwner& operator=(const MemoryOwner&) = delete;
  ~MemoryOwner();

  /// Returns the owner of these bytes; null if this thread has not named one. Needs no GIL.
  [[nodiscard]] static py::handle of(std::span<const std::byte> bytes) noexcept;

 private:
  py::handle owner_;
  std::span<const std::byte> bytes_;
  const MemoryOwner* outer_;
};

/// Returns the object that keeps the bytes of a buffer alive. Null for a memoryview of memory that
/// C code owns, such as those that io.BufferedWriter passes to its raw file.
[[nodiscard]] py::handle owner_of_buffer(py::handle object) noexcept;

/// Memory that is lent to Python code for the time of one call, as a memoryview:
///
///     Loan loan(owner, bytes);
///     function(offset, loan.view());
///     loan.take_back("the target");
///
///     memoryview, slices, casts, arrays --> lent object --> owner or buffer
///
/// All that is made of the memoryview exports the bytes of one object, which counts exports. If
/// some are left at the end, the object owns the memory for as long as they live: it keeps the
/// buffer, or the object whose bytes were lent. So nobody reads freed memory, even if a traceback
/// keeps the view, or someone ignores the error.
///
/// All members, and the destructor, require the GIL.
class Loan {
 public:
  /// Lends bytes that `owner` owns, to be read. Null is an owner only if the borrower is known to
  /// keep nothing.
  Loan(py::handle owner, std::span<const std::byte> bytes);
  /// Lends memory that is to be written. Requires: the borrower is known to keep nothing, but for
  ///   the view in frames of a traceback: see revoke().
  explicit Loan(std::span<std::byte> bytes);
  /// Lends the first bytes of a buffer. Requires: the buffer has as many.
  Loan(Buffer buffer, std::size_t nbytes, bool is_readonly);
  Loan(const Loan&) = delete;
  Loan& operator=(const Loan&) = delete;
  /// Ends a loan whose call raised: what is left of the view stays valid.
  ~Loan();

  /// Returns the memoryview. Requires: neither take_back() nor revoke() was called.
  [[nodiscard]] py::handle view() const noexcept { return view_; }
  /// Ends the loan. Returns the buffer that was lent, if any.
  ///
  /// Other threads may need a moment to drop what they used during the call, and reference cycles a
  /// collection of garbage: if references are left, it waits for up to a second.
  ///
  /// Raises SafetensorError, which names the borrower, if references are left then; what Ctrl-C
  /// raises meanwhile. The GIL is released while it waits.
  Buffer take_back(std::string_view borrower);
  /// Ends a loan whose call raised, and makes the view itself useless, also where a traceback keeps
  /// it.
  void revoke() noexcept;

 private:
  Loan(py::handle owner, std::span<std::byte> bytes, bool is_readonly);
  void make_view();
  /// Ends the loan if nothing is exported any more. Returns whether that is so.
  [[nodiscard]] bool is_back() noexcept;
  [[nodiscard]] bool comes_back();

  py::object lent_;
  py::object view_;
};

}  // namespace safetensors::python
