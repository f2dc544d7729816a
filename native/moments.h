// Weights, first and second moments of every neighbourhood, Eqs. (4), (6) and (8) in
// environment coordinates, and their gradients:
//
//   w_ij = exp(-|h_i - h_j|^2 / tau) / sum,  r_ij = y_j - y_i,
//   first_i = sum_j w_ij y_j,  second_i = sum_j w_ij r_ij r_ij^T  (packed lower triangle).
//
// Edges are sorted by target. Nothing of size E x d exists: an edge's vectors live in registers.
#pragma once

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
  const T *h, *y;             // (n, m, B)
  const int64_t* pointer;     // (n + 1), rows of incoming edges
  const int32_t* source;      // (E), ascending in each row
  const uint8_t* active;      // (E) or null: repeated edges count once
  T* weight;                  // (E)
  T *first, *second;          // (n, m, B), (n, t, B); second may be null
  // Backward only.
  const T *grad_weight, *grad_first, *grad_second;  // grad_weight and grad_second may be null
  const int32_t* target;        // (E)
  const int64_t* tile_pointer;  // (kTiles + 1)
  const int32_t* tile_edge;     // (E), edges tile by tile
  T* force;                     // (E), scratch
  T *grad_h, *grad_y;           // (n, m, B)
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
    const int m = M ? M : s.m;
    const int64_t d = int64_t(m) * s.B, t = s.second ? int64_t(triangle(m)) * s.B : 0;
    const Partition cutting = cut(s.pointer, s.n);
    const int64_t width = d + t + 1;
    std::vector<T> partial(cutting.slots * width);
    const bool parallel = s.E * d > 16384;
#pragma omp parallel for schedule(dynamic, 1) num_threads(s.threads) if (parallel)
    for (size_t k = 0; k < cutting.tasks.size(); ++k) {
      const Task& task = cutting.tasks[k];
      if (task.slot >= 0) {
        T* own = partial.data() + task.slot * width;
        own[d + t] = accumulate(s, m, task.first, task.begin, task.end, own, own + d);
        continue;
      }
      for (int64_t i = task.first; i < task.last; ++i) {
        T *first = s.first + i * d, *second = s.second + i * t;
        for (int64_t j = 0; j < d; ++j) first[j] = 0;
        for (int64_t j = 0; j < t; ++j) second[j] = 0;
        const T total =
            accumulate(s, m, i, s.pointer[i], s.pointer[i + 1], first, second);
        finish(s, i, d, t, total, s.pointer[i], s.pointer[i + 1]);
      }
    }
#pragma omp parallel for schedule(dynamic, 1) num_threads(s.threads) if (parallel)
    for (size_t k = 0; k < cutting.hubs.size(); ++k) {
      const Hub& hub = cutting.hubs[k];
      T *first = s.first + hub.node * d, *second = s.second + hub.node * t, total = 0;
      for (int64_t j = 0; j < d; ++j) first[j] = 0;
      for (int64_t j = 0; j < t; ++j) second[j] = 0;
      for (int64_t slot = hub.first_slot; slot < hub.last_slot; ++slot) {
        const T* own = partial.data() + slot * width;
        for (int64_t j = 0; j < d; ++j) first[j] += own[j];
        for (int64_t j = 0; j < t; ++j) second[j] += own[d + j];
        total += own[d + t];
      }
      finish(s, hub.node, d, t, total, s.pointer[hub.node], s.pointer[hub.node + 1]);
    }
  }

  // Divide by the normaliser. The self-loop's energy is exactly zero, so it is at least one.
  static void finish(const A& s, int64_t i, int64_t d, int64_t t, T total, int64_t begin,
                     int64_t end) {
    T *first = s.first + i * d, *second = s.second + i * t;
    const T *y = s.y + i * d, inverse = T(1) / total;
    for (int64_t j = 0; j < d; ++j) first[j] = y[j] + first[j] * inverse;
    for (int64_t j = 0; j < t; ++j) second[j] *= inverse;
    for (int64_t e = begin; e < end; ++e) s.weight[e] *= inverse;
  }

  // Add the residuals' unnormalised moments over edges [begin, end) into node i; weights are left
  // unnormalised too. Returns their sum.
  static T accumulate(const A& s, int m, int64_t i, int64_t begin, int64_t end, T* first,
                      T* second) {
    const int B = s.B;
    const int64_t d = int64_t(m) * B;
    const T *hi = s.h + i * d, *yi = s.y + i * d;
    T total = 0;
    V residual[kTile][capacity(M)];
    for (int64_t tile = begin; tile < end; tile += kTile) {
      const int count = int(end - tile < kTile ? end - tile : kTile);
      weigh(s, d, hi, tile, count);
      const T* w = s.weight + tile;
      for (int k = 0; k < count; ++k) total += w[k];
      for (int g = 0; g < B; g += W) {
        V sums[capacity(M)];
        for (int r = 0; r < m; ++r) sums[r] = load<T, W>(first + r * B + g);
        for (int k = 0; k < count; ++k) {
          const T* yj = s.y + s.source[tile + k] * d + g;
          for (int r = 0; r < m; ++r) {
            residual[k][r] = load<T, W>(yj + r * B) - load<T, W>(yi + r * B + g);
            sums[r] += residual[k][r] * w[k];
          }
        }
        for (int r = 0; r < m; ++r) store<T, W>(first + r * B + g, sums[r]);
        if (s.second) outer(residual, w, count, second + g, m, B);
      }
    }
    return total;
  }

  // Unnormalised weights of one tile, Eq. (4).
  static GEOF_INLINE void weigh(const A& s, int64_t d, const T* hi, int64_t tile, int count) {
    constexpr int N = 32 / sizeof(T);
    T energy[kTile] = {};
    for (int k = 0; k < count; ++k) {
      if (tile + k + 4 < s.E) {
        const int64_t ahead = s.source[tile + k + 4] * d;
        prefetch(s.h + ahead, d);
        prefetch(s.y + ahead, d);
      }
      energy[k] = squared_distance(hi, s.h + s.source[tile + k] * d, d);
    }
    for (int k = 0; k < kTile; k += N)
      store<T, N>(energy + k,
                  exponential<T, N>(-load<T, N>(energy + k) / s.temperature));
    for (int k = 0; k < count; ++k)
      s.weight[tile + k] = s.active && !s.active[tile + k] ? T(0) : energy[k];
  }

  // second += sum_k w_k r_k r_k^T, two rows at a time so that their sums stay in registers.
  static GEOF_INLINE void outer(const V (*residual)[capacity(M)], const T* w, int count, T* second,
                                int m, int B) {
#pragma GCC unroll 16
    for (int r = 0; r < m; r += 2) {
      const bool pair = r + 1 < m;
      V upper[capacity(M)], lower[capacity(M)];
      for (int c = 0; c <= r; ++c) {
        upper[c] = load<T, W>(second + int64_t(packed(r, c)) * B);
        if (pair) lower[c] = load<T, W>(second + int64_t(packed(r + 1, c)) * B);
      }
      V corner{};
      if (pair) corner = load<T, W>(second + int64_t(packed(r + 1, r + 1)) * B);
      for (int k = 0; k < count; ++k) {
        const V* x = residual[k];
        const V one = x[r] * w[k];
        for (int c = 0; c <= r; ++c) upper[c] += one * x[c];
        if (pair) {
          const V two = x[r + 1] * w[k];
          for (int c = 0; c <= r; ++c) lower[c] += two * x[c];
          corner += two * x[r + 1];
        }
      }
      for (int c = 0; c <= r; ++c) {
        store<T, W>(second + int64_t(packed(r, c)) * B, upper[c]);
        if (pair) store<T, W>(second + int64_t(packed(r + 1, c)) * B, lower[c]);
      }
      if (pair) store<T, W>(second + int64_t(packed(r + 1, r + 1)) * B, corner);
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
// An edge touches both its ends, so edges are taken tile by tile, round by round (tasks.h). A tile's
// nodes fit the cache.
template <class T, int W, int M>
struct EdgeMomentsBackward {
  using V = Vec<T, W>;
  using A = MomentArguments<T>;

  const A& s;
  const int m, B;
  const int64_t d, t;

  static void run(const A& arguments) {
    const int m = M ? M : arguments.m;
    const EdgeMomentsBackward self{arguments, m, arguments.B, int64_t(m) * arguments.B,
                                   int64_t(triangle(m)) * arguments.B};
    self.all();
  }

  void all() const {
    std::vector<T> mean(s.n);
    const bool parallel = s.E * d > 65536;
#pragma omp parallel num_threads(s.threads) if (parallel)
    {
#pragma omp for schedule(static)
      for (int64_t k = 0; k < s.n * d; ++k) s.grad_y[k] = s.grad_h[k] = 0;
      for (int round = 0; round < kBlocks; ++round) {
        const Round tiles = tiles_of(round);
#pragma omp for schedule(dynamic, 1)
        for (int tile = tiles.first; tile < tiles.last; ++tile) score(tile, mean.data());
      }
      for (int round = 0; round < kBlocks; ++round) {
        const Round tiles = tiles_of(round);
#pragma omp for schedule(dynamic, 1)
        for (int tile = tiles.first; tile < tiles.last; ++tile) push(tile, mean.data());
      }
    }
  }

  // bent = K r from the packed gradient of the second moment.
  static GEOF_INLINE void bend(const T* grad, const V* x, V* bent, int m, int B) {
    for (int r = 0; r < m; ++r) {
      const V corner = load<T, W>(grad + int64_t(packed(r, r)) * B);
      bent[r] = (corner + corner) * x[r];
    }
    for (int r = 1; r < m; ++r)
      for (int c = 0; c < r; ++c) {
        const V k = load<T, W>(grad + int64_t(packed(r, c)) * B);
        bent[r] += k * x[c];
        bent[c] += k * x[r];
      }
  }

  // Scores of a tile's edges into force, their means, and the gradient of y.
  void score(int tile, T* mean) const {
    const int64_t end = s.tile_pointer[tile + 1];
    for (int64_t k = s.tile_pointer[tile]; k < end; ++k) {
      const int64_t e = s.tile_edge[k], i = s.target[e], j = s.source[e];
      if (k + 2 < end) {
        const int64_t ahead = s.tile_edge[k + 2], node = s.target[ahead];
        prefetch(s.y + s.source[ahead] * d, d);
        prefetch(s.grad_y + s.source[ahead] * d, d);
        if (node != i) {
          prefetch(s.y + node * d, d);
          prefetch(s.grad_y + node * d, d);
          prefetch(s.grad_first + node * d, d);
          if (s.grad_second) prefetch(s.grad_second + node * t, t);
        }
      }
      const T *yi = s.y + i * d, *yj = s.y + j * d, *pull = s.grad_first + i * d;
      T *gi = s.grad_y + i * d, *gj = s.grad_y + j * d;
      const T w = s.weight[e];
      V total{};
      for (int g = 0; g < B; g += W) {
        V x[capacity(M)], bent[capacity(M)];
        for (int r = 0; r < m; ++r) {
          const int64_t at = r * B + g;
          x[r] = load<T, W>(yj + at) - load<T, W>(yi + at);
        }
        if (s.grad_second) {
          bend(s.grad_second + i * t + g, x, bent, m, B);
        } else {
          for (int r = 0; r < m; ++r) bent[r] = V{};
        }
        for (int r = 0; r < m; ++r) {
          const int64_t at = r * B + g;
          const V p = load<T, W>(pull + at);
          total += (p + bent[r] * T(0.5)) * x[r];
          const V push = bent[r] * w;
          // In this order a self-loop, whose ends are one node, comes out right.
          store<T, W>(gi + at, V(load<T, W>(gi + at) - push));
          store<T, W>(gj + at, V(load<T, W>(gj + at) + (push + p * w)));
        }
      }
      s.force[e] = sum<T, W>(total) + (s.grad_weight ? s.grad_weight[e] : T(0));
      mean[i] += w * s.force[e];
    }
  }

  // Scores become forces on h.
  void push(int tile, const T* mean) const {
    constexpr int N = 32 / sizeof(T);
    const T rate = T(-2) / s.temperature;
    const int64_t end = s.tile_pointer[tile + 1];
    for (int64_t k = s.tile_pointer[tile]; k < end; ++k) {
      const int64_t e = s.tile_edge[k], i = s.target[e], j = s.source[e];
      if (i == j) continue;  // no distance, no force
      if (k + 4 < end) {
        const int64_t ahead = s.source[s.tile_edge[k + 4]] * d;
        prefetch(s.h + ahead, d);
        prefetch(s.grad_h + ahead, d);
      }
      const T f = rate * s.weight[e] * (s.force[e] - mean[i]);
      const T *hi = s.h + i * d, *hj = s.h + j * d;
      T *gi = s.grad_h + i * d, *gj = s.grad_h + j * d;
      int64_t c = 0;
      for (; c + N <= d; c += N) {
        const Vec<T, N> pushed = (load<T, N>(hi + c) - load<T, N>(hj + c)) * f;
        store<T, N>(gi + c, Vec<T, N>(load<T, N>(gi + c) + pushed));
        store<T, N>(gj + c, Vec<T, N>(load<T, N>(gj + c) - pushed));
      }
      for (; c < d; ++c) {
        const T pushed = (hi[c] - hj[c]) * f;
        gi[c] += pushed;
        gj[c] -= pushed;
      }
    }
  }
};

}  // namespace geof
