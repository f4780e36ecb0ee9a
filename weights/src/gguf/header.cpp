#include "gguf/header.hpp"

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "base/checked.hpp"
#include "base/utf8.hpp"
#include "common/name_index.hpp"
#include "dequant/ggml_types.hpp"
#include "gguf/metadata_access.hpp"
#include "gguf/metadata_reader.hpp"
#include "safetensors/file_kind.hpp"

namespace safetensors::weights {
namespace {

constexpr std::string_view kMagic = "GGUF";
constexpr std::uint64_t kStartNbytes = 64;  // enough to recognise other formats
constexpr std::uint64_t kMinItem = 13;      // length of a key, its type, one byte
constexpr std::uint64_t kMinTensor = 24;    // length of a name, rank, type, offset
constexpr std::uint32_t kDefaultAlignment = 32;
constexpr std::string_view kAlignmentKey = "general.alignment";

/// Recognises a safetensors file: a header length that fits into the file, then a JSON object.
bool looks_like_safetensors(std::span<const std::byte> start, std::uint64_t file_nbytes) {
  return start.size() > 8 && load_little<std::uint64_t>(start.data()) <= file_nbytes - 8 &&
         start[8] == std::byte{'{'};
}

void check_magic(Cursor& cursor, std::span<const std::byte> start) {
  if (is_gguf(start)) {
    (void)cursor.take(kMagic.size());
    return;
  }
  const std::string_view text(reinterpret_cast<const char*>(start.data()), start.size());
  if (kMagic.starts_with(text)) {
    cursor.fail_at(0, Errc::truncated,
                   text.empty() ? "the file is empty"
                                : "the file ends after " + std::to_string(text.size()) + " bytes");
  }
  std::string hint = foreign_file_hint(start);
  if (hint.empty() && looks_like_safetensors(start, text.size() + cursor.remaining())) {
    hint = ". This is a safetensors file";
  }
  if (hint.empty() && text.starts_with("FUGG")) hint = ". This is GGUF with its bytes swapped";
  cursor.fail_at(
      0, Errc::bad_magic,
      "this is not a GGUF file: it begins with `" +
          (find_invalid_utf8(text.substr(0, 4)) ? std::string("...") : clipped(text.substr(0, 4))) +
          "`" + hint);
}

std::uint32_t read_version(Cursor& cursor) {
  const std::uint64_t at = cursor.position();
  const auto version = cursor.number<std::uint32_t>();
  if (version == 2 || version == 3) return version;
  const std::string found = "GGUF version " + std::to_string(version);
  if (version == 1) {
    cursor.fail_at(at, Errc::version,
                   found + " has 32-bit counts and is not supported: convert the model again");
  }
  if (version != 0 && (version & 0xFFFFU) == 0) {
    cursor.fail_at(
        at, Errc::version,
        "this is a big-endian GGUF file, which is not supported: convert it to little-endian");
  }
  cursor.fail_at(at, Errc::version, found + " is not supported: only 2 and 3 are");
}

void check_count(const Cursor& cursor, std::uint64_t at, std::uint64_t count, std::uint64_t most,
                 std::uint64_t least_size, const std::string& what) {
  const std::string found = "the file claims " + grouped(count) + " " + what;
  if (count > most) {
    cursor.fail_at(at, Errc::limit, found + ", at most " + grouped(most) + " are allowed");
  }
  if (count > cursor.remaining() / least_size) {
    cursor.fail_at(at, Errc::truncated,
                   found + ", which cannot fit into the " + grouped(cursor.remaining()) +
                       " bytes that follow");
  }
}

ModelMetadata read_metadata(Cursor& cursor, std::uint64_t count, const GgufInput& input) {
  auto [metadata, twice] =
      MetaAccess::table(input.owner, read_gguf_items(cursor, count, input.limits));
  if (twice) {
    const std::string_view key = metadata.items()[twice->first].key;
    cursor.set_subject(key);
    cursor.fail_at(cursor.position_of(key.data()), Errc::duplicate, "this key occurs twice");
  }
  return std::move(metadata);
}

std::uint32_t alignment_of(Cursor& cursor, const ModelMetadata& metadata, const Limits& limits) {
  const MetaValue* const value = metadata.find(kAlignmentKey);
  if (value == nullptr) return kDefaultAlignment;
  cursor.set_subject(kAlignmentKey);
  const std::uint64_t at = cursor.position_of(MetaAccess::data(*value));
  if (value->type() != MetaType::u32) {
    cursor.fail_at(at, Errc::bad_type,
                   "its type is " + std::string(name(value->type())) + ", it must be u32");
  }
  const std::uint64_t alignment = value->as_uint64().value_or(0);
  if (!std::has_single_bit(alignment) || alignment > limits.alignment) {
    cursor.fail_at(at, Errc::alignment,
                   std::to_string(alignment) + " is not a power of two from 1 to " +
                       grouped(limits.alignment));
  }
  cursor.set_subject({});
  return static_cast<std::uint32_t>(alignment);
}

/// Returns the size of a tensor in bytes. An axis of length 0 makes it 0; the other axes are
/// checked all the same.
std::uint64_t nbytes_of(const Cursor& cursor, std::uint64_t at, const GgufTensor& tensor,
                        const GgmlType& type) {
  constexpr std::uint64_t kMax = std::numeric_limits<std::int64_t>::max();
  std::optional<std::uint64_t> elements = 1;
  bool is_empty = false;
  for (const std::int64_t dim : tensor.shape()) {
    if (dim == 0) is_empty = true;
    elements =
        checked_multiply(*elements, static_cast<std::uint64_t>(std::max<std::int64_t>(dim, 1)));
    if (!elements || *elements > kMax) {
      cursor.fail_at(
          at, Errc::overflow,
          "its shape " + safetensors::shown(tensor.shape()) + " has 2^63 elements or more");
    }
  }
  const std::int64_t row = tensor.rank == 0 ? 1 : tensor.dims[tensor.rank - 1];
  if (row % type.block_elements != 0) {
    cursor.fail_at(at, Errc::bad_shape,
                   "its rows have " + std::to_string(row) + " values, " + std::string(type.name) +
                       " needs a multiple of " + std::to_string(type.block_elements));
  }
  const auto nbytes = checked_multiply(*elements / type.block_elements, type.block_bytes);
  if (!nbytes || *nbytes > kMax) {
    cursor.fail_at(at, Errc::overflow,
                   std::string(type.name) + " " + safetensors::shown(tensor.shape()) +
                       " takes 2^63 bytes or more");
  }
  return is_empty ? 0 : *nbytes;
}

[[noreturn]] void fail_unknown_type(const Cursor& cursor, std::uint64_t at, std::uint32_t type) {
  const std::string_view withdrawn = withdrawn_ggml_type(type);
  const std::string_view bitnet = bitnet_type(type);
  std::string text = "its type " + std::to_string(type);
  if (withdrawn.empty()) {
    text += " is unknown: the size of its data cannot be computed";
  } else if (bitnet.empty()) {
    text += " (" + std::string(withdrawn) + ") was withdrawn from GGUF: convert the model again";
  } else {
    text += " is " + std::string(bitnet) +
            " in files of bitnet.cpp, which are not read, and else " + std::string(withdrawn) +
            ", which was withdrawn from GGUF: convert the model again, by llama.cpp";
  }
  cursor.fail_at(at, Errc::bad_type, text);
}

/// Reads one tensor entry. Its offset is relative to the data until the header's end is known.
GgufTensor read_tensor(Cursor& cursor, std::uint32_t alignment, const Limits& limits) {
  GgufTensor tensor;
  cursor.set_subject({});
  tensor.name = read_gguf_name(cursor, limits.name_nbytes, "a tensor's name");
  cursor.set_subject(tensor.name);
  const std::uint64_t at = cursor.position();
  const auto rank = cursor.number<std::uint32_t>();
  if (rank > GgufTensor::kMaxDims) {
    cursor.fail_at(at, Errc::bad_shape,
                   "it has " + std::to_string(rank) + " dimensions, at most " +
                       std::to_string(GgufTensor::kMaxDims) + " are allowed");
  }
  tensor.rank = rank;
  for (std::uint32_t i = rank; i-- > 0;) {
    const auto dim = cursor.number<std::uint64_t>();
    tensor.dims[i] = static_cast<std::int64_t>(dim);
    if (tensor.dims[i] < 0) {
      cursor.fail_at(at, Errc::bad_shape, "it has a dimension of " + std::to_string(dim));
    }
  }
  const std::uint64_t type_at = cursor.position();
  tensor.type = cursor.number<std::uint32_t>();
  const GgmlType* const type = find_ggml_type(tensor.type);
  if (type == nullptr) fail_unknown_type(cursor, type_at, tensor.type);
  tensor.nbytes = nbytes_of(cursor, at, tensor, *type);
  const std::uint64_t offset_at = cursor.position();
  tensor.offset = cursor.number<std::uint64_t>();
  if (tensor.offset % alignment != 0) {
    cursor.fail_at(offset_at, Errc::alignment,
                   "its offset " + std::to_string(tensor.offset) + " is not a multiple of " +
                       std::to_string(alignment));
  }
  return tensor;
}

void check_names(Cursor& cursor, const std::vector<GgufTensor>& tensors) {
  NameIndex index;
  const auto twice = index.build(tensors.size(), [&](std::size_t i) { return tensors[i].name; });
  if (!twice) return;
  const std::string_view name = tensors[twice->first].name;
  cursor.set_subject(name);
  cursor.fail_at(cursor.position_of(name.data()), Errc::duplicate, "two tensors have this name");
}

/// Returns the order of the tensors in the data; empty if it is the order of the list.
std::vector<std::uint32_t> order_of(const std::vector<GgufTensor>& tensors) {
  const auto before = [](const GgufTensor& a, const GgufTensor& b) {
    return a.offset != b.offset ? a.offset < b.offset : a.nbytes < b.nbytes;
  };
  if (std::ranges::is_sorted(tensors, before)) return {};
  std::vector<std::uint32_t> order(tensors.size());
  std::iota(order.begin(), order.end(), 0U);
  std::ranges::sort(order, [&](std::uint32_t a, std::uint32_t b) {
    return std::tuple(tensors[a].offset, tensors[a].nbytes, a) <
           std::tuple(tensors[b].offset, tensors[b].nbytes, b);
  });
  return order;
}

/// Checks that no tensor overlaps another or exceeds the data, and that only padding is between
/// them.
void check_layout(Cursor& cursor, const GgufHeader& header, std::uint64_t data_nbytes,
                  bool allow_gaps) {
  const std::vector<std::uint32_t> order = order_of(header.tensors);
  std::uint64_t end = 0;  // of the data so far
  for (std::size_t i = 0; i < header.tensors.size(); ++i) {
    const GgufTensor& tensor = header.tensors[order.empty() ? i : order[i]];
    const auto fail_tensor = [&](Errc code, const std::string& message) {
      cursor.set_subject(tensor.name);
      cursor.fail_at(cursor.position_of(tensor.name.data()), code, message);
    };
    // No overflow: `end` is within the file, and the alignment has 32 bits.
    const std::uint64_t expected =
        (end + header.alignment - 1) & ~std::uint64_t{header.alignment - 1};
    if (tensor.offset < end) {
      fail_tensor(Errc::bad_offset, "its data begins at " + grouped(tensor.offset) +
                                        ", inside a tensor that ends at " + grouped(end));
    }
    if (tensor.offset != expected && !allow_gaps) {
      fail_tensor(Errc::bad_offset, "its data begins at " + grouped(tensor.offset) +
                                        ", after a gap: expected at " + grouped(expected));
    }
    // After the last byte of data, the file may end without padding.
    if (tensor.nbytes == 0 && tensor.offset == expected) continue;
    if (tensor.offset > data_nbytes || tensor.nbytes > data_nbytes - tensor.offset) {
      fail_tensor(Errc::truncated, "its data has " + grouped(tensor.nbytes) + " bytes from " +
                                       grouped(tensor.offset) + " on, the file has " +
                                       grouped(data_nbytes) + " of data: was it truncated?");
    }
    end = tensor.offset + tensor.nbytes;
  }
}

GgufHeader parse(Cursor& cursor, const GgufInput& input) {
  const Limits& limits = input.limits;
  const std::uint64_t start_nbytes = std::min(input.file_nbytes, kStartNbytes);
  cursor.need(start_nbytes);  // so that error messages do not depend on how much has been read
  check_magic(cursor, input.available.first(static_cast<std::size_t>(start_nbytes)));

  GgufHeader header;
  header.owner = input.owner;
  header.version = read_version(cursor);
  const std::uint64_t counts_at = cursor.position();
  const auto tensors = cursor.number<std::uint64_t>();
  const auto items = cursor.number<std::uint64_t>();
  check_count(cursor, counts_at, tensors, limits.gguf_tensors, kMinTensor, "tensors");
  check_count(cursor, counts_at + 8, items, limits.metadata_items, kMinItem, "metadata keys");
  header.metadata = read_metadata(cursor, items, input);
  header.alignment = alignment_of(cursor, header.metadata, limits);
  for (std::uint64_t i = 0; i < tensors; ++i) {
    header.tensors.push_back(read_tensor(cursor, header.alignment, limits));
  }
  check_names(cursor, header.tensors);

  // The bytes up to the next multiple of the alignment. A file without data may end without them.
  const std::uint64_t padding = -cursor.position() & (header.alignment - 1);
  header.data_begin = cursor.position() + std::min(padding, cursor.remaining());
  check_layout(cursor, header, input.file_nbytes - header.data_begin, input.allow_gaps);
  for (GgufTensor& tensor : header.tensors) {
    // An empty tensor may have an offset behind padding that the file lacks.
    tensor.offset = std::min(header.data_begin + tensor.offset, input.file_nbytes);
  }
  return header;
}

}  // namespace

bool is_gguf(std::span<const std::byte> start) noexcept {
  const std::string_view text(reinterpret_cast<const char*>(start.data()), start.size());
  return text.starts_with(kMagic);
}

std::variant<GgufHeader, NeedsMore> parse_gguf_header(const GgufInput& input) {
  Cursor cursor(input.available, input.file_nbytes, input.path, input.limits.header_nbytes);
  try {
    return parse(cursor, input);
  } catch (const NeedsMore& needs) {
    return needs;
  }
}

}  // namespace safetensors::weights
