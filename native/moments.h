// Weights, first and second moments of every neighbourhood, Eqs. (4), (6) and (8) in
// environment coordinates, and their gradients:
//
//   w_ij = exp(-|h_i - h_j|^2 / tau) / sum,  r_ij = y_j - y_i,
//   first_i = sum_j w_ij y_j,  second_i = sum_j w_ij r_ij r_ij^T  (packed lower triangle).
//
// Edges may carry terms: then exp(-|h_i - h_j|^2 / tau + b_ij), and y_j + e_ij in the place of y_j.
//
// Edges are sorted by target: a neighbourhood is a row. An edge's vectors live in registers.
#pragma once

#include <limits>
#include <vector>

#include "lanes.h"
#include "tasks.h"

namespace geof {

template <class T>
struct MomentArguments {
  int threads;
  int64_t n, E;
  int m, B;
  T temperature;
  const T *h, *y;          // (n, m, B)
  const int64_t* pointer;  // (n + 1), rows of incoming edges
  const int32_t* source;   // (E), ascending in each row
  const uint8_t* active;   // (E) or null: repeated edges count once
  T* weight;               // (E)
  T *first, *second;       // (n, m, B), (n, t, B); second may be null
  // Backward only.
  const T *grad_weight, *grad_first, *grad_second;  // grad_weight and grad_second may be null
  const int32_t *target, *by_source;                // (E); the edges of each span by source
  T *grad_h, *grad_y;                               // (n, m, B)
  // Terms of edges, each or null.
  const T* bias;       // (E), b_ij
  const int32_t* row;  // (E), which row of the table e_ij is, -1 for none
  const T* table;      // (rows, m, B)
  int64_t rows;
  T *grad_bias, *grad_table;  // backward only
  int64_t first_target;       // forward only: the row of h and y where the targets begin
};

constexpr int kTile = 16;  // neighbours whose residuals are held at once

// |u - v|^2, eight partial sums in a fixed order.
template <class T>
GEOF_INLINE T squared_distance(const T* u, const T* v, int64_t d) {
  constexpr int W = 32 / sizeof(T);
  Vec<T, W> even{}, odd{};
  int64_t k = 0;
  for (; k + 2 * W <= d; k += 2 * W) {
    const Vec<T, W> a = load<T, W>(u + k) - load<T, W>(v + k);
    const Vec<T, W> b = load<T, W>(u + k + W) - load<T, W>(v + k + W);
    even += a * a;
    odd += b * b;
  }
  T rest = 0;
  for (; k < d; ++k) rest += (u[k] - v[k]) * (u[k] - v[k]);
  return sum<T, W>(even + odd) + rest;
}

template <class T, int W, int M>
struct EdgeMoments {
  using V = Vec<T, W>;
  using A = MomentArguments<T>;

  static void run(const A& s) {
    const Count<M> m = known<M>(s.m);
    const int64_t d = int64_t(m) * s.B, t = int64_t(triangle(m)) * s.B;
#pragma omp parallel for schedule(dynamic, 1) num_threads(s.threads) if (s.E * d > kAlone)
    for (int64_t begin = 0; begin < s.n; begin += kNodes)
      for (int64_t i = begin; i < begin + kNodes && i < s.n; ++i) {
        weigh(s, i, d);
        sum_row(s, i, m, s.first + i * d, s.second ? s.second + i * t : nullptr);
      }
  }

  // The weights of row i, Eq. (4). The self-loop's energy is exactly zero, so the sum is at least 1.
  static void weigh(const A& s, int64_t i, int64_t d) {
    if (s.bias) return weigh_biased(s, i, d);
    constexpr int N = 32 / sizeof(T);
    const int64_t end = s.pointer[i + 1];
    const T* hi = s.h + (s.first_target + i) * d;
    T total = 0;
    for (int64_t tile = s.pointer[i]; tile < end; tile += kTile) {
      const int count = int(end - tile < kTile ? end - tile : kTile);
      T energy[kTile] = {};
      for (int k = 0; k < count; ++k) {
        if (tile + k + 4 < s.E) {
          const int64_t ahead = s.source[tile + k + 4] * d;
          prefetch(s.h + ahead, d);
        }
        energy[k] = squared_distance(hi, s.h + s.source[tile + k] * d, d);
      }
      for (int k = 0; k < count; k += N)
        store<T, N>(energy + k, exponential<T, N>(-load<T, N>(energy + k) / s.temperature));
      for (int k = 0; k < count; ++k) {
        s.weight[tile + k] = s.active && !s.active[tile + k] ? T(0) : energy[k];
        total += s.weight[tile + k];
      }
    }
    const T inverse = T(1) / total;
    for (int64_t e = s.pointer[i]; e < end; ++e) s.weight[e] *= inverse;
  }

  // The same with a bias, which may be large: the largest exponent, at least the self-loop's zero,
  // is subtracted. Biases of zero give the bits of none.
  static void weigh_biased(const A& s, int64_t i, int64_t d) {
    constexpr int N = 32 / sizeof(T);
    constexpr T never = -std::numeric_limits<T>::infinity();
    const int64_t begin = s.pointer[i], end = s.pointer[i + 1];
    const T* hi = s.h + (s.first_target + i) * d;
    T most = 0, total = 0;
    for (int64_t e = begin; e < end; ++e) {
      if (e + 4 < s.E) prefetch(s.h + s.source[e + 4] * d, d);
      const T energy = squared_distance(hi, s.h + s.source[e] * d, d);
      s.weight[e] = s.active && !s.active[e] ? never : -energy / s.temperature + s.bias[e];
      if (s.weight[e] > most) most = s.weight[e];
    }
    for (int64_t tile = begin; tile < end; tile += kTile) {
      const int count = int(end - tile < kTile ? end - tile : kTile);
      T exponent[kTile] = {};
      for (int k = 0; k < count; ++k) exponent[k] = s.weight[tile + k] - most;
      for (int k = 0; k < count; k += N)
        store<T, N>(exponent + k, exponential<T, N>(load<T, N>(exponent + k)));
      for (int k = 0; k < count; ++k) {
        s.weight[tile + k] = s.weight[tile + k] == never ? T(0) : exponent[k];
        total += s.weight[tile + k];
      }
    }
    const T inverse = T(1) / total;
    for (int64_t e = begin; e < end; ++e) s.weight[e] *= inverse;
  }

  // What edge e adds to the message of its source, from block g on; null for nothing.
  static GEOF_INLINE const T* carried(const A& s, int64_t e, int64_t d, int64_t g) {
    return s.row[e] < 0 ? nullptr : s.table + s.row[e] * d + g;
  }

  // Both moments of row i from its weights; second may be null.
  static void sum_row(const A& s, int64_t i, Count<M> m, T* first, T* second) {
    s.table ? sum_row_of<true>(s, i, m, first, second) : sum_row_of<false>(s, i, m, first, second);
  }

  template <bool Carrying>
  static void sum_row_of(const A& s, int64_t i, Count<M> m, T* first, T* second) {
    const int64_t B = s.B, d = m * B, begin = s.pointer[i], end = s.pointer[i + 1];
    const T* yi = s.y + (s.first_target + i) * d;
    V residual[kTile][capacity(M)];
    for (int64_t g = 0; g < B; g += W) {
      V sums[capacity(M)];
      each(m, [&](auto r) GEOF_LAMBDA { sums[r] = load<T, W>(yi + r * B + g); });
      for (int64_t tile = begin; tile < end; tile += kTile) {
        const int count = int(end - tile < kTile ? end - tile : kTile);
        const T* w = s.weight + tile;
        for (int k = 0; k < count; ++k) {
          if (tile + k + 4 < s.E) prefetch(s.y + s.source[tile + k + 4] * d, d);
          const T* yj = s.y + s.source[tile + k] * d + g;
          const T* own = nullptr;
          if constexpr (Carrying) own = carried(s, tile + k, d, g);
          each(m, [&](auto r) GEOF_LAMBDA {
            V message = load<T, W>(yj + r * B);
            if (Carrying && own) message += load<T, W>(own + r * B);
            residual[k][r] = message - load<T, W>(yi + r * B + g);
            sums[r] += residual[k][r] * w[k];
          });
        }
        if (second) outer(residual, w, count, second + g, m, B, tile == begin);
      }
      each(m, [&](auto r) GEOF_LAMBDA { store<T, W>(first + r * B + g, sums[r]); });
    }
  }

  // second (+)= sum_k w_k r_k r_k^T, two rows at a time so that their sums stay in registers.
  static GEOF_INLINE void outer(const V (*residual)[capacity(M)], const T* w, int count, T* second,
                                Count<M> m, int64_t B, bool fresh) {
    if constexpr (kUnrolled && M > 0 && M % 2 == 0) {
      each(Constant<M / 2>{}, [&](auto half) GEOF_LAMBDA {
        constexpr int r = 2 * half, s = r + 1;
        V upper[s], lower[s + 1];
        const auto entries = [&](const auto& f) GEOF_LAMBDA {
          each(Constant<s>{}, [&](auto c) GEOF_LAMBDA { f(upper[c], second + packed(r, c) * B); });
          each(Constant<s + 1>{}, [&](auto c) GEOF_LAMBDA { f(lower[c], second + packed(s, c) * B); });
        };
        if (fresh) {
          entries([](V& v, const T*) GEOF_LAMBDA { v = V{}; });
        } else {
          entries([](V& v, const T* at) GEOF_LAMBDA { v = load<T, W>(at); });
        }
        for (int k = 0; k < count; ++k) {
          const V* x = residual[k];
          const V one = x[r] * w[k], two = x[s] * w[k];
          each(Constant<s>{}, [&](auto c) GEOF_LAMBDA {
            upper[c] += one * x[c];
            lower[c] += two * x[c];
          });
          lower[s] += two * x[s];
        }
        entries([](V& v, T* at) GEOF_LAMBDA { store<T, W>(at, v); });
      });
    } else {
      for (int r = 0; r < m; ++r)
        for (int c = 0; c <= r; ++c) {
          T* at = second + packed(r, c) * B;
          V total = fresh ? V{} : load<T, W>(at);
          for (int k = 0; k < count; ++k) total += residual[k][r] * w[k] * residual[k][c];
          store<T, W>(at, total);
        }
    }
  }
};

// With K_i = G_i + G_i^T for the gradient G_i of second_i, p_i that of first_i and
//
//   score_ij = p_i . r_ij + r_ij^T K_i r_ij / 2 + d loss / d w_ij,
//
// (the softmax does not see that p_i . y_i is left out), f_ij = -2 w_ij (score_ij - mean_i) / tau:
//
//   grad y_j += w_ij (K_i r_ij + p_i),   grad y_i -= w_ij K_i r_ij,
//   grad h_i += f_ij (h_i - h_j),        grad h_j -= f_ij (h_i - h_j).
//
// What goes to j, and what an edge carries receives, waits in the edge's row until the span is done
// (tasks.h). The gradient of b_ij is w_ij (score_ij - mean_i).
template <class T, int W, int M>
struct EdgeMomentsBackward {
  using V = Vec<T, W>;
  using A = MomentArguments<T>;

  // Memory for the edges of one span.
  struct Edges {
    T *row, *force;  // (edges, m, B) and (edges)
    int64_t begin;   // the span's first edge
  };

  static Edges edges_of(const A& s, int64_t most) {
    const int64_t d = int64_t(s.m) * s.B;
    T* memory = thread_scratch<T, kEdgeScratch>(most * (d + 1));
    return {memory, memory + most * d, 0};
  }

  static void run(const A& s) {
    const Count<M> m = known<M>(s.m);
    const int64_t d = int64_t(m) * s.B, t = int64_t(triangle(m)) * s.B;
    const std::vector<int64_t> begins = spans_of(s.pointer, s.n);
    Edges edges = edges_of(s, largest_span(begins, s.pointer));
    clear(s, d);
    for (size_t k = 0; k + 1 < begins.size(); ++k) {
      edges.begin = s.pointer[begins[k]];
#pragma omp parallel for schedule(dynamic, 1) num_threads(s.threads) if (s.E * d > kAloneAtEdges)
      for (int64_t begin = begins[k]; begin < begins[k + 1]; begin += kNodes)
        for (int64_t i = begin; i < begin + kNodes && i < begins[k + 1]; ++i)
          row(s, i, m, s.grad_first + i * d, s.grad_second ? s.grad_second + i * t : nullptr, edges);
      collect(s, begins[k], begins[k + 1], d, edges);
    }
    give_back<T, kEdgeScratch>();
  }

  static void clear(const A& s, int64_t d) {
#pragma omp parallel for schedule(static) num_threads(s.threads) if (s.n * d > kAloneAtEdges)
    for (int64_t i = 0; i < s.n; i += kNodes) {
      const int64_t count = std::min(kNodes, s.n - i) * d;
      std::fill_n(s.grad_y + i * d, count, T(0));
      std::fill_n(s.grad_h + i * d, count, T(0));
    }
    if (s.table) std::fill_n(s.grad_table, s.rows * d, T(0));
  }

  // bent = K r from the packed gradient of the second moment, of which `grad` gives the entries.
  template <class Entry>
  static GEOF_INLINE void bend(const Entry& grad, const V* x, V* bent, Count<M> m) {
    each(m, [&](auto r) GEOF_LAMBDA {
      const V corner = grad(packed(r, r));
      bent[r] = (corner + corner) * x[r];
      each(r, [&](auto c) GEOF_LAMBDA {
        const V k = grad(packed(r, c));
        bent[r] += k * x[c];
        bent[c] += k * x[r];
      });
    });
  }

  // The edges of row i: what they do to i, and what they leave for their sources. `pull` is p_i,
  // `curve` the packed gradient of the second moment or null.
  static void row(const A& s, int64_t i, Count<M> m, const T* pull, const T* curve,
                  const Edges& edges) {
    s.table ? row_of<true>(s, i, m, pull, curve, edges) : row_of<false>(s, i, m, pull, curve, edges);
  }

  template <bool Carrying>
  static void row_of(const A& s, int64_t i, Count<M> m, const T* pull, const T* curve,
                     const Edges& edges) {
    const int64_t B = s.B, d = m * B, begin = s.pointer[i], end = s.pointer[i + 1];
    T *rows = edges.row + (begin - edges.begin) * d, *force = edges.force + (begin - edges.begin);
    for (int64_t e = begin; e < end; ++e) {
      if (e + 2 < s.E) prefetch(s.y + s.source[e + 2] * d, d);
      prefetch(s.h + s.source[e] * d, d);
      V total{};
      for (int64_t g = 0; g < B; g += W)
        total += edge_of<Carrying>(s, i, e, g, m, pull, curve, rows + (e - begin) * d);
      force[e - begin] = sum<T, W>(total) + (s.grad_weight ? s.grad_weight[e] : T(0));
    }
    settle(s, i, d, pull, rows, force);
  }

  // W blocks of edge e: put what its source is to receive into `row`, return their part of the score.
  static V edge(const A& s, int64_t i, int64_t e, int64_t g, Count<M> m, const T* pull,
                const T* curve, T* row) {
    return s.table ? edge_of<true>(s, i, e, g, m, pull, curve, row)
                   : edge_of<false>(s, i, e, g, m, pull, curve, row);
  }

  template <bool Carrying>
  static GEOF_INLINE V edge_of(const A& s, int64_t i, int64_t e, int64_t g, Count<M> m,
                               const T* pull, const T* curve, T* row) {
    const int64_t B = s.B, d = m * B;
    const T *yi = s.y + i * d, *yj = s.y + s.source[e] * d, w = s.weight[e];
    V x[capacity(M)], bent[capacity(M)], total{};
    const T* own = nullptr;
    if constexpr (Carrying) own = EdgeMoments<T, W, M>::carried(s, e, d, g);
    each(m, [&](auto r) GEOF_LAMBDA {
      V message = load<T, W>(yj + r * B + g);
      if (Carrying && own) message += load<T, W>(own + r * B);
      x[r] = message - load<T, W>(yi + r * B + g);
    });
    if (curve) {
      bend([&](int at) GEOF_LAMBDA { return load<T, W>(curve + at * B + g); }, x, bent, m);
    } else {
      each(m, [&](auto r) GEOF_LAMBDA { bent[r] = V{}; });
    }
    each(m, [&](auto r) GEOF_LAMBDA {
      const V p = load<T, W>(pull + r * B + g);
      total += (p + bent[r] * T(0.5)) * x[r];
      store<T, W>(row + r * B + g, V((bent[r] + p) * w));
    });
    return total;
  }

  // From the scores of row i's edges, in `force`, to their forces, and what both do to i.
  static void settle(const A& s, int64_t i, int64_t d, const T* pull, const T* rows, T* force) {
    const int64_t begin = s.pointer[i], end = s.pointer[i + 1];
    T mean = 0;
    for (int64_t e = begin; e < end; ++e) mean += s.weight[e] * force[e - begin];
    const T rate = T(-2) / s.temperature;
    if (s.grad_bias)
      for (int64_t e = begin; e < end; ++e)
        s.grad_bias[e] = s.weight[e] * (force[e - begin] - mean);
    if (std::isfinite(rate)) {
      for (int64_t e = begin; e < end; ++e)
        force[e - begin] = rate * s.weight[e] * (force[e - begin] - mean);
    } else {  // so small a temperature has no reciprocal, but what is nothing stays nothing
      for (int64_t e = begin; e < end; ++e)
        force[e - begin] = T(-2) * s.weight[e] * (force[e - begin] - mean) / s.temperature;
    }
    feel(s, i, d, pull, rows, force);
  }

  // Call work<N, S>(c) for stretches of S vectors of N entries from c on: their sums fit registers.
  template <class Work>
  static GEOF_INLINE void each_stretch(int64_t d, const Work& work) {
    constexpr int N = 32 / sizeof(T);
    int64_t c = 0;
    for (; c + 8 * N <= d; c += 8 * N) work.template operator()<N, 8>(c);
    for (; c + N <= d; c += N) work.template operator()<N, 1>(c);
    for (; c < d; ++c) work.template operator()<1, 1>(c);
  }

  // What row i's edges do to i itself: grad y_i -= w K r, grad h_i += f (h_i - h_j).
  static void feel(const A& s, int64_t i, int64_t d, const T* pull, const T* rows,
                   const T* force) {
    const int64_t begin = s.pointer[i], count = s.pointer[i + 1] - begin;
    each_stretch(d, [&]<int N, int S>(int64_t c) GEOF_LAMBDA {
      using R = Vec<T, N>;
      R sums[S];
      const T *p = pull + c, *hi = s.h + i * d + c;
      T *gy = s.grad_y + i * d + c, *gh = s.grad_h + i * d + c;
      each(Constant<S>{}, [&](auto k) GEOF_LAMBDA { sums[k] = load<T, N>(gy + k * N); });
      for (int64_t e = 0; e < count; ++e)
        each(Constant<S>{}, [&](auto k) GEOF_LAMBDA {
          sums[k] += load<T, N>(p + k * N) * s.weight[begin + e] -
                     load<T, N>(rows + e * d + c + k * N);
        });
      each(Constant<S>{}, [&](auto k) GEOF_LAMBDA { store<T, N>(gy + k * N, sums[k]); });
      each(Constant<S>{}, [&](auto k) GEOF_LAMBDA { sums[k] = load<T, N>(gh + k * N); });
      for (int64_t e = 0; e < count; ++e) {
        const T* hj = s.h + s.source[begin + e] * d + c;
        each(Constant<S>{}, [&](auto k) GEOF_LAMBDA {
          sums[k] += (load<T, N>(hi + k * N) - load<T, N>(hj + k * N)) * force[e];
        });
      }
      each(Constant<S>{}, [&](auto k) GEOF_LAMBDA { store<T, N>(gh + k * N, sums[k]); });
    });
  }

  // The sources of a span's edges receive what was left for them.
  static void collect(const A& s, int64_t first, int64_t last, int64_t d, const Edges& edges) {
    const int64_t begin = s.pointer[first], count = s.pointer[last] - begin;
#pragma omp parallel for schedule(dynamic, 1) num_threads(s.threads) if (count * d > kAloneAtEdges)
    for (int piece = 0; piece < kPieces; ++piece) {
      const int64_t from = at_a_source(s, begin, count, piece);
      const int64_t to = at_a_source(s, begin, count, piece + 1);
      for (int64_t k = from; k < to;) {
        int64_t end = k + 1;
        while (end < to && s.source[s.by_source[end]] == s.source[s.by_source[k]]) ++end;
        receive(s, k, end, to, d, edges);
        k = end;
      }
    }
    if (s.table) collect_table(s, begin, begin + count, d, edges);
  }

  // What a span's edges carried receives its gradient: a thread has columns of its own and goes
  // through the edges in order, so no two write to one place and every sum has a fixed order.
  static void collect_table(const A& s, int64_t begin, int64_t end, int64_t d, const Edges& edges) {
    constexpr int N = 32 / sizeof(T);
#pragma omp parallel for schedule(static) num_threads(s.threads) if ((end - begin) * d > kAloneAtEdges)
    for (int64_t c = 0; c < d; c += 2 * N) {
      const bool whole = c + 2 * N <= d;
      for (int64_t e = begin; e < end; ++e) {
        if (s.row[e] < 0) continue;
        const T* from = edges.row + (e - edges.begin) * d + c;
        T* to = s.grad_table + s.row[e] * d + c;
        if (whole) {
          store<T, N>(to, Vec<T, N>(load<T, N>(to) + load<T, N>(from)));
          store<T, N>(to + N, Vec<T, N>(load<T, N>(to + N) + load<T, N>(from + N)));
        } else {
          for (int64_t k = 0; k < d - c; ++k) to[k] += from[k];
        }
      }
    }
  }

  // Where a piece begins in by_source: no source is shared by two.
  static int64_t at_a_source(const A& s, int64_t begin, int64_t count, int piece) {
    const int64_t end = begin + count;
    int64_t k = begin + count * piece / kPieces;
    if (k == begin) return k;
    while (k < end && s.source[s.by_source[k]] == s.source[s.by_source[k - 1]]) ++k;
    return k;
  }

  // One source's edges by_source[k..end): grad y_j += rows, grad h_j += f (h_j - h_i).
  static void receive(const A& s, int64_t k, int64_t end, int64_t last, int64_t d,
                      const Edges& edges) {
    for (int64_t ahead = end; ahead < last && ahead < end + 4; ++ahead) {
      const int64_t e = s.by_source[ahead];
      prefetch(edges.row + (e - edges.begin) * d, d);
      prefetch(s.h + s.target[e] * d, d);
    }
    const int64_t j = s.source[s.by_source[k]];
    each_stretch(d, [&]<int N, int S>(int64_t c) GEOF_LAMBDA {
      using R = Vec<T, N>;
      R sums[S];
      const T* hj = s.h + j * d + c;
      T *gy = s.grad_y + j * d + c, *gh = s.grad_h + j * d + c;
      each(Constant<S>{}, [&](auto v) GEOF_LAMBDA { sums[v] = load<T, N>(gy + v * N); });
      for (int64_t at = k; at < end; ++at) {
        const T* row = edges.row + (s.by_source[at] - edges.begin) * d + c;
        each(Constant<S>{}, [&](auto v) GEOF_LAMBDA { sums[v] += load<T, N>(row + v * N); });
      }
      each(Constant<S>{}, [&](auto v) GEOF_LAMBDA { store<T, N>(gy + v * N, sums[v]); });
      each(Constant<S>{}, [&](auto v) GEOF_LAMBDA { sums[v] = load<T, N>(gh + v * N); });
      for (int64_t at = k; at < end; ++at) {
        const int64_t e = s.by_source[at];
        const T *hi = s.h + s.target[e] * d + c, f = edges.force[e - edges.begin];
        each(Constant<S>{}, [&](auto v) GEOF_LAMBDA {
          sums[v] += (load<T, N>(hj + v * N) - load<T, N>(hi + v * N)) * f;
        });
      }
      each(Constant<S>{}, [&](auto v) GEOF_LAMBDA { store<T, N>(gh + v * N, sums[v]); });
    });
  }
};

}  // namespace geof
