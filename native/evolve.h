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

constexpr int kChunk = 512;   // columns worked on at once
constexpr int kRowPadding = 16;  // rows a power of two apart would share a few lines of the cache
constexpr int kGroups = 32;   // fixed shares of the chunks: sums over them have a fixed order

// Nodes of a chunk: a power of two, so that chunks end where spans do.
inline int64_t nodes_of_chunk(int B) {
  int64_t nodes = kNodes;
  while (nodes > 1 && nodes * B > kChunk) nodes /= 2;
  return nodes;
}

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
  const int64_t d, t, nodes, columns, ld;
  const bool second;  // whether the statistic is made of the second moment

  explicit EvolveBase(const A& arguments)
      : s(arguments),
        m(known<M>(arguments.feedback.m)),
        B(arguments.feedback.B),
        p(2 * (m - 1) * arguments.rank + m),
        d(int64_t(m) * B),
        t(int64_t(triangle(m)) * B),
        nodes(nodes_of_chunk(B)),
        columns((nodes * B + kColumnStep - 1) / kColumnStep * kColumnStep),
        ld(columns + kRowPadding),
        second(s.feedback.statistic == kFull || s.feedback.statistic == kDiagonal) {}

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

  template <class Work>
  GEOF_INLINE void each_group(int64_t count, const Work& work) const {
    for (int64_t i = 0; i < count; ++i)
      for (int g = 0; g < B; g += W) work(i, g);
  }

  Small<T> first_map() const { return {s.hidden, s.H, 2 * m, 2 * m, 1}; }
  Small<T> second_map() const { return {s.output, p, s.H, s.H, 1}; }

  // q, with zeros in the padding.
  void pack(int64_t begin, int64_t count, T* q) const {
    each_group(count, [&](int64_t i, int g) GEOF_LAMBDA {
      const int64_t from = (begin + i) * d + int64_t(g) * m, column = i * B + g;
      V x[N];
      read_features<T, W, M>(s.x + from, m, x);
      each(m, [&](auto k) GEOF_LAMBDA { store<T, W>(q + k * ld + column, x[k]); });
      read_features<T, W, M>(s.feedback.aggregate + from, m, x);
      each(m, [&](auto k) GEOF_LAMBDA { store<T, W>(q + (m + k) * ld + column, x[k]); });
    });
    clear_padding(q, 2 * m, count);
  }
  void clear_padding(T* rows, int number, int64_t count) const {
    for (int r = 0; r < number; ++r) std::fill(rows + r * ld + count * B, rows + r * ld + columns, T(0));
  }

  // hidden = SiLU(hidden + shared), and SiLU' beside it when wanted.
  void activate(int64_t begin, int64_t count, T* hidden, T* slope) const {
    constexpr int F = kWidth<T>;
    for (int h = 0; h < s.H; ++h) {
      T* row = hidden + h * ld;
      const T* own = s.shared + begin * s.H + h;
      for (int64_t i = 0; i < count; ++i)
        for (int g = 0; g < B; g += W) {
          T* at = row + i * B + g;
          store<T, W>(at, V(load<T, W>(at) + own[i * s.H]));
        }
      for (int64_t k = 0; k < columns; k += F) {
        const Vec<T, F> v = load<T, F>(row + k);
        const Vec<T, F> sigmoid = T(1) / (exponential<T, F>(-v) + T(1));
        store<T, F>(row + k, Vec<T, F>(v * sigmoid));
        if (slope)
          store<T, F>(slope + h * ld + k,
                      Vec<T, F>(sigmoid * (v * (T(1) - sigmoid) + T(1))));
      }
    }
  }

  // A row of the controller's output.
  GEOF_INLINE V output(const T* out, int at, int64_t column) const {
    return load<T, W>(out + at * ld + column) + s.bias[at];
  }
};

template <class T, int W, int M>
struct Evolve : EvolveBase<T, W, M> {
  using Base = EvolveBase<T, W, M>;
  using typename Base::V, typename Base::Rows, typename Base::Few;
  using Base::B, Base::N, Base::columns, Base::d, Base::ld, Base::m, Base::nodes, Base::p;
  using Base::s, Base::second, Base::t;

  using Base::Base;

  static void run(const EvolveArguments<T>& arguments) {
    const Evolve self(arguments);
    const int threads = arguments.feedback.threads;
    const int64_t size =
        self.nodes * (2 * self.t + self.d) + (2 * self.m + self.s.H + self.p) * self.ld;
    const int64_t chunks = self.chunks();
    std::atomic<bool> failed{false};  // no exception may leave a parallel region
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads) if (chunks > 1)
    for (int64_t k = 0; k < chunks; ++k) {
      T* scratch = thread_scratch_or_null<T, kChunkScratch>(size);
      scratch ? self.chunk(k, scratch) : failed.store(true);
    }
    if (failed) throw std::bad_alloc();
  }

  void chunk(int64_t k, T* scratch) const {
    const int64_t begin = k * nodes, count = std::min(nodes, s.feedback.n - begin);
    T *target = scratch, *outer = target + nodes * t, *first = outer + nodes * t;
    T *q = first + nodes * d, *hidden = q + 2 * m * ld, *out = hidden + s.H * ld;
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
    if (s.H) {
      this->pack(begin, count, q);
      multiply(this->first_map(), q, hidden, ld, int(columns));
      this->activate(begin, count, hidden, nullptr);
      multiply(this->second_map(), hidden, out, ld, int(columns));
    }
    this->each_group(count, [&](int64_t i, int g) { update(begin + i, i, g, target, out); });
  }

  // Lower(U V^T), one column of U and V at a time, then d.
  GEOF_INLINE void correction(const T* out, int64_t column, V* delta) const {
    const int right = (m - 1) * s.rank;
    for (int k = 0; k < s.rank; ++k) {
      V v[N];
      each(m, [&](auto r) GEOF_LAMBDA {
        if (r > 0) {
          const V u = this->output(out, (r - 1) * s.rank + k, column);
          each(r, [&](auto c) GEOF_LAMBDA { delta[strict(r, c)] += u * v[c]; });
        }
        if (r < m - 1) v[r] = this->output(out, right + r * s.rank + k, column);
      });
    }
    V zero{};  // NaN in a lane with an infinity
    each(m, [&](auto r) GEOF_LAMBDA {
      each(r, [&](auto c) GEOF_LAMBDA { zero += delta[strict(r, c)] * T(0); });
    });
    if (!(sum<T, W>(zero) == T(0))) round_products(out, column, delta);
    each(m, [&](auto r) GEOF_LAMBDA {
      delta[scale(m, r)] = this->output(out, 2 * right + r, column);
    });
  }

  // A product fused with its sum is not rounded: added to an infinity it leaves that infinity,
  // whatever its sign, and the clip would take it for a bound. Rounded, infinities of two signs are
  // a NaN, as they are to the other backends.
  __attribute__((noinline, noclone, cold)) void round_products(const T* out, int64_t column,
                                                               V* delta) const {
    const int right = (m - 1) * s.rank;
    for (int r = 1; r < m; ++r)
      for (int c = 0; c < r; ++c)
        for (int l = 0; l < W; ++l) {
          if (std::isfinite(lane<T, W>(delta[strict(r, c)], l))) continue;
          T total = 0;
          for (int k = 0; k < s.rank; ++k) {
            const V u = this->output(out, (r - 1) * s.rank + k, column);
            const V v = this->output(out, right + c * s.rank + k, column);
            const volatile T product = lane<T, W>(u, l) * lane<T, W>(v, l);
            total += product;
          }
          set_lane<T, W>(delta[strict(r, c)], l, total);
        }
  }

  static GEOF_INLINE V clip(V v, T low, T high) {
    v = v < low ? fill<T, W>(low) : v;
    return v > high ? fill<T, W>(high) : v;
  }

  void update(int64_t i, int64_t local, int g, const T* target, const T* out) const {
    V delta[triangle(N)];
    for (V& v : delta) v = V{};
    if (s.H) correction(out, local * B + g, delta);
    const bool mixed = s.feedback.statistic != kNone;
    const auto move = [&](int k, T low, T high) GEOF_LAMBDA {
      const int64_t at = int64_t(k) * B + g;
      V v = load<T, W>(s.feedback.z + i * t + at);
      if (mixed) v += (load<T, W>(target + local * t + at) - v) * s.mix;
      v += delta[k] * s.strength;
      store<T, W>(s.next + i * t + at, clip(v, low, high));
    };
    each(m, [&](auto r) GEOF_LAMBDA {
      each(r, [&](auto c) GEOF_LAMBDA { move(strict(r, c), -s.offdiagonal, s.offdiagonal); });
    });
    each(m, [&](auto r) GEOF_LAMBDA { move(scale(m, r), s.low, s.high); });
  }
};

template <class T, int W, int M>
struct EvolveBackward : EvolveBase<T, W, M> {
  using Base = EvolveBase<T, W, M>;
  using Back = EdgeMomentsBackward<T, W, M>;
  using typename Base::V, typename Base::Rows, typename Base::Few;
  using Base::B, Base::N, Base::columns, Base::d, Base::ld, Base::m, Base::nodes, Base::p;
  using Base::s, Base::second, Base::t;

  using Base::Base;

  int64_t map_size() const { return s.H ? int64_t(s.H) * 2 * m + int64_t(p) * s.H + p : 0; }
  int64_t scratch_size() const {
    return nodes * (3 * t + 3 * d) + (4 * m + 3 * s.H + 2 * p) * ld;
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

  void collect(const T* sums, int64_t maps) const {
    const int64_t first = int64_t(s.H) * 2 * m, second = int64_t(p) * s.H;
    for (int64_t k = 0; k < maps; ++k) {
      T total = 0;
      for (int group = 0; group < kGroups; ++group) total += sums[group * maps + k];
      if (k < first) {
        s.grad_hidden[k] = total;
      } else if (k < first + second) {
        s.grad_output[k - first] = total;
      } else {
        s.grad_bias[k - first - second] = total;
      }
    }
  }

  void chunk(int64_t index, T* scratch, T* sums, const typename Back::Edges& edges) const {
    const int64_t begin = index * nodes, count = std::min(nodes, s.feedback.n - begin);
    T *grad_target = scratch, *outer = grad_target + nodes * t, *curve = outer + nodes * t;
    T *first = curve + nodes * t, *pull = first + nodes * d, *grad_first = pull + nodes * d;
    T *maps = grad_first + nodes * d;
    std::copy(s.feedback.grad_aggregate + begin * d, s.feedback.grad_aggregate + (begin + count) * d,
              pull);
    move_back(begin, count, grad_target, pull, maps, sums);
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
  void move_back(int64_t begin, int64_t count, T* grad_target, T* pull, T* memory, T* sums) const {
    T *q = memory, *grad_q = q + 2 * m * ld, *hidden = grad_q + 2 * m * ld;
    T *slope = hidden + s.H * ld, *pushed = slope + s.H * ld, *out = pushed + s.H * ld;
    T* grad_out = out + p * ld;
    if (s.H) {
      this->pack(begin, count, q);
      multiply(this->first_map(), q, hidden, ld, int(columns));
      this->activate(begin, count, hidden, slope);
      multiply(this->second_map(), hidden, out, ld, int(columns));
    }
    this->each_group(count, [&](int64_t i, int g) {
      update(begin + i, i, g, grad_target, out, grad_out);
    });
    if (!s.H) return;
    this->clear_padding(grad_out, p, count);
    multiply(this->second_map().transposed(), grad_out, pushed, ld, int(columns));
    deactivate(begin, count, pushed, slope);
    multiply(this->first_map().transposed(), pushed, grad_q, ld, int(columns));
    unpack(begin, count, grad_q, pull);
    const int64_t first = int64_t(s.H) * 2 * m, second = int64_t(p) * s.H;
    add_outer(pushed, s.H, q, 2 * m, ld, int(columns), sums);
    add_outer(grad_out, p, hidden, s.H, ld, int(columns), sums + first);
    for (int r = 0; r < p; ++r) sums[first + second + r] += row_sum(grad_out + r * ld);
  }

  T row_sum(const T* row) const {
    constexpr int F = kWidth<T>;
    Vec<T, F> total{};
    for (int64_t k = 0; k < columns; k += F) total += load<T, F>(row + k);
    return sum<T, F>(total);
  }

  // Through SiLU; the signature's share collects all blocks of a node.
  void deactivate(int64_t begin, int64_t count, T* pushed, const T* slope) const {
    constexpr int F = kWidth<T>;
    for (int h = 0; h < s.H; ++h) {
      T* row = pushed + h * ld;
      for (int64_t k = 0; k < columns; k += F)
        store<T, F>(row + k,
                    Vec<T, F>(load<T, F>(row + k) * load<T, F>(slope + h * ld + k)));
      T* own = s.grad_shared + begin * s.H + h;
      for (int64_t i = 0; i < count; ++i) {
        V total{};
        for (int g = 0; g < B; g += W) total += load<T, W>(row + i * B + g);
        own[i * s.H] = sum<T, W>(total);
      }
    }
  }

  void unpack(int64_t begin, int64_t count, const T* grad_q, T* pull) const {
    this->each_group(count, [&](int64_t i, int g) GEOF_LAMBDA {
      const int64_t to = int64_t(g) * m, from = i * B + g;
      V x[N];
      each(m, [&](auto k) GEOF_LAMBDA { x[k] = load<T, W>(grad_q + k * ld + from); });
      write_features<T, W, M>(s.grad_x + (begin + i) * d + to, m, x);
      read_features<T, W, M>(pull + i * d + to, m, x);
      each(m, [&](auto k) GEOF_LAMBDA { x[k] += load<T, W>(grad_q + (m + k) * ld + from); });
      write_features<T, W, M>(pull + i * d + to, m, x);
    });
  }

  // Reverse of Eq. (12). What the clip changed has no gradient; landing on the bound counts as
  // changed, unless nothing could have moved the coordinates at all.
  void update(int64_t i, int64_t local, int g, T* grad_target, const T* out, T* grad_out) const {
    V delta[triangle(N)];
    const bool mixed = s.feedback.statistic != kNone, still = !mixed && !s.H;
    const auto move = [&](int k, T low, T high) GEOF_LAMBDA {
      const int64_t at = int64_t(k) * B + g;
      V own = load<T, W>(s.grad_next + i * t + at);
      if (still) {
        const V z = load<T, W>(s.feedback.z + i * t + at);
        own = z >= low ? own : V{};
        own = z <= high ? own : V{};
      } else {
        const V next = load<T, W>(s.next + i * t + at);
        own = next > low ? own : V{};
        own = next < high ? own : V{};
      }
      store<T, W>(s.feedback.grad_z + i * t + at, V(mixed ? own * (T(1) - s.mix) : own));
      if (mixed) store<T, W>(grad_target + local * t + at, V(own * s.mix));
      delta[k] = own * s.strength;
    };
    each(m, [&](auto r) GEOF_LAMBDA {
      each(r, [&](auto c) GEOF_LAMBDA { move(strict(r, c), -s.offdiagonal, s.offdiagonal); });
    });
    each(m, [&](auto r) GEOF_LAMBDA { move(scale(m, r), s.low, s.high); });
    if (s.H) correction_backward(out, local * B + g, delta, grad_out);
  }

  GEOF_INLINE void correction_backward(const T* out, int64_t column, const V* delta,
                                       T* grad_out) const {
    const int right = (m - 1) * s.rank;
    for (int k = 0; k < s.rank; ++k) {
      V v[N], gv[N];
      each(m, [&](auto r) GEOF_LAMBDA {
        gv[r] = V{};
        if (r < m - 1) v[r] = this->output(out, right + r * s.rank + k, column);
      });
      each(m, [&](auto r) GEOF_LAMBDA {
        if (r == 0) return;
        const int at = (r - 1) * s.rank + k;
        const V u = this->output(out, at, column);
        V gu{};
        each(r, [&](auto c) GEOF_LAMBDA {
          gu += delta[strict(r, c)] * v[c];
          gv[c] += delta[strict(r, c)] * u;
        });
        store<T, W>(grad_out + at * ld + column, gu);
      });
      each(m, [&](auto c) GEOF_LAMBDA {
        if (c < m - 1) store<T, W>(grad_out + (right + c * s.rank + k) * ld + column, gv[c]);
      });
    }
    each(m, [&](auto r) GEOF_LAMBDA {
      store<T, W>(grad_out + (2 * right + r) * ld + column, delta[scale(m, r)]);
    });
  }
};

}  // namespace geof
