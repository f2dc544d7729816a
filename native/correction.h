// The learned correction and the coordinate update, Eqs. (11) and (12), around two matrix
// products that the caller makes. A chunk of n nodes has n B columns, one for each block:
//
//   q (2m, nB) = [xi_b || agg_b],  hidden (H, nB) = SiLU(W_1 q + shared_i),  out (p, nB) = W_2 hidden,
//   z' = clip(z + mix (target - z) + strength [lower(U V^T), d]).
//
// Of U's m rows the first and of V's the last never reach the strictly lower triangle; the caller
// leaves them out of W_2, so out holds U_1.., V_0.., d: p = 2 (m - 1) rank + m rows.
#pragma once

#include "lanes.h"

namespace geof {

template <class T>
struct PackArguments {
  int threads;
  int64_t n;
  int m, B;
  const T *x, *aggregate;         // (n, B, m)
  T* q;                           // (2m, nB)
  const T* grad_q;                // backward only
  T *grad_x, *grad_aggregate;     // overwritten; added to
};

template <class T, int W, int M>
struct Pack {
  static void run(const PackArguments<T>& s) {
    const int m = M ? M : s.m, B = s.B;
    const int64_t d = int64_t(m) * B, columns = s.n * B;
#pragma omp parallel for schedule(static) num_threads(s.threads) if (s.n * d > 16384)
    for (int64_t i = 0; i < s.n; ++i)
      for (int g = 0; g < B; g += W)
        for (int k = 0; k < m; ++k) {
          const int64_t from = i * d + int64_t(g) * m + k, to = i * B + g;
          store<T, W>(s.q + k * columns + to, gather<T, W>(s.x + from, m));
          store<T, W>(s.q + (m + k) * columns + to, gather<T, W>(s.aggregate + from, m));
        }
  }
};

template <class T, int W, int M>
struct PackBackward {
  static void run(const PackArguments<T>& s) {
    const int m = M ? M : s.m, B = s.B;
    const int64_t d = int64_t(m) * B, columns = s.n * B;
#pragma omp parallel for schedule(static) num_threads(s.threads) if (s.n * d > 16384)
    for (int64_t i = 0; i < s.n; ++i)
      for (int g = 0; g < B; g += W)
        for (int k = 0; k < m; ++k) {
          const int64_t to = i * d + int64_t(g) * m + k, from = i * B + g;
          scatter<T, W>(s.grad_x + to, m, load<T, W>(s.grad_q + k * columns + from));
          scatter_add<T, W>(s.grad_aggregate + to, m,
                            load<T, W>(s.grad_q + (m + k) * columns + from));
        }
  }
};

template <class T>
struct ActivationArguments {
  int threads;
  int64_t n;
  int B, H;
  T* values;        // (H, nB): W_1 q, becomes SiLU(W_1 q + shared)
  const T* shared;  // (n, H)
  T* slope;         // (H, nB) or null: SiLU' there
  T* grad_shared;   // (n, H), backward only: values is then multiplied by slope
};

template <class T>
struct Activation {
  static constexpr int N = 32 / sizeof(T);

  static void run(const ActivationArguments<T>& s) {
    const int64_t columns = s.n * s.B;
#pragma omp parallel for schedule(static) num_threads(s.threads) if (columns * s.H > 16384)
    for (int h = 0; h < s.H; ++h) {
      T* row = s.values + h * columns;
      for (int64_t i = 0; i < s.n; ++i) {
        const T own = s.shared[i * s.H + h];
        for (int b = 0; b < s.B; ++b) row[i * s.B + b] += own;
      }
      T* slope = s.slope ? s.slope + h * columns : nullptr;
      int64_t k = 0;
      for (; k + N <= columns; k += N) silu<N>(row + k, slope ? slope + k : nullptr);
      for (; k < columns; ++k) silu<1>(row + k, slope ? slope + k : nullptr);
    }
  }

  template <int W>
  static GEOF_INLINE void silu(T* value, T* slope) {
    const Vec<T, W> x = load<T, W>(value);
    const Vec<T, W> sigmoid = T(1) / (exponential<T, W>(-x) + T(1));
    store<T, W>(value, Vec<T, W>(x * sigmoid));
    if (slope) store<T, W>(slope, Vec<T, W>(sigmoid * (x * (T(1) - sigmoid) + T(1))));
  }

  static void backward(const ActivationArguments<T>& s) {
    const int64_t columns = s.n * s.B;
#pragma omp parallel for schedule(static) num_threads(s.threads) if (columns * s.H > 16384)
    for (int h = 0; h < s.H; ++h) {
      T* row = s.values + h * columns;
      const T* slope = s.slope + h * columns;
      for (int64_t k = 0; k < columns; ++k) row[k] *= slope[k];
      for (int64_t i = 0; i < s.n; ++i) {
        T total = 0;
        for (int b = 0; b < s.B; ++b) total += row[i * s.B + b];
        s.grad_shared[i * s.H + h] = total;
      }
    }
  }
};

template <class T>
struct UpdateArguments {
  int threads;
  int64_t n;
  int m, B, rank;
  T mix, strength, offdiagonal, low, high;
  const T *z, *target;  // (n, t, B); no target: z itself
  const T *out, *bias;  // (p, nB), (p); null without a correction
  T* next;              // (n, t, B)
  const T* grad_next;   // backward only
  T *grad_z, *grad_target, *grad_out;
};

template <class T, int W, int M>
struct Update {
  using V = Vec<T, W>;
  using A = UpdateArguments<T>;
  static constexpr int N = capacity(M);

  static void run(const A& s) { each<false>(s); }
  static void backward(const A& s) { each<true>(s); }

  template <bool reverse>
  static void each(const A& s) {
    const int m = M ? M : s.m, B = s.B;
#pragma omp parallel for schedule(static) num_threads(s.threads) if (s.n * m * B > 8192)
    for (int64_t i = 0; i < s.n; ++i)
      for (int g = 0; g < B; g += W) {
        if constexpr (reverse) {
          node_backward(s, i, g, m, B);
        } else {
          node(s, i, g, m, B);
        }
      }
  }

  static GEOF_INLINE V clip(V v, T low, T high) {
    v = v < low ? fill<T, W>(low) : v;
    return v > high ? fill<T, W>(high) : v;
  }

  // Row `at` of the controller's output in the columns of this group.
  static GEOF_INLINE V output(const A& s, int at, int64_t column) {
    return load<T, W>(s.out + at * (s.n * s.B) + column) + s.bias[at];
  }

  // Lower(U V^T), one pair of columns of U and V at a time.
  static GEOF_INLINE void correction(const A& s, int64_t column, int m, V* delta) {
    for (int k = 0; k < m * (m - 1) / 2; ++k) delta[k] = V{};
    const int right = (m - 1) * s.rank;
    for (int k = 0; k < s.rank; ++k) {
      V v[N];
      for (int c = 0; c < m - 1; ++c) v[c] = output(s, right + c * s.rank + k, column);
      for (int r = 1; r < m; ++r) {
        const V u = output(s, (r - 1) * s.rank + k, column);
        for (int c = 0; c < r; ++c) delta[strict(r, c)] += u * v[c];
      }
    }
    for (int r = 0; r < m; ++r) delta[scale(m, r)] = output(s, 2 * right + r, column);
  }

  static GEOF_INLINE V mixed(const A& s, int64_t at, const V* delta, int k) {
    const V z = load<T, W>(s.z + at);
    V v = s.target ? V(z + (load<T, W>(s.target + at) - z) * s.mix) : z;
    if (s.out) v += delta[k] * s.strength;
    return v;
  }

  static void node(const A& s, int64_t i, int g, int m, int B) {
    V delta[triangle(N)];
    if (s.out) correction(s, i * B + g, m, delta);
    const int strictly = m * (m - 1) / 2;
    for (int k = 0; k < triangle(m); ++k) {
      const int64_t at = (i * triangle(m) + k) * B + g;
      const V v = mixed(s, at, delta, k);
      store<T, W>(s.next + at, k < strictly ? clip(v, -s.offdiagonal, s.offdiagonal)
                                            : clip(v, s.low, s.high));
    }
  }

  // Clipped entries have no gradient.
  static void node_backward(const A& s, int64_t i, int g, int m, int B) {
    V delta[triangle(N)];
    const int64_t column = i * B + g;
    if (s.out) correction(s, column, m, delta);
    const int strictly = m * (m - 1) / 2;
    for (int k = 0; k < triangle(m); ++k) {
      const int64_t at = (i * triangle(m) + k) * B + g;
      const V v = mixed(s, at, delta, k);
      const T low = k < strictly ? -s.offdiagonal : s.low;
      const T high = k < strictly ? s.offdiagonal : s.high;
      V own = load<T, W>(s.grad_next + at);
      own = v < low ? V{} : own;
      own = v > high ? V{} : own;
      store<T, W>(s.grad_z + at, V(s.target ? own * (T(1) - s.mix) : own));
      if (s.target) store<T, W>(s.grad_target + at, V(own * s.mix));
      delta[k] = own * s.strength;  // from here on the correction's gradient
    }
    if (s.out) correction_backward(s, column, m, delta);
  }

  static GEOF_INLINE void correction_backward(const A& s, int64_t column, int m, const V* gd) {
    const int64_t columns = s.n * s.B;
    const int right = (m - 1) * s.rank;
    for (int k = 0; k < s.rank; ++k) {
      V v[N], gv[N];
      for (int c = 0; c < m - 1; ++c) {
        v[c] = output(s, right + c * s.rank + k, column);
        gv[c] = V{};
      }
      for (int r = 1; r < m; ++r) {
        const int at = (r - 1) * s.rank + k;
        const V u = output(s, at, column);
        V gu{};
        for (int c = 0; c < r; ++c) {
          gu += gd[strict(r, c)] * v[c];
          gv[c] += gd[strict(r, c)] * u;
        }
        store<T, W>(s.grad_out + at * columns + column, gu);
      }
      for (int c = 0; c < m - 1; ++c)
        store<T, W>(s.grad_out + (right + c * s.rank + k) * columns + column, gv[c]);
    }
    for (int r = 0; r < m; ++r)
      store<T, W>(s.grad_out + (2 * right + r) * columns + column, gd[scale(m, r)]);
  }
};

template <class T, int W, int M>
struct UpdateForward {
  static void run(const UpdateArguments<T>& s) { Update<T, W, M>::run(s); }
};
template <class T, int W, int M>
struct UpdateBackward {
  static void run(const UpdateArguments<T>& s) { Update<T, W, M>::backward(s); }
};

}  // namespace geof
