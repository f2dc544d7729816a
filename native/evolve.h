// From the moments to the next coordinates in one sweep, Eqs. (6), (8), (10), (11) and (12).
//
// A few nodes at a time, each block a column of matrices that stay in the cache:
//
//   q (2m, columns) = [xi_b || agg_b],  hidden (H, columns) = SiLU(W_1 q + shared_i),
//   out (p, columns) = W_2 hidden + bias = [U_1.., V_0.., d],
//   z' = clip(z + mix (target - z) + strength [lower(U V^T), d]).
//
// Of U's m rows the first and of V's the last never reach the strictly lower triangle; the caller
// leaves them out of W_2, so p = 2 (m - 1) rank + m. Neither target nor correction exists whole.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <vector>

#include "feedback.h"
#include "products.h"
#include "tasks.h"

namespace geof {

template <class T>
struct EvolveArguments {
  FeedbackArguments<T> feedback;  // its target and grad_target are not used
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

template <class T, int W, int M>
struct EvolveBase {
  using V = Vec<T, W>;
  using A = EvolveArguments<T>;
  static constexpr int N = capacity(M);

  const A& s;
  const int m, B, p;
  const int64_t d, t, nodes, columns, ld;

  explicit EvolveBase(const A& arguments)
      : s(arguments),
        m(M ? M : arguments.feedback.m),
        B(arguments.feedback.B),
        p(2 * (m - 1) * arguments.rank + m),
        d(int64_t(m) * B),
        t(int64_t(triangle(m)) * B),
        nodes(std::max(1, kChunk / B)),
        columns((nodes * B + kColumnStep - 1) / kColumnStep * kColumnStep),
        ld(columns + kRowPadding) {}

  int64_t chunks() const { return (s.feedback.n + nodes - 1) / nodes; }

  // The feedback's arguments for the nodes from `begin` on.
  FeedbackArguments<T> feedback_from(int64_t begin) const {
    FeedbackArguments<T> f = s.feedback;
    const auto skip = [](auto*& pointer, int64_t count) {
      if (pointer) pointer += count;
    };
    f.n -= begin;
    for (const T** lanes : {&f.z, &f.second}) skip(*lanes, begin * t);
    for (const T** features : {&f.message, &f.first, &f.grad_aggregate}) skip(*features, begin * d);
    for (T** lanes : {&f.grad_z, &f.grad_second}) skip(*lanes, begin * t);
    for (T** features : {&f.aggregate, &f.grad_message, &f.grad_first}) skip(*features, begin * d);
    return f;
  }

  Small<T> first_map() const { return {s.hidden, s.H, 2 * m, 2 * m, 1}; }
  Small<T> second_map() const { return {s.output, p, s.H, s.H, 1}; }

  // q, with zeros in the padding.
  void pack(int64_t begin, int64_t count, T* q) const {
    for (int64_t i = 0; i < count; ++i)
      for (int g = 0; g < B; g += W) {
        const int64_t from = (begin + i) * d + int64_t(g) * m;
        V x[N];
        read_features<T, W, M, 1>(s.x + from, m, 0, x);
        for (int k = 0; k < m; ++k) store<T, W>(q + k * ld + i * B + g, x[k]);
        read_features<T, W, M, 1>(s.feedback.aggregate + from, m, 0, x);
        for (int k = 0; k < m; ++k) store<T, W>(q + (m + k) * ld + i * B + g, x[k]);
      }
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

  // A row of the controller's output; columns of neighbouring nodes lie side by side.
  template <int L>
  GEOF_INLINE Vec<T, L> output(const T* out, int at, int64_t column) const {
    return load<T, L>(out + at * ld + column) + s.bias[at];
  }
};

template <class T, int W, int M>
struct Evolve : EvolveBase<T, W, M> {
  using Base = EvolveBase<T, W, M>;
  using typename Base::V;
  using Base::B, Base::N, Base::columns, Base::d, Base::ld, Base::m, Base::nodes, Base::p, Base::s, Base::t;

  using Base::Base;

  static void run(const EvolveArguments<T>& arguments) {
    const Evolve self(arguments);
    const int threads = arguments.feedback.threads;
    const int64_t size = self.nodes * self.t + (2 * self.m + self.s.H + self.p) * self.ld;
    const int64_t chunks = self.chunks();
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads) if (chunks > 1)
    for (int64_t k = 0; k < chunks; ++k) self.chunk(k, thread_scratch<T>(size));
  }

  void chunk(int64_t k, T* scratch) const {
    const int64_t begin = k * nodes, count = std::min(nodes, s.feedback.n - begin);
    T *target = scratch, *q = target + nodes * t, *hidden = q + 2 * m * ld, *out = hidden + s.H * ld;
    FeedbackArguments<T> feedback = this->feedback_from(begin);
    feedback.target = target;
    each_group<T, W, M>(0, count, B, [&]<int L, int P>(int64_t i, int g) {
      FeedbackTarget<T, W, M>::template group<L, P>(feedback, i, g, m, B);
    });
    if (s.H) {
      this->pack(begin, count, q);
      multiply(this->first_map(), q, hidden, ld, int(columns));
      this->activate(begin, count, hidden, nullptr);
      multiply(this->second_map(), hidden, out, ld, int(columns));
    }
    each_group<T, W, M>(0, count, B, [&]<int L, int P>(int64_t i, int g) {
      this->template update<L, P>(begin + i, i, g, target, out);
    });
  }

  // Lower(U V^T), one column of U and V at a time, then d.
  template <int L>
  GEOF_INLINE void correction(const T* out, int64_t column, Vec<T, L>* delta) const {
    using V = Vec<T, L>;
    for (int k = 0; k < m * (m - 1) / 2; ++k) delta[k] = V{};
    const int right = (m - 1) * s.rank;
    for (int k = 0; k < s.rank; ++k) {
      V v[N];
      for (int c = 0; c < m - 1; ++c) v[c] = this->template output<L>(out, right + c * s.rank + k, column);
      for (int r = 1; r < m; ++r) {
        const V u = this->template output<L>(out, (r - 1) * s.rank + k, column);
        for (int c = 0; c < r; ++c) delta[strict(r, c)] += u * v[c];
      }
    }
    for (int r = 0; r < m; ++r) delta[scale(m, r)] = this->template output<L>(out, 2 * right + r, column);
  }

  template <int L>
  static GEOF_INLINE Vec<T, L> clip(Vec<T, L> v, T low, T high) {
    v = v < low ? fill<T, L>(low) : v;
    return v > high ? fill<T, L>(high) : v;
  }

  template <int L, int P>
  void update(int64_t i, int64_t local, int g, const T* target, const T* out) const {
    using V = Vec<T, L>;
    V delta[triangle(N)];
    if (s.H) {
      correction<L>(out, local * B + g, delta);
    } else {
      for (int k = 0; k < triangle(m); ++k) delta[k] = V{};
    }
    const int strictly = m * (m - 1) / 2;
    const bool mixed = s.feedback.statistic != kNone;
    for (int k = 0; k < triangle(m); ++k) {
      const int64_t at = int64_t(k) * B + g;
      V v = load<T, L, P>(s.feedback.z + i * t + at, t);
      if (mixed) v += (load<T, L, P>(target + local * t + at, t) - v) * s.mix;
      v += delta[k] * s.strength;
      store<T, L, P>(s.next + i * t + at, t,
                     k < strictly ? clip<L>(v, -s.offdiagonal, s.offdiagonal)
                                  : clip<L>(v, s.low, s.high));
    }
  }
};

template <class T, int W, int M>
struct EvolveBackward : EvolveBase<T, W, M> {
  using Base = EvolveBase<T, W, M>;
  using typename Base::V;
  using Base::B, Base::N, Base::columns, Base::d, Base::ld, Base::m, Base::nodes, Base::p, Base::s, Base::t;

  using Base::Base;

  int64_t map_size() const { return s.H ? int64_t(s.H) * 2 * m + int64_t(p) * s.H + p : 0; }
  int64_t scratch_size() const {
    return nodes * (t + d) + (4 * m + 3 * s.H + 2 * p) * ld;
  }

  static void run(const EvolveArguments<T>& arguments) {
    const EvolveBackward self(arguments);
    const int threads = arguments.feedback.threads;
    const int64_t size = self.scratch_size(), maps = self.map_size(), chunks = self.chunks();
    std::vector<T> sums(kGroups * maps);
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads) if (chunks > 1)
    for (int64_t group = 0; group < kGroups; ++group)
      for (int64_t k = group * chunks / kGroups; k < (group + 1) * chunks / kGroups; ++k)
        self.chunk(k, thread_scratch<T>(size), sums.data() + group * maps);
    if (self.s.H) self.collect(sums.data(), maps);
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

  void chunk(int64_t index, T* scratch, T* sums) const {
    const int64_t begin = index * nodes, count = std::min(nodes, s.feedback.n - begin);
    T *grad_target = scratch, *pull = grad_target + nodes * t, *q = pull + nodes * d;
    T *grad_q = q + 2 * m * ld, *hidden = grad_q + 2 * m * ld, *slope = hidden + s.H * ld;
    T *pushed = slope + s.H * ld, *out = pushed + s.H * ld, *grad_out = out + p * ld;
    std::copy(s.feedback.grad_aggregate + begin * d, s.feedback.grad_aggregate + (begin + count) * d,
              pull);
    if (s.H) {
      this->pack(begin, count, q);
      multiply(this->first_map(), q, hidden, ld, int(columns));
      this->activate(begin, count, hidden, slope);
      multiply(this->second_map(), hidden, out, ld, int(columns));
    }
    each_group<T, W, M>(0, count, B, [&]<int L, int P>(int64_t i, int g) {
      this->template update<L, P>(begin + i, i, g, grad_target, out, grad_out);
    });
    if (s.H) {
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
    FeedbackArguments<T> feedback = this->feedback_from(begin);
    feedback.grad_aggregate = pull;
    feedback.grad_target = grad_target;
    each_group<T, W, M>(0, count, B, [&]<int L, int P>(int64_t i, int g) {
      FeedbackTargetBackward<T, W, M>::template Reverse<L, P>::group(feedback, i, g, m, B);
    });
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
    for (int64_t i = 0; i < count; ++i)
      for (int g = 0; g < B; g += W) {
        const int64_t to = int64_t(g) * m, from = i * B + g;
        V x[N];
        for (int k = 0; k < m; ++k) x[k] = load<T, W>(grad_q + k * ld + from);
        write_features<T, W, M, 1>(s.grad_x + (begin + i) * d + to, m, 0, x);
        read_features<T, W, M, 1>(pull + i * d + to, m, 0, x);
        for (int k = 0; k < m; ++k) x[k] += load<T, W>(grad_q + (m + k) * ld + from);
        write_features<T, W, M, 1>(pull + i * d + to, m, 0, x);
      }
  }

  // Reverse of Eq. (12). What the clip changed has no gradient; landing on the bound counts as
  // changed, unless nothing could have moved the coordinates at all.
  template <int L, int P>
  void update(int64_t i, int64_t local, int g, T* grad_target, const T* out, T* grad_out) const {
    using V = Vec<T, L>;
    V delta[triangle(N)];
    const int strictly = m * (m - 1) / 2;
    const bool mixed = s.feedback.statistic != kNone, still = !mixed && !s.H;
    for (int k = 0; k < triangle(m); ++k) {
      const int64_t at = int64_t(k) * B + g;
      const T low = k < strictly ? -s.offdiagonal : s.low;
      const T high = k < strictly ? s.offdiagonal : s.high;
      V own = load<T, L, P>(s.grad_next + i * t + at, t);
      const V next = load<T, L, P>(s.next + i * t + at, t);
      if (still) {
        const V z = load<T, L, P>(s.feedback.z + i * t + at, t);
        own = z >= low ? own : V{};
        own = z <= high ? own : V{};
      } else {
        own = next > low ? own : V{};
        own = next < high ? own : V{};
      }
      store<T, L, P>(s.feedback.grad_z + i * t + at, t, V(mixed ? own * (T(1) - s.mix) : own));
      if (mixed) store<T, L, P>(grad_target + local * t + at, t, V(own * s.mix));
      delta[k] = own * s.strength;
    }
    if (s.H) correction_backward<L>(out, local * B + g, delta, grad_out);
  }

  template <int L>
  GEOF_INLINE void correction_backward(const T* out, int64_t column, const Vec<T, L>* delta,
                                       T* grad_out) const {
    using V = Vec<T, L>;
    const int right = (m - 1) * s.rank;
    for (int k = 0; k < s.rank; ++k) {
      V v[N], gv[N];
      for (int c = 0; c < m - 1; ++c) {
        v[c] = this->template output<L>(out, right + c * s.rank + k, column);
        gv[c] = V{};
      }
      for (int r = 1; r < m; ++r) {
        const int at = (r - 1) * s.rank + k;
        const V u = this->template output<L>(out, at, column);
        V gu{};
        for (int c = 0; c < r; ++c) {
          gu += delta[strict(r, c)] * v[c];
          gv[c] += delta[strict(r, c)] * u;
        }
        store<T, L>(grad_out + at * ld + column, gu);
      }
      for (int c = 0; c < m - 1; ++c)
        store<T, L>(grad_out + (right + c * s.rank + k) * ld + column, gv[c]);
    }
    for (int r = 0; r < m; ++r)
      store<T, L>(grad_out + (2 * right + r) * ld + column, delta[scale(m, r)]);
  }
};

}  // namespace geof
