// The aggregate and the target of the geometry, Eqs. (6), (8), (10) and (51) to (54):
//
//   agg = L^{-1} first,  C = L^{-1} S L^{-T} + floor I,  target = coordinates of SChol(C),
//
// and their gradients, by reversing each substitution. Only lower triangles are formed.
#pragma once

#include "frames.h"
#include "lanes.h"

namespace geof {

enum Statistic { kNone = 0, kFull = 1, kDiagonal = 2, kMean = 3 };

// What went wrong, counted in blocks.
struct FeedbackStatus {
  int64_t non_finite = 0, indefinite = 0, retried = 0, most_retries = 0;
};

// Features (message, aggregate) are (n, B, m); all else has its lanes last.
template <class T>
struct FeedbackArguments {
  int threads;
  int64_t n;
  int m, B;
  int statistic;
  bool framed;  // otherwise L = I
  T floor, jitter, growth;
  int retries;
  const T *z, *message, *first, *second;
  T *aggregate, *target;
  T* moment;         // (n, B, m, m) or null
  int64_t* attempt;  // (n, B) or null
  FeedbackStatus* status;
  // Backward only.
  const T *grad_aggregate, *grad_target;
  bool add_to_z;  // grad_z is added to; otherwise overwritten
  T *grad_z, *grad_message, *grad_first, *grad_second;
};

// Everything the forward pass knows of W blocks, of P nodes.
template <class T, int W, int M, int P>
struct Feedback {
  using V = Vec<T, W>;
  static constexpr int N = capacity(M);

  const int m, B;
  Frame<T, W, M, P> frame;
  V inverse[N];           // 1 / exp(l)
  V aggregate[N];         // agg
  V residual[N];          // agg - phi(xi), for the mean statistic
  V half[N][N];           // L^{-1} S
  V moment[triangle(N)];  // C without its floor, packed
  V factor[triangle(N)];  // SChol(C), packed
  V retry{};              // the jitter each lane needed, counted from 0

  GEOF_INLINE Feedback(const FeedbackArguments<T>& s, int64_t i, int g, int m_, int B_)
      : m(m_), B(B_), frame(s.z + i * triangle(m_) * B_ + g, m_, B_) {
    const int64_t d = int64_t(m) * B, t = int64_t(triangle(m)) * B;
    // The processor's own prefetching stops at the end of a page, every few nodes.
    const int64_t ahead = i + 4 * P;
    if (g == 0 && ahead + P <= s.n) {
      prefetch(s.z + ahead * t, P * t);
      if (s.second) prefetch(s.second + ahead * t, P * t);
    }
    for (int r = 0; r < m; ++r) {
      inverse[r] = T(1) / frame.e[r];
      aggregate[r] = load<T, W, P>(s.first + i * d + r * B + g, d);
      if (!s.framed) continue;
      for (int c = 0; c < r; ++c) aggregate[r] -= frame.a[strict(r, c)] * aggregate[c];
      aggregate[r] *= inverse[r];
    }
    if (s.statistic == kMean) {
      read_features<T, W, M, P>(s.message + i * d + int64_t(g) * m, m, d, residual);
      for (int r = 0; r < m; ++r) residual[r] = aggregate[r] - residual[r];
      for (int r = 0; r < m; ++r)
        for (int c = 0; c <= r; ++c) moment[packed(r, c)] = residual[r] * residual[c];
    } else if (s.statistic != kNone) {
      pull_back(s.second + i * triangle(m) * B + g, s.framed);
    }
  }

  // C = L^{-1} S L^{-T}: first L^{-1} S, all columns; then each row against L^T.
  GEOF_INLINE void pull_back(const T* second, bool framed) {
    const int64_t t = int64_t(triangle(m)) * B;
    if (!framed) {
      for (int k = 0; k < triangle(m); ++k) moment[k] = load<T, W, P>(second + int64_t(k) * B, t);
      return;
    }
    for (int r = 0; r < m; ++r)
      for (int c = 0; c < m; ++c) {
        const int at = r >= c ? packed(r, c) : packed(c, r);
        V v = load<T, W, P>(second + int64_t(at) * B, t);
        for (int k = 0; k < r; ++k) v -= frame.a[strict(r, k)] * half[k][c];
        half[r][c] = v * inverse[r];
      }
    for (int r = 0; r < m; ++r)
      for (int c = 0; c <= r; ++c) {
        V v = half[r][c];
        for (int k = 0; k < c; ++k) v -= moment[packed(r, k)] * frame.a[strict(c, k)];
        moment[packed(r, c)] = v * inverse[c];
      }
  }

  // Returns lanes that are not positive definite at these jitters as 1, the others as 0.
  GEOF_INLINE V factorise(V shift, bool diagonal) {
    V failed{}, reciprocal[N];
    for (int r = 0; r < m; ++r) {
      V pivot = moment[packed(r, r)] + shift;
      for (int c = 0; c < r; ++c) {
        V v = diagonal ? V{} : moment[packed(r, c)];
        for (int k = 0; k < c; ++k) v -= factor[packed(r, k)] * factor[packed(c, k)];
        v *= reciprocal[c];
        factor[packed(r, c)] = v;
        pivot -= v * v;
      }
      failed = pivot > T(0) ? failed : fill<T, W>(1);
      factor[packed(r, r)] = square_root<T, W>(pivot > T(0) ? pivot : fill<T, W>(1));
      reciprocal[r] = T(1) / factor[packed(r, r)];
    }
    return failed;
  }

  // SChol: only lanes that fail are tried again, with a larger jitter. Returns lanes that stay
  // indefinite.
  GEOF_INLINE V stabilise(const FeedbackArguments<T>& s) {
    const bool diagonal = s.statistic == kDiagonal;
    V shift = fill<T, W>(s.floor) + s.jitter;
    V failed = factorise(shift, diagonal);
    T jitter = s.jitter;
    for (int t = 1; t <= s.retries && sum<T, W>(failed) > 0; ++t) {
      jitter *= s.growth;
      shift = failed > T(0) ? fill<T, W>(s.floor) + jitter : shift;
      retry = failed > T(0) ? fill<T, W>(T(t)) : retry;
      failed = factorise(shift, diagonal);
    }
    return failed;
  }
};

template <class T, int W, int M>
struct FeedbackTarget {
  static void run(const FeedbackArguments<T>& s) {
    const int m = M ? M : s.m, B = s.B;
    each_node<T, W, M>(s.threads, s.n, int64_t(m) * B, B, [&]<int L, int P>(int64_t i, int g) {
      group<L, P>(s, i, g, m, B);
    });
  }

  template <int L, int P>
  static void group(const FeedbackArguments<T>& s, int64_t i, int g, int m, int B) {
    using V = Vec<T, L>;
    Feedback<T, L, M, P> f(s, i, g, m, B);
    const int64_t d = int64_t(m) * B;
    write_features<T, L, M, P>(s.aggregate + i * d + int64_t(g) * m, m, d, f.aggregate);
    if (s.statistic == kNone) return;
    const V failed = f.stabilise(s);
    V finite{};  // x - x is 0 for finite x and NaN otherwise
    for (int r = 0; r < m; ++r) finite += f.factor[packed(r, r)] - f.factor[packed(r, r)];
    if (sum<T, L>(failed) > 0 || sum<T, L>(f.retry) > 0 || !(sum<T, L>(finite) == 0))
      report<L, P>(s, f, failed);
    const int64_t t = int64_t(triangle(m)) * B;
    T* target = s.target + i * t + g;
    for (int r = 0; r < m; ++r) {
      for (int c = 0; c < r; ++c)
        store<T, L, P>(target + int64_t(strict(r, c)) * B, t, f.factor[packed(r, c)]);
      store<T, L, P>(target + int64_t(scale(m, r)) * B, t,
                     logarithm<T, L>(f.factor[packed(r, r)]));
    }
    if (s.moment) write_moment<L, P>(s, f, i, g, m, B);
    if (s.attempt)
      for (int l = 0; l < L; ++l)
        s.attempt[i * B + g + l] = int64_t(lane<T, L>(f.retry, l));
  }

  template <int L, int P>
  static void write_moment(const FeedbackArguments<T>& s, const Feedback<T, L, M, P>& f, int64_t i,
                           int g, int m, int B) {
    using V = Vec<T, L>;
    const int64_t size = int64_t(m) * m;
    T* to = s.moment + (i * B + g) * size;
    for (int r = 0; r < m; ++r)
      for (int c = 0; c <= r; ++c) {
        V v = f.moment[packed(r, c)];
        if (c < r && s.statistic == kDiagonal) v = V{};
        if (c == r) v += s.floor;
        scatter<T, L, P>(to + r * m + c, size, B * size, v);
        scatter<T, L, P>(to + c * m + r, size, B * size, v);
      }
  }

  // Sort the lanes that needed more than one attempt; rare, so it may be slow.
  template <int L, int P>
  static void report(const FeedbackArguments<T>& s, const Feedback<T, L, M, P>& f,
                     const Vec<T, L>& failed) {
    FeedbackStatus seen;
    for (int l = 0; l < L; ++l) {
      bool finite = true;
      for (int r = 0; r < f.m; ++r) {
        finite = finite && std::isfinite(lane<T, L>(f.factor[packed(r, r)], l));
        for (int c = 0; c <= r; ++c)
          finite = finite && (std::isfinite(lane<T, L>(f.moment[packed(r, c)], l)) ||
                              (s.statistic == kDiagonal && c < r));
      }
      const int64_t retries = int64_t(lane<T, L>(f.retry, l));
      seen.non_finite += !finite;
      seen.indefinite += finite && lane<T, L>(failed, l) > 0;
      seen.retried += retries > 0;
      seen.most_retries = retries > seen.most_retries ? retries : seen.most_retries;
    }
#pragma omp critical(geof_feedback_status)
    {
      s.status->non_finite += seen.non_finite;
      s.status->indefinite += seen.indefinite;
      s.status->retried += seen.retried;
      if (seen.most_retries > s.status->most_retries) s.status->most_retries = seen.most_retries;
    }
  }
};

template <class T, int W, int M>
struct FeedbackTargetBackward {
  static constexpr int N = capacity(M);

  static void run(const FeedbackArguments<T>& s) {
    const int m = M ? M : s.m, B = s.B;
    each_node<T, W, M>(s.threads, s.n, int64_t(m) * B, B, [&]<int L, int P>(int64_t i, int g) {
      Reverse<L, P>::group(s, i, g, m, B);
    });
  }

  template <int L, int P>
  struct Reverse {
  using V = Vec<T, L>;
  using F = Feedback<T, L, M, P>;

  static void group(const FeedbackArguments<T>& s, int64_t i, int g, int m, int B) {
    F f(s, i, g, m, B);
    const int64_t d = int64_t(m) * B, t = int64_t(triangle(m)) * B;
    const int64_t features = i * d + int64_t(g) * m;
    V ga[triangle(N)], gl[N], gx[N];  // of a, of l, of the aggregate
    for (int k = 0; k < m * (m - 1) / 2; ++k) ga[k] = V{};
    for (int r = 0; r < m; ++r) gl[r] = V{};
    read_features<T, L, M, P>(s.grad_aggregate + features, m, d, gx);
    if (s.statistic != kNone) {
      V gc[triangle(N)];
      f.stabilise(s);
      factor_backward(s, f, i, g, gc);
      if (s.statistic == kMean) {
        mean_backward(s, f, gc, gx, features);
      } else {
        T* gs = s.grad_second + i * t + g;
        if (s.framed) {
          pull_back_backward(f, gc, ga, gl, gs);
        } else {
          for (int k = 0; k < triangle(m); ++k) store<T, L, P>(gs + int64_t(k) * B, t, gc[k]);
        }
      }
    }
    solve_backward(s, f, i, g, gx, ga, gl);
    T* gz = s.grad_z + i * t + g;
    for (int k = 0; k < triangle(m); ++k) {
      const V own = k < m * (m - 1) / 2 ? ga[k] : gl[k - m * (m - 1) / 2];
      T* to = gz + int64_t(k) * B;
      store<T, L, P>(to, t, s.add_to_z ? V(load<T, L, P>(to, t) + own) : own);
    }
  }

  // Reverse of the Cholesky recursion and of the logarithm, entry by entry.
  static GEOF_INLINE void factor_backward(const FeedbackArguments<T>& s,
                                          const F& f, int64_t i, int g, V* gc) {
    const int m = f.m, B = f.B;
    const int64_t t = int64_t(triangle(m)) * B;
    const T* gt = s.grad_target + i * t + g;
    V gr[triangle(N)], reciprocal[N];
    for (int r = 0; r < m; ++r) {
      reciprocal[r] = T(1) / f.factor[packed(r, r)];
      for (int c = 0; c < r; ++c)
        gr[packed(r, c)] = load<T, L, P>(gt + int64_t(strict(r, c)) * B, t);
      gr[packed(r, r)] = load<T, L, P>(gt + int64_t(scale(m, r)) * B, t) * reciprocal[r];
    }
    for (int r = m - 1; r >= 0; --r) {
      const V pivot = gr[packed(r, r)] * reciprocal[r];
      gc[packed(r, r)] = pivot * T(0.5);
      for (int k = 0; k < r; ++k) gr[packed(r, k)] -= pivot * f.factor[packed(r, k)];
      for (int c = r - 1; c >= 0; --c) {
        const V q = gr[packed(r, c)] * reciprocal[c];
        gc[packed(r, c)] = q;
        gr[packed(c, c)] -= q * f.factor[packed(r, c)];
        for (int k = 0; k < c; ++k) {
          gr[packed(r, k)] -= q * f.factor[packed(c, k)];
          gr[packed(c, k)] -= q * f.factor[packed(r, k)];
        }
      }
    }
    if (s.statistic == kDiagonal)
      for (int r = 0; r < m; ++r)
        for (int c = 0; c < r; ++c) gc[packed(r, c)] = V{};
  }

  static GEOF_INLINE void mean_backward(const FeedbackArguments<T>& s, const F& f,
                                        const V* gc, V* gx, int64_t features) {
    V g[N];
    for (int r = 0; r < f.m; ++r) g[r] = gc[packed(r, r)] * f.residual[r] * T(2);
    for (int r = 0; r < f.m; ++r)
      for (int c = 0; c < r; ++c) {
        g[r] += gc[packed(r, c)] * f.residual[c];
        g[c] += gc[packed(r, c)] * f.residual[r];
      }
    for (int r = 0; r < f.m; ++r) {
      gx[r] += g[r];
      g[r] = -g[r];
    }
    write_features<T, L, M, P>(s.grad_message + features, f.m, int64_t(f.m) * f.B, g);
  }

  // Reverse of C = L^{-1} S L^{-T}; gc is used up.
  static GEOF_INLINE void pull_back_backward(const F& f, V* gc, V* ga, V* gl,
                                             T* gs) {
    const int m = f.m, B = f.B;
    V gh[N][N];
    for (int r = 0; r < m; ++r) {
      for (int c = r + 1; c < m; ++c) gh[r][c] = V{};
      for (int c = r; c >= 0; --c) {
        gl[c] -= gc[packed(r, c)] * f.moment[packed(r, c)];
        const V g = gc[packed(r, c)] * f.inverse[c];
        gh[r][c] = g;
        for (int k = 0; k < c; ++k) {
          gc[packed(r, k)] -= f.frame.a[strict(c, k)] * g;
          ga[strict(c, k)] -= f.moment[packed(r, k)] * g;
        }
      }
    }
    for (int r = m - 1; r >= 0; --r)
      for (int c = 0; c < m; ++c) {
        gl[r] -= gh[r][c] * f.half[r][c];
        const V g = gh[r][c] * f.inverse[r];
        gh[r][c] = g;
        for (int k = 0; k < r; ++k) {
          gh[k][c] -= f.frame.a[strict(r, k)] * g;
          ga[strict(r, k)] -= f.half[k][c] * g;
        }
      }
    for (int r = 0; r < m; ++r)
      for (int c = 0; c <= r; ++c)
        store<T, L, P>(gs + int64_t(packed(r, c)) * B, int64_t(triangle(m)) * B,
                       c < r ? V(gh[r][c] + gh[c][r]) : gh[r][r]);
  }

  // Reverse of agg = L^{-1} first.
  static GEOF_INLINE void solve_backward(const FeedbackArguments<T>& s, const F& f,
                                         int64_t i, int g, V* gx, V* ga, V* gl) {
    const int m = f.m, B = f.B;
    const int64_t d = int64_t(m) * B;
    T* to = s.grad_first + i * d + g;
    for (int r = m - 1; r >= 0; --r) {
      V v = gx[r];
      if (s.framed) {
        gl[r] -= v * f.aggregate[r];
        v *= f.inverse[r];
        for (int c = 0; c < r; ++c) {
          gx[c] -= f.frame.a[strict(r, c)] * v;
          ga[strict(r, c)] -= f.aggregate[c] * v;
        }
      }
      store<T, L, P>(to + r * B, d, v);
    }
  }
  };
};

}  // namespace geof
