// From the moments to the next coordinates in one sweep, Eqs. (4), (6), (8), (10), (11) and (12).
//
// A few nodes at a time, so that what lies between a neighbourhood and the next coordinates stays in
// the cache: moments, target, and the controller's matrices, each block a column of them:
//
//   q (2m, columns) = [xi_b || agg_b],  hidden (H, columns) = SiLU(W_1 q + shared_i),
//   out (p, columns) = W_2 hidden + bias = [U_1.., V_0.., d],
//   z' = clip(z + mix (target - z) + strength [lower(U V^T), d]).
//
// Of U's m rows the first and of V's the last never reach the strictly lower triangle; the caller
// leaves them out of W_2, so p = 2 (m - 1) rank + m. The backward pass makes all of it again.
#pragma once

#include <algorithm>
#include <atomic>
#include <new>
#include <vector>

#include "feedback.h"
#include "moments.h"
#include "products.h"
#include "pulled.h"
#include "tasks.h"

namespace geof {

template <class T>
struct EvolveArguments {
  FeedbackArguments<T> feedback;  // moments, target and their gradients are not used
  MomentArguments<T> edges;       // likewise
  int H, rank;                    // H = 0: no correction
  T mix, strength, offdiagonal, low, high;
  const T* x;                               // (n, B, m)
  const T *shared, *hidden, *output, *bias;  // (n, H), (H, 2m), (p, H), (p)
  T* next;                                   // (n, t, B); read by the backward pass
  // Backward only.
  const T* grad_next;
  T *grad_x, *grad_shared;                   // (n, B, m), (n, H)
  T *grad_hidden, *grad_output, *grad_bias;  // like the maps; overwritten
};

// Columns worked on at once: what lies between a neighbourhood and the next coordinates then stays in the
// first cache. Rows a power of two apart would share a few lines of it.
constexpr int kChunk = 64, kRowPadding = 16;
constexpr int64_t kRow = kChunk + kRowPadding;
constexpr int kGroups = 32;   // fixed shares of the chunks: sums over them have a fixed order

// Nodes of a chunk: a power of two, so that chunks end where spans do.
inline int64_t nodes_of_chunk(int B) {
  int64_t nodes = kNodes;
  while (nodes > 1 && nodes * B > kChunk) nodes /= 2;
  return nodes;
}

// Blocks g..g+width of nodes begin..begin+count: node after node they are the columns of the
// controller's matrices. A chunk is one tile, or several where a node has more than kChunk blocks.
struct Tile {
  int64_t begin, count;
  int g, width;
};

template <class T, int W, int M>
struct EvolveBase {
  using V = Vec<T, W>;
  using A = EvolveArguments<T>;
  using Rows = EdgeMoments<T, W, M>;
  using Few = Pulled<T, W, M>;
  static constexpr int N = capacity(M);

  const A& s;
  const Count<M> m;
  const int B, p;
  const int64_t d, t, nodes;
  const int columns;  // of a tile, rounded up
  const bool second;  // whether the statistic is made of the second moment
  const Panels<T> first_map, second_map;  // the controller's

  explicit EvolveBase(const A& arguments)
      : s(arguments),
        m(known<M>(arguments.feedback.m)),
        B(arguments.feedback.B),
        p(2 * (m - 1) * arguments.rank + m),
        d(int64_t(m) * B),
        t(int64_t(triangle(m)) * B),
        nodes(nodes_of_chunk(B)),
        columns((std::min(int(nodes) * B, kChunk) + kColumnStep - 1) / kColumnStep * kColumnStep),
        second(s.feedback.statistic == kFull || s.feedback.statistic == kDiagonal),
        first_map(first()),
        second_map(outer()) {}

  int64_t chunks() const { return (s.feedback.n + nodes - 1) / nodes; }

  // The feedback's arguments for the nodes from `begin` on.
  FeedbackArguments<T> feedback_from(int64_t begin, T* first, T* outer) const {
    FeedbackArguments<T> f = s.feedback;
    f.z += begin * t;
    f.message += begin * d;
    f.aggregate += begin * d;
    f.first = first;
    f.second = outer;
    return f;
  }

  // f(tile) for the tiles of the chunk that begins at a node.
  template <class Work>
  GEOF_INLINE void each_tile(int64_t begin, int64_t count, const Work& work) const {
    for (int g = 0; g < B; g += kChunk) work(Tile{begin, count, g, std::min(kChunk, B - g)});
  }
  // f(i, g, column) for the groups of W blocks of a tile; i counts from the tile's first node.
  template <class Work>
  GEOF_INLINE void each_group(const Tile& tile, const Work& work) const {
    for (int64_t i = 0; i < tile.count; ++i)
      for (int g = 0; g < tile.width; g += W) work(i, tile.g + g, i * tile.width + g);
  }

  Small<T> first() const { return {s.hidden, s.H, 2 * m, 2 * m, 1}; }
  Small<T> outer() const { return {s.output, s.H ? p : 0, s.H, s.H, 1}; }

  // The controller: q, hidden and out from the features and the aggregate; SiLU' too when wanted.
  void control(const Tile& tile, T* q, T* hidden, T* slope, T* out) const {
    pack(tile, q);
    multiply<T>(first_map, nullptr, q, hidden, kRow, columns);
    activate(tile, hidden, slope);
    multiply<T>(second_map, s.bias, hidden, out, kRow, columns);
  }

  // q, with zeros in the padding.
  void pack(const Tile& tile, T* q) const {
    each_group(tile, [&](int64_t i, int g, int64_t column) GEOF_LAMBDA {
      const int64_t from = (tile.begin + i) * d + int64_t(g) * m;
      V x[N];
      read_features<T, W, M>(s.x + from, m, x);
      each(m, [&](auto k) GEOF_LAMBDA { store<T, W>(q + k * kRow + column, x[k]); });
      read_features<T, W, M>(s.feedback.aggregate + from, m, x);
      each(m, [&](auto k) GEOF_LAMBDA { store<T, W>(q + (m + k) * kRow + column, x[k]); });
    });
    clear_padding(tile, q, 2 * m);
  }
  void clear_padding(const Tile& tile, T* rows, int number) const {
    for (int64_t k = tile.count * tile.width; k < columns; ++k)
      for (int r = 0; r < number; ++r) rows[r * kRow + k] = T(0);
  }

  // hidden = SiLU(hidden + shared), and SiLU' beside it when wanted.
  void activate(const Tile& tile, T* hidden, T* slope) const {
    constexpr int F = kWidth<T>;
    for (int h = 0; h < s.H; ++h) {
      T* row = hidden + h * kRow;
      const T* own = s.shared + tile.begin * s.H + h;
      each_group(tile, [&](int64_t i, int, int64_t column) GEOF_LAMBDA {
        store<T, W>(row + column, V(load<T, W>(row + column) + own[i * s.H]));
      });
      for (int64_t k = 0; k < columns; k += F) {
        const Vec<T, F> v = load<T, F>(row + k);
        const Vec<T, F> sigmoid = T(1) / (exponential<T, F>(-v) + T(1));
        store<T, F>(row + k, Vec<T, F>(v * sigmoid));
        if (slope)
          store<T, F>(slope + h * kRow + k,
                      Vec<T, F>(sigmoid * (v * (T(1) - sigmoid) + T(1))));
      }
    }
  }

  // f(i, g, column, B, rank) for the groups of a tile; the last two are constants where they are the
  // usual ones: then no address is computed.
  template <class Update>
  GEOF_INLINE void each_update(const Tile& tile, const Update& f) const {
    const auto with = [&](auto B, auto rank) GEOF_LAMBDA {
      each_group(tile, [&](int64_t i, int g, int64_t column) GEOF_LAMBDA { f(i, g, column, B, rank); });
    };
    if (M > 0 && kUnrolled && s.rank == 4 && B == W) {
      with(Constant<W>{}, Constant<4>{});
    } else if (M > 0 && kUnrolled && s.rank == 4 && B == 2 * W) {
      with(Constant<2 * W>{}, Constant<4>{});
    } else {
      with(B, s.rank);
    }
  }
};

template <class T, int W, int M>
struct Evolve : EvolveBase<T, W, M> {
  using Base = EvolveBase<T, W, M>;
  using typename Base::V, typename Base::Rows, typename Base::Few;
  using Base::B, Base::N, Base::columns, Base::d, Base::m, Base::nodes, Base::p;
  using Base::s, Base::second, Base::t;

  using Base::Base;

  static void run(const EvolveArguments<T>& arguments) {
    const Evolve self(arguments);
    const int threads = arguments.feedback.threads;
    const int64_t size =
        self.nodes * (2 * self.t + self.d) + (2 * self.m + self.s.H + self.p) * kRow;
    const int64_t chunks = self.chunks();
    std::atomic<bool> failed{false};  // no exception may leave a parallel region
#pragma omp parallel for schedule(dynamic, 8) num_threads(threads) if (chunks > 8)
    for (int64_t k = 0; k < chunks; ++k) {
      T* scratch = thread_scratch_or_null<T, kChunkScratch>(size);
      scratch ? self.chunk(k, scratch) : failed.store(true);
    }
    if (failed) throw std::bad_alloc();
  }

  void chunk(int64_t k, T* scratch) const {
    const int64_t begin = k * nodes, count = std::min(nodes, s.feedback.n - begin);
    T *target = scratch, *outer = target + nodes * t, *first = outer + nodes * t;
    T *q = first + nodes * d, *hidden = q + 2 * m * kRow, *out = hidden + s.H * kRow;
    FeedbackArguments<T> feedback = this->feedback_from(begin, first, outer);
    feedback.target = target;
    for (int64_t i = 0; i < count; ++i) {
      Rows::weigh(s.edges, begin + i, d);
      if (second && Few::serves(s.edges, begin + i)) {
        Few::row(s.edges, begin + i, feedback, i, m, first + i * d, outer + i * t);
        continue;
      }
      Rows::sum_row(s.edges, begin + i, m, first + i * d, second ? outer + i * t : nullptr);
      for (int g = 0; g < B; g += W) FeedbackTarget<T, W, M>::group(feedback, i, g, m);
    }
    this->each_tile(begin, count, [&](const Tile& tile) {
      if (s.H) this->control(tile, q, hidden, nullptr, out);
      this->each_update(tile, [&](int64_t i, int g, int64_t column, auto B, auto rank) GEOF_LAMBDA {
        update(begin + i, i, g, target, out + column, B, rank);
      });
    });
  }

  // Eq. (12), row by row of the blocks. `out` is the controller's, from the column of these blocks on.
  template <class Blocks, class Rank>
  GEOF_INLINE void update(int64_t i, int64_t local, int g, const T* target, const T* out, Blocks B,
                          Rank rank) const {
    const int64_t t = int64_t(triangle(m)) * B;
    const T* z = s.feedback.z + i * t + g;
    T* next = s.next + i * t + g;
    target += local * t + g;
    // Whatever is stored might change the arguments, as far as the compiler knows.
    const bool mixed = s.feedback.statistic != kNone, corrected = s.H > 0;
    const V mix = fill<T, W>(s.mix), strength = fill<T, W>(s.strength);
    const V most = fill<T, W>(s.offdiagonal), least = -most;
    const V low = fill<T, W>(s.low), high = fill<T, W>(s.high);
    const T *left = out, *right = left + (m - 1) * rank * kRow, *scales = right + (m - 1) * rank * kRow;
    V zero{};  // NaN in a lane with an infinity
    const auto move = [&](int k, V delta, V low, V high) GEOF_LAMBDA {
      V v = load<T, W>(z + k * B);
      if (mixed) v += (load<T, W>(target + k * B) - v) * mix;
      if (corrected) v += delta * strength;
      store<T, W>(next + k * B, at_most<T, W>(at_least<T, W>(v, low), high));
    };
    each(m, [&](auto r) GEOF_LAMBDA {
      V delta[N];
      each(r, [&](auto c) GEOF_LAMBDA { delta[c] = V{}; });
      if (corrected)
        each(rank, [&](auto k) GEOF_LAMBDA {
          const V u = load<T, W>(left + ((r - 1) * rank + k) * kRow);
          each(r, [&](auto c) GEOF_LAMBDA { delta[c] += u * load<T, W>(right + (c * rank + k) * kRow); });
        });
      each(r, [&](auto c) GEOF_LAMBDA {
        zero += delta[c] * T(0);
        move(strict(r, c), delta[c], least, most);
      });
    });
    each(m, [&](auto r) GEOF_LAMBDA {
      move(scale(m, r), corrected ? load<T, W>(scales + r * kRow) : V{}, low, high);
    });
    if (!(sum<T, W>(zero) == T(0))) update_rounded(i, g, target, out);
  }

  // A product fused with its sum is not rounded: added to an infinity it leaves that infinity,
  // whatever its sign, and the clip would take it for a bound. Rounded, infinities of two signs are
  // a NaN, as they are to the other backends.
  __attribute__((noinline, noclone, cold)) void update_rounded(int64_t i, int g, const T* target,
                                                               const T* out) const {
    const int rank = s.rank;
    const T *right = out + (m - 1) * rank * kRow, *z = s.feedback.z + i * t + g;
    T* next = s.next + i * t + g;
    for (int r = 1; r < m; ++r)
      for (int c = 0; c < r; ++c)
        for (int l = 0; l < W; ++l) {
          T total = 0;
          for (int k = 0; k < rank; ++k) {
            const volatile T product =
                out[((r - 1) * rank + k) * kRow + l] * right[(c * rank + k) * kRow + l];
            total += product;
          }
          const int64_t at = int64_t(strict(r, c)) * B + l;
          T v = z[at];
          if (s.feedback.statistic != kNone) v += (target[at] - v) * s.mix;
          v += total * s.strength;
          v = v < -s.offdiagonal ? -s.offdiagonal : v;
          if (!std::isfinite(total)) next[at] = v > s.offdiagonal ? s.offdiagonal : v;
        }
  }
};

template <class T, int W, int M>
struct EvolveBackward : EvolveBase<T, W, M> {
  using Base = EvolveBase<T, W, M>;
  using Back = EdgeMomentsBackward<T, W, M>;
  using typename Base::V, typename Base::Rows, typename Base::Few;
  using Base::B, Base::N, Base::columns, Base::d, Base::m, Base::nodes, Base::p;
  using Base::s, Base::second, Base::t;

  const Panels<T> first_back, second_back;  // the controller's maps, transposed

  explicit EvolveBackward(const EvolveArguments<T>& arguments)
      : Base(arguments),
        first_back(this->first().transposed()),
        second_back(this->outer().transposed()) {}

  OuterSums<T> hidden_sums() const { return {s.H, 2 * m}; }
  OuterSums<T> output_sums() const { return {p, s.H}; }
  int64_t map_size() const {
    return s.H ? hidden_sums().size() + output_sums().size() + p : 0;
  }
  int64_t scratch_size() const {
    return nodes * (3 * t + 3 * d) + (4 * m + 3 * s.H + 2 * p) * kRow;
  }

  static void run(const EvolveArguments<T>& arguments) {
    const EvolveBackward self(arguments);
    self.all();
  }

  void all() const {
    const MomentArguments<T>& e = s.edges;
    const std::vector<int64_t> begins = spans_of(e.pointer, e.n);
    typename Back::Edges edges = Back::edges_of(e, largest_span(begins, e.pointer));
    const int64_t size = scratch_size(), maps = map_size(), every = this->chunks();
    std::vector<T> sums(kGroups * maps);
    std::atomic<bool> failed{false};
    Back::clear(e, d);
    for (size_t k = 0; k + 1 < begins.size(); ++k) {
      edges.begin = e.pointer[begins[k]];
      const int64_t first = begins[k] / nodes, last = (begins[k + 1] + nodes - 1) / nodes;
#pragma omp parallel for schedule(dynamic, 1) num_threads(s.feedback.threads) if (every > 1)
      for (int64_t group = 0; group < kGroups; ++group) {
        const int64_t from = std::max(first, group * every / kGroups);
        const int64_t to = std::min(last, (group + 1) * every / kGroups);
        T* scratch = thread_scratch_or_null<T, kChunkScratch>(size);
        if (!scratch) failed = true;
        for (int64_t c = from; c < to && scratch; ++c)
          chunk(c, scratch, sums.data() + group * maps, edges);
      }
      if (failed) throw std::bad_alloc();
      Back::collect(e, begins[k], begins[k + 1], d, edges);
    }
    give_back<T, kEdgeScratch>();
    if (s.H) collect(sums.data(), maps);
  }

  // The gradients of the controller's maps: the shares of all groups, in their order.
  void collect(T* sums, int64_t maps) const {
    for (int group = 1; group < kGroups; ++group)
      for (int64_t k = 0; k < maps; ++k) sums[k] += sums[group * maps + k];
    const auto take = [&](const OuterSums<T>& made, const T* from, T* to) {
      for (int r = 0; r < made.rows; ++r)
        for (int c = 0; c < made.others; ++c) *to++ = from[made.at(r, c)];
    };
    take(hidden_sums(), sums, s.grad_hidden);
    take(output_sums(), sums + hidden_sums().size(), s.grad_output);
    std::copy(sums + maps - p, sums + maps, s.grad_bias);
  }

  void chunk(int64_t index, T* scratch, T* sums, const typename Back::Edges& edges) const {
    const int64_t begin = index * nodes, count = std::min(nodes, s.feedback.n - begin);
    T *grad_target = scratch, *outer = grad_target + nodes * t, *curve = outer + nodes * t;
    T *first = curve + nodes * t, *pull = first + nodes * d, *grad_first = pull + nodes * d;
    T *maps = grad_first + nodes * d;
    std::copy(s.feedback.grad_aggregate + begin * d, s.feedback.grad_aggregate + (begin + count) * d,
              pull);
    this->each_tile(begin, count, [&](const Tile& tile) {
      move_back(tile, grad_target, pull, maps, sums);
    });
    FeedbackArguments<T> feedback = this->feedback_from(begin, first, outer);
    feedback.grad_aggregate = pull;
    feedback.grad_target = grad_target;
    feedback.grad_z += begin * t;
    if (feedback.grad_message) feedback.grad_message += begin * d;
    feedback.grad_first = grad_first;
    feedback.grad_second = curve;
    for (int64_t i = 0; i < count; ++i) {
      if (second && Few::serves(s.edges, begin + i)) {
        Few::row_backward(s.edges, begin + i, feedback, i, m, first + i * d, outer + i * t, edges);
        continue;
      }
      Rows::sum_row(s.edges, begin + i, m, first + i * d, second ? outer + i * t : nullptr);
      for (int g = 0; g < B; g += W) FeedbackTargetBackward<T, W, M>::group(feedback, i, g, m);
      Back::row(s.edges, begin + i, m, grad_first + i * d, second ? curve + i * t : nullptr, edges);
    }
  }

  // Reverse of the update and of the controller; what reaches the aggregate is added to `pull`.
  void move_back(const Tile& tile, T* grad_target, T* pull, T* memory, T* sums) const {
    T *q = memory, *grad_q = q + 2 * m * kRow, *hidden = grad_q + 2 * m * kRow;
    T *slope = hidden + s.H * kRow, *pushed = slope + s.H * kRow, *out = pushed + s.H * kRow;
    T* grad_out = out + p * kRow;
    if (s.H) this->control(tile, q, hidden, slope, out);
    this->each_update(tile, [&](int64_t i, int g, int64_t column, auto B, auto rank) GEOF_LAMBDA {
      update(tile.begin + i, i, g, grad_target, out + column, grad_out + column, B, rank);
    });
    if (!s.H) return;
    this->clear_padding(tile, grad_out, p);
    multiply<T>(second_back, nullptr, grad_out, pushed, kRow, columns);
    deactivate(tile, pushed, slope);
    multiply<T>(first_back, nullptr, pushed, grad_q, kRow, columns);
    unpack(tile, grad_q, pull);
    const OuterSums<T> first = hidden_sums(), second = output_sums();
    first.add(pushed, q, kRow, columns, sums);
    second.add(grad_out, hidden, kRow, columns, sums + first.size());
    add_row_sums(grad_out, p, kRow, columns, sums + first.size() + second.size());
  }

  // Through SiLU; the signature's share collects all blocks of a node.
  void deactivate(const Tile& tile, T* pushed, const T* slope) const {
    constexpr int F = kWidth<T>;
    for (int h = 0; h < s.H; ++h) {
      T* row = pushed + h * kRow;
      for (int64_t k = 0; k < columns; k += F)
        store<T, F>(row + k,
                    Vec<T, F>(load<T, F>(row + k) * load<T, F>(slope + h * kRow + k)));
      T* own = s.grad_shared + tile.begin * s.H + h;
      for (int64_t i = 0; i < tile.count; ++i) {
        V total{};
        for (int g = 0; g < tile.width; g += W) total += load<T, W>(row + i * tile.width + g);
        own[i * s.H] = sum<T, W>(total) + (tile.g ? own[i * s.H] : T(0));
      }
    }
  }

  void unpack(const Tile& tile, const T* grad_q, T* pull) const {
    this->each_group(tile, [&](int64_t i, int g, int64_t column) GEOF_LAMBDA {
      const int64_t to = int64_t(g) * m;
      V x[N];
      each(m, [&](auto k) GEOF_LAMBDA { x[k] = load<T, W>(grad_q + k * kRow + column); });
      write_features<T, W, M>(s.grad_x + (tile.begin + i) * d + to, m, x);
      read_features<T, W, M>(pull + i * d + to, m, x);
      each(m, [&](auto k) GEOF_LAMBDA { x[k] += load<T, W>(grad_q + (m + k) * kRow + column); });
      write_features<T, W, M>(pull + i * d + to, m, x);
    });
  }

  // Reverse of Eq. (12). What the clip changed has no gradient; landing on the bound counts as
  // changed, unless nothing could have moved the coordinates at all.
  template <class Blocks, class Rank>
  GEOF_INLINE void update(int64_t i, int64_t local, int g, T* grad_target, const T* out, T* grad_out,
                          Blocks B, Rank rank) const {
    const int64_t t = int64_t(triangle(m)) * B, at = i * t + g;
    const T *z = s.feedback.z + at, *next = s.next + at, *grad_next = s.grad_next + at;
    T* grad_z = s.feedback.grad_z + at;
    grad_target += local * t + g;
    // Whatever is stored might change the arguments, as far as the compiler knows.
    const bool mixed = s.feedback.statistic != kNone, corrected = s.H > 0;
    const bool still = !mixed && !corrected;
    const V mix = fill<T, W>(s.mix), strength = fill<T, W>(s.strength), rest = T(1) - mix;
    const V most = fill<T, W>(s.offdiagonal), least = -most;
    const V low = fill<T, W>(s.low), high = fill<T, W>(s.high);
    const int64_t right = (m - 1) * rank * kRow;
    V delta[triangle(N)];
    const auto move = [&](int k, V low, V high) GEOF_LAMBDA {
      V own = load<T, W>(grad_next + k * B);
      if (still) {
        const V v = load<T, W>(z + k * B);
        own = v >= low ? own : V{};
        own = v <= high ? own : V{};
      } else {
        const V v = load<T, W>(next + k * B);
        own = v > low ? own : V{};
        own = v < high ? own : V{};
      }
      store<T, W>(grad_z + k * B, mixed ? V(own * rest) : own);
      if (mixed) store<T, W>(grad_target + k * B, V(own * mix));
      return V(own * strength);
    };
    each(m, [&](auto r) GEOF_LAMBDA {
      each(r, [&](auto c) GEOF_LAMBDA { delta[strict(r, c)] = move(strict(r, c), least, most); });
    });
    each(m, [&](auto r) GEOF_LAMBDA {
      const V own = move(scale(m, r), low, high);
      if (corrected) store<T, W>(grad_out + 2 * right + r * kRow, own);
    });
    if (!corrected) return;
    // One column of U and V at a time: theirs are V and its gradient, a row of U and its gradient.
    each(rank, [&](auto k) GEOF_LAMBDA {
      V v[N], gv[N];
      each(m, [&](auto r) GEOF_LAMBDA {
        gv[r] = V{};
        if (r < m - 1) v[r] = load<T, W>(out + right + (r * rank + k) * kRow);
      });
      each(m, [&](auto r) GEOF_LAMBDA {
        if (r == 0) return;
        const int64_t row = ((r - 1) * rank + k) * kRow;
        const V u = load<T, W>(out + row);
        V gu{};
        each(r, [&](auto c) GEOF_LAMBDA {
          gu += delta[strict(r, c)] * v[c];
          gv[c] += delta[strict(r, c)] * u;
        });
        store<T, W>(grad_out + row, gu);
      });
      each(m, [&](auto c) GEOF_LAMBDA {
        if (c < m - 1) store<T, W>(grad_out + right + (c * rank + k) * kRow, gv[c]);
      });
    });
  }
};

}  // namespace geof
