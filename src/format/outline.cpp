#include "safetensors/detail/outline.hpp"

#include <algorithm>
#include <compare>
#include <limits>
#include <optional>
#include <queue>
#include <utility>

#include "base/checked.hpp"
#include "base/name_hash.hpp"

namespace safetensors::detail {
namespace {

constexpr std::size_t kMaxDots = 32;  // a name may have a million
// Groups of hostile names may be many more than the tensors. Beyond these, names are not divided.
constexpr std::size_t kGroupsPerTensor = 4;
constexpr std::size_t kSpareGroups = 4096;
constexpr std::size_t kLeastAlike = 3;

constexpr bool is_digit(char c) noexcept { return c >= '0' && c <= '9'; }

/// Removes and returns the digits at the start of a text.
std::string_view take_digits(std::string_view& text) noexcept {
  std::size_t end = 0;
  while (end < text.size() && is_digit(text[end])) ++end;
  const std::string_view digits = text.substr(0, end);
  text.remove_prefix(end);
  return digits;
}

/// Compares numbers of any length by their value.
std::strong_ordering compare_digits(std::string_view a, std::string_view b) noexcept {
  a.remove_prefix(std::min(a.find_first_not_of('0'), a.size()));
  b.remove_prefix(std::min(b.find_first_not_of('0'), b.size()));
  if (a.size() != b.size()) return a.size() <=> b.size();
  return a.compare(b) <=> 0;
}

/// Compares names so that 2 comes before 10.
std::strong_ordering compare_naturally(std::string_view a, std::string_view b) noexcept {
  const std::string_view whole_a = a;
  const std::string_view whole_b = b;
  while (!a.empty() && !b.empty()) {
    const bool is_number = is_digit(a.front());
    if (is_number != is_digit(b.front())) {
      return is_number ? std::strong_ordering::less : std::strong_ordering::greater;
    }
    std::strong_ordering order = std::strong_ordering::equal;
    if (is_number) {
      order = compare_digits(take_digits(a), take_digits(b));
    } else {
      order = static_cast<unsigned char>(a.front()) <=> static_cast<unsigned char>(b.front());
      a.remove_prefix(1);
      b.remove_prefix(1);
    }
    if (order != 0) return order;
  }
  if (a.size() != b.size()) return a.size() <=> b.size();  // one of them has ended
  return whole_a.compare(whole_b) <=> 0;                   // "1" and "01"
}

/// Returns whether names are equal but for their numbers, and not the same.
bool differ_in_numbers_only(std::string_view a, std::string_view b) noexcept {
  if (a == b) return false;
  while (!a.empty() && !b.empty()) {
    const bool is_number = is_digit(a.front());
    if (is_number != is_digit(b.front())) return false;
    if (is_number) {
      take_digits(a);
      take_digits(b);
      continue;
    }
    if (a.front() != b.front()) return false;
    a.remove_prefix(1);
    b.remove_prefix(1);
  }
  return a.empty() && b.empty();
}

/// A tensor, or a group of those whose names begin with the same parts. A name that is complete and
/// the start of others has a node of each kind.
struct Node {
  std::string_view name;
  std::size_t tensor = OutlineRow::kGroup;
  std::uint32_t parent = 0;
  std::uint32_t children = 0;     // how many
  std::uint32_t first_child = 0;  // 0: none, which is the root's number
  std::uint32_t last_child = 0;
  std::uint32_t next = 0;  // the next child of the parent
  std::uint64_t tensors = 0;
  std::uint64_t elements = 0;
  std::uint64_t nbytes = 0;
  std::uint64_t print = 0;  // equal for subtrees with the same names, types and shapes

  [[nodiscard]] bool is_tensor() const noexcept { return tensor != OutlineRow::kGroup; }
};

/// All nodes; each comes after its parent. The first one is the root.
class NameTree {
 public:
  explicit NameTree(std::span<const OutlineTensor> tensors)
      : seed_(secret_seed()),
        max_groups_(tensors.size() * kGroupsPerTensor + kSpareGroups),
        slots_(64) {
    nodes_.reserve(2 * tensors.size() + 1);
    nodes_.emplace_back();
    for (std::size_t i = 0; i < tensors.size(); ++i) add(tensors[i], i);
    for (std::size_t i = nodes_.size() - 1; i > 0; --i) sum_up(nodes_[i]);
  }

  [[nodiscard]] const Node& root() const noexcept { return nodes_.front(); }
  [[nodiscard]] const Node& at(std::uint32_t index) const noexcept { return nodes_[index]; }

 private:
  /// A place for a group in the hash table.
  struct Slot {
    std::uint64_t hash = 0;
    std::uint32_t group = 0;  // 0: none
  };
  struct Step {
    std::string_view name;
    std::uint32_t group;
  };

  void add(const OutlineTensor& tensor, std::size_t index) {
    std::string_view rest = tensor.name;
    std::uint32_t parent = 0;
    std::size_t depth = 0;
    for (std::size_t dot = rest.find('.'); depth < kMaxDots && dot != std::string_view::npos;
         dot = rest.find('.')) {
      const auto group = group_of(parent, rest.substr(0, dot), depth++);
      if (!group) break;
      parent = *group;
      rest.remove_prefix(dot + 1);
    }
    Node& leaf = nodes_[append(parent, rest)];
    leaf.tensor = index;
    leaf.tensors = 1;
    leaf.elements = element_count(tensor.shape);
    leaf.nbytes = tensor.nbytes;
    leaf.print = hash_name(tensor.type, seed_);
    for (const std::uint64_t size : tensor.shape) leaf.print = mixed(leaf.print, size);
  }

  /// Returns the group of a part at a depth; nothing if there are too many. Most names share their
  /// first parts with the one before.
  std::optional<std::uint32_t> group_of(std::uint32_t parent, std::string_view name,
                                        std::size_t depth) {
    if (depth < steps_.size() && steps_[depth].name == name) return steps_[depth].group;
    steps_.resize(depth);
    const std::uint64_t hash = hash_name(name, seed_ ^ parent * 0x9E3779B97F4A7C15U);
    Slot* slot = &slot_of(parent, name, hash);
    if (slot->group == 0) {
      if (groups_ >= max_groups_) return {};
      if (2 * ++groups_ > slots_.size()) {
        grow();
        slot = &slot_of(parent, name, hash);
      }
      *slot = {hash, append(parent, name)};
    }
    steps_.push_back({name, slot->group});
    return slot->group;
  }

  /// Returns the place of a group, or the free one where it belongs.
  Slot& slot_of(std::uint32_t parent, std::string_view name, std::uint64_t hash) {
    for (auto i = static_cast<std::size_t>(hash);; ++i) {
      Slot& slot = slots_[i & (slots_.size() - 1)];
      if (slot.group == 0) return slot;
      const Node& node = nodes_[slot.group];
      if (slot.hash == hash && node.parent == parent && node.name == name) return slot;
    }
  }

  void grow() {
    std::vector<Slot> before(4 * slots_.size());
    before.swap(slots_);
    for (const Slot& each : before) {
      if (each.group == 0) continue;
      auto i = static_cast<std::size_t>(each.hash);
      while (slots_[i & (slots_.size() - 1)].group != 0) ++i;
      slots_[i & (slots_.size() - 1)] = each;
    }
  }

  std::uint32_t append(std::uint32_t parent, std::string_view name) {
    const auto index = static_cast<std::uint32_t>(nodes_.size());
    Node& above = nodes_[parent];
    ++above.children;
    (above.first_child == 0 ? above.first_child : nodes_[above.last_child].next) = index;
    above.last_child = index;
    nodes_.push_back({.name = name, .parent = parent});
    return index;
  }

  /// Adds a node, of which all children were added, to its parent. The sum of prints is the same in
  /// any order of the children. The keys of the hashes are secret, so that no file can have two
  /// subtrees of equal prints that differ, but by a chance of about 2^-64.
  void sum_up(Node& node) {
    if (!node.is_tensor()) node.print = mixed(node.print, node.children);
    Node& parent = nodes_[node.parent];
    parent.tensors += node.tensors;
    parent.elements += node.elements;
    parent.nbytes += node.nbytes;
    parent.print += mixed(hash_name(node.name, seed_ + (node.is_tensor() ? 1 : 0)), node.print);
  }

  [[nodiscard]] std::uint64_t mixed(std::uint64_t a, std::uint64_t b) const noexcept {
    return multiply_fold(a ^ seed_, b ^ 0xE7037ED1A0B428DBU) + a;
  }

  std::uint64_t seed_;
  std::size_t max_groups_;
  std::vector<Node> nodes_;
  std::vector<Slot> slots_;  // a power of two, at most half of them taken
  std::size_t groups_ = 0;
  std::vector<Step> steps_;  // the groups of the name before
};

/// Makes rows of nodes.
class RowMaker {
 public:
  RowMaker(const NameTree& tree, const OutlineLimits& limits) : tree_(tree), limits_(limits) {}

  [[nodiscard]] Outline make() {
    Outline outline;
    Rows made = rows_of(tree_.root());
    for (std::size_t i = limits_.rows; i < made.rows.size(); ++i) {
      outline.omitted += made.rows[i].tensors;
    }
    if (made.rows.size() > limits_.rows) made.rows.resize(limits_.rows);
    left_ = limits_.rows - made.rows.size();
    outline.rows = std::move(made.rows);
    if (limits_.depth > 1) add_shut(outline.rows, made.nodes, 1);
    while (!shut_.empty()) {
      const Shut largest = shut_.top();
      shut_.pop();
      unfold(largest);
    }
    return outline;
  }

 private:
  struct Rows {
    std::vector<OutlineRow> rows;
    std::vector<const Node*> nodes;  // of each row
  };
  /// A group whose rows are not shown yet. Rows stay where they are once their vector is complete.
  struct Shut {
    OutlineRow* row;
    const Node* node;
    std::size_t depth;
    std::size_t number;
    bool operator<(const Shut& other) const noexcept {
      if (row->nbytes != other.row->nbytes) return row->nbytes < other.row->nbytes;
      return number > other.number;
    }
  };

  /// Adds the groups among rows of this depth.
  void add_shut(std::vector<OutlineRow>& rows, const std::vector<const Node*>& nodes,
                std::size_t depth) {
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (rows[i].tensor != OutlineRow::kGroup) continue;
      shut_.push({&rows[i], nodes[i], depth, numbered_++});
    }
  }

  void unfold(const Shut& group) {
    Rows made = rows_of(*group.node);
    if (made.rows.size() > left_) return;
    left_ -= made.rows.size();
    group.row->rows = std::move(made.rows);
    if (group.depth + 1 < limits_.depth) add_shut(group.row->rows, made.nodes, group.depth + 1);
  }

  /// Returns the rows of the members of a group, in natural order.
  [[nodiscard]] Rows rows_of(const Node& group) const {
    std::vector<const Node*> members;
    members.reserve(group.children);
    for (std::uint32_t child = group.first_child; child != 0; child = members.back()->next) {
      members.push_back(&tree_.at(child));
    }
    std::ranges::stable_sort(members, [](const Node* a, const Node* b) {
      const auto order = compare_naturally(a->name, b->name);
      return order != 0 ? order < 0 : a->is_tensor() && !b->is_tensor();
    });
    Rows made;
    for (std::size_t begin = 0; begin < members.size();) {
      std::size_t end = begin + 1;
      while (end < members.size() && are_alike(*members[end - 1], *members[end])) ++end;
      const bool is_folded = end - begin >= kLeastAlike;
      for (; begin < end; begin += is_folded ? end - begin : 1) {
        add_row(made, *members[begin], *members[is_folded ? end - 1 : begin],
                is_folded ? end - begin : 1);
      }
    }
    return made;
  }

  static bool are_alike(const Node& a, const Node& b) noexcept {
    return a.print == b.print && a.is_tensor() == b.is_tensor() &&
           differ_in_numbers_only(a.name, b.name);
  }

  void add_row(Rows& made, const Node& first, const Node& last, std::uint64_t alike) const {
    std::string rest;
    const Node* node = &first;
    while (!node->is_tensor() && node->children == 1) {
      node = &tree_.at(node->first_child);
      rest += "." + std::string(node->name);
    }
    made.rows.push_back({.first = std::string(first.name) + rest,
                         .last = std::string(last.name) + rest,
                         .alike = alike,
                         .tensor = node->tensor,
                         .tensors = node->tensors * alike,
                         .elements = node->elements * alike,
                         .nbytes = node->nbytes * alike,
                         .rows = {}});
    made.nodes.push_back(node);
  }

  const NameTree& tree_;
  const OutlineLimits& limits_;
  std::size_t left_ = 0;
  std::size_t numbered_ = 0;
  std::priority_queue<Shut> shut_;
};

std::vector<OutlineType> types_of(std::span<const OutlineTensor> tensors) {
  std::vector<OutlineType> types;
  for (const OutlineTensor& tensor : tensors) {
    auto found = std::ranges::find(types, tensor.type, &OutlineType::type);  // a model has a few
    if (found == types.end()) found = types.insert(found, {.type = tensor.type});
    ++found->tensors;
    found->elements += element_count(tensor.shape);
    found->nbytes += tensor.nbytes;
  }
  std::ranges::sort(types, [](const OutlineType& a, const OutlineType& b) {
    return a.nbytes != b.nbytes ? a.nbytes > b.nbytes : a.type < b.type;
  });
  return types;
}

}  // namespace

Outline outline_of(std::span<const OutlineTensor> tensors, const OutlineLimits& limits) {
  const NameTree tree(tensors);
  Outline outline = RowMaker(tree, limits).make();
  outline.types = types_of(tensors);
  return outline;
}

std::uint64_t element_count(std::span<const std::uint64_t> shape) noexcept {
  if (std::ranges::find(shape, 0U) != shape.end()) return 0;
  return checked_product(shape, 1).value_or(std::numeric_limits<std::uint64_t>::max());
}

}  // namespace safetensors::detail
