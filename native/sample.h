// Sampled neighbourhoods of several hops, draw for draw those that geof.data.batching makes in NumPy.
//
// Every node is expanded once, at the hop where it is first met. Of a node with more neighbours than
// the fanout that many are drawn by Robert Floyd's method from NumPy's PCG64. All of it is one thread's
// work, so the draws cannot depend on the number of threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "geof.h"
#include "tasks.h"

namespace geof {

// NumPy's PCG64: a 128-bit linear congruence whose halves are folded and rotated.
class Pcg64 {
 public:
  explicit Pcg64(const uint64_t* s) : state(join(s[0], s[1])), increment(join(s[2], s[3])) {}

  uint64_t operator()() {
    state = state * join(2549297995355413924ULL, 4865540595714422341ULL) + increment;
    const uint64_t high = uint64_t(state >> 64), folded = high ^ uint64_t(state);
    const int turn = int(high >> 58);
    return (folded >> turn) | (folded << (-turn & 63));
  }

  // A number from [0, 1), as NumPy makes it of 53 bits.
  double uniform() { return double(int64_t((*this)() >> 11)) * 0x1p-53; }

 private:
  using Wide = unsigned __int128;
  static constexpr Wide join(uint64_t high, uint64_t low) { return Wide(high) << 64 | low; }
  Wide state, increment;
};

// What the last call of a thread drew; its memory is kept for the next.
struct Sampled {
  std::vector<int64_t> nodes, place;    // met, in order; where each edge stands in `source`
  std::vector<int32_t> source, target;  // the ends of each edge, as positions in `nodes`
};

inline Sampled& last_sample() {
  static thread_local Sampled kept;
  return kept;
}

class Sampler {
 public:
  // Of all nodes, one more than its position in the sample, 0 for those not met; all 0 between calls.
  Sampler(const geof_sample_args& arguments, Sampled& made)
      : a(arguments),
        s(made),
        bits(arguments.state),
        number(thread_scratch<int32_t, kNumberScratch>(size_t(arguments.n))) {}

  ~Sampler() {
    for (const int64_t node : s.nodes) number[node] = 0;
    for (const int64_t node : fresh) number[node] = 0;
    give_back<int32_t, kNumberScratch>();
  }

  // Whether every index stayed inside its array.
  bool run() {
    s.nodes.clear(), s.place.clear(), s.source.clear(), s.target.clear();
    for (int64_t k = 0; k < a.seeds; ++k)
      if (!inside(a.seed[k])) return false;
    s.nodes.assign(a.seed, a.seed + a.seeds);
    for (int64_t k = 0; k < a.seeds; ++k) number[a.seed[k]] = int32_t(k + 1);
    int64_t begin = 0;
    for (int64_t hop = 0; hop < a.hops; ++hop) {
      const int64_t end = int64_t(s.nodes.size()), edges = int64_t(s.place.size());
      if (!expand(begin, end, a.fanout[hop]) || !find_sources(edges)) return false;
      meet(edges);
      begin = end;
    }
    return true;
  }

 private:
  static constexpr int64_t kColumns = 256;  // nodes whose draws and rows stay in the cache together

  const geof_sample_args& a;
  Sampled& s;
  Pcg64 bits;
  int32_t* number;
  std::vector<int64_t> row, found, fresh;
  std::vector<int32_t> owner, bound, drawn;

  bool inside(int64_t node) const { return uint64_t(node) < uint64_t(a.n); }

  // The places of the neighbours of nodes begin to end: all of those with few, then the drawn.
  bool expand(int64_t begin, int64_t end, int64_t fanout) {
    row.clear(), owner.clear(), bound.clear();
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = a.pointer[s.nodes[i]], last = a.pointer[s.nodes[i] + 1];
      if (first < 0 || last < first || last > a.E || last - first > INT32_MAX) return false;
      if (fanout >= 0 && last - first > fanout) {
        row.push_back(first), owner.push_back(int32_t(i)), bound.push_back(int32_t(last - first));
        continue;
      }
      for (int64_t at = first; at < last; ++at) s.place.push_back(at), s.target.push_back(int32_t(i));
    }
    if (!row.empty()) draw(fanout);
    return true;
  }

  // Draw by draw for all crowded nodes, which is the order of NumPy's array.
  void draw(int64_t count) {
    const int64_t columns = int64_t(row.size()), from = int64_t(s.place.size());
    drawn.resize(size_t(count * columns));
    for (int64_t step = 0, k = 0; step < count; ++step)
      for (int64_t c = 0; c < columns; ++c, ++k)
        drawn[k] = int32_t(bits.uniform() * double(bound[c] - count + step + 1));
    s.place.resize(size_t(from + count * columns));
    s.target.resize(size_t(from + count * columns));
    for (int64_t c = 0; c < columns; c += kColumns)
      distinct(count, columns, c, std::min(c + kColumns, columns), from);
  }

  // A number drawn before is replaced by the largest one of its draw.
  void distinct(int64_t count, int64_t columns, int64_t begin, int64_t end, int64_t from) {
    int32_t taken[kColumns];
    for (int64_t step = 0; step < count; ++step) {
      int32_t* own = drawn.data() + step * columns;
      std::fill(taken, taken + (end - begin), 0);
      for (int64_t before = 0; before < step; ++before) {
        const int32_t* other = drawn.data() + before * columns;
        for (int64_t c = begin; c < end; ++c) taken[c - begin] |= other[c] == own[c];
      }
      const int32_t shift = int32_t(step - count);
      for (int64_t c = begin; c < end; ++c) own[c] = taken[c - begin] ? bound[c] + shift : own[c];
      int64_t* place = s.place.data() + from + step * columns;
      int32_t* target = s.target.data() + from + step * columns;
      for (int64_t c = begin; c < end; ++c) place[c] = row[c] + own[c], target[c] = owner[c];
    }
  }

  bool find_sources(int64_t from) {
    const int64_t count = int64_t(s.place.size()) - from;
    const int64_t* place = s.place.data() + from;
    found.resize(size_t(count));
    bool wrong = false;
    for (int64_t k = 0; k < count; ++k) {
      found[k] = a.source[place[k]];
      wrong |= !inside(found[k]);
    }
    return !wrong;
  }

  // Number the nodes not met before in the order in which each is named for the last time.
  void meet(int64_t from) {
    const int64_t count = int64_t(found.size()), start = int64_t(s.nodes.size());
    fresh.clear();
    for (int64_t k = count - 1; k >= 0; --k) {
      if (number[found[k]]) continue;
      fresh.push_back(found[k]);
      number[found[k]] = -1;
    }
    s.nodes.insert(s.nodes.end(), fresh.rbegin(), fresh.rend());
    for (int64_t i = start; i < int64_t(s.nodes.size()); ++i) number[s.nodes[i]] = int32_t(i + 1);
    s.source.resize(size_t(from + count));
    for (int64_t k = 0; k < count; ++k) s.source[from + k] = number[found[k]] - 1;
  }
};

}  // namespace geof
