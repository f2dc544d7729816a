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
  int64_t non_finite = 0, kept = 0, retried = 0, most_retries = 0, rescued = 0;
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

// Beyond the schedule: jitters relative to the largest row sum of a block (geof.geometry.cholesky).
constexpr double kRelativeJitters[] = {1e-6, 1e-4, 1e-2, 1};
constexpr int kRelativeRetries = 4;

// Whether a packed block has a factor at this jitter. Before rounding every pivot is at least the
// jitter, so one below its half does not count.
template <class T>
bool factorise_block(const T* block, T* factor, int m, T jitter) {
  for (int r = 0; r < m; ++r)
    for (int c = 0; c <= r; ++c) {
      T v = block[packed(r, c)] + (c == r ? jitter : T(0));
      for (int k = 0; k < c; ++k) v -= factor[packed(r, k)] * factor[packed(c, k)];
      if (c == r && !(v >= jitter / 2 && std::isfinite(v))) return false;
      factor[packed(r, c)] = c == r ? std::sqrt(v) : v / factor[packed(c, c)];
    }
  return true;
}

// The number of the first relative jitter that serves a block; kRelativeRetries and the identity if
// none does.
template <class T>
int rescue_block(const T* block, T* factor, int m, T last) {
  T size = 0;
  for (int r = 0; r < m; ++r) {
    T row = 0;
    for (int c = 0; c < m; ++c) row += std::abs(block[r >= c ? packed(r, c) : packed(c, r)]);
    size = row > size ? row : size;
  }
  for (int k = 0; k < kRelativeRetries; ++k)
    if (factorise_block(block, factor, m, T(last + size * T(kRelativeJitters[k])))) return k;
  for (int r = 0; r < m; ++r)
    for (int c = 0; c <= r; ++c) factor[packed(r, c)] = T(r == c);
  return kRelativeRetries;
}

// Everything the forward pass knows of W blocks.
template <class T, int W, int M>
struct Feedback {
  using V = Vec<T, W>;
  static constexpr int N = capacity(M);

  const Count<M> m;
  const int64_t B;
  Frame<T, W, M> frame;
  V inverse[N];           // 1 / exp(l)
  V aggregate[N];         // agg
  V residual[N];          // agg - phi(xi), for the mean statistic
  V half[N][N];           // L^{-1} S
  V moment[triangle(N)];  // C without its floor, packed
  V factor[triangle(N)];  // SChol(C), packed
  V retry{};              // the jitter each lane needed, counted from 0

  // The frame alone.
  GEOF_INLINE Feedback(const T* z, Count<M> m_, int64_t B_) : m(m_), B(B_), frame(z, m_, B_) {
    each(m, [&](auto r) GEOF_LAMBDA { inverse[r] = T(1) / frame.e[r]; });
  }

  // With aggregate and C from the moments.
  GEOF_INLINE Feedback(const FeedbackArguments<T>& s, int64_t i, int g, Count<M> m_)
      : Feedback(s.z + i * triangle(m_) * s.B + g, m_, s.B) {
    const int64_t d = m * B, t = triangle(m) * B;
    each(m, [&](auto r) GEOF_LAMBDA { aggregate[r] = load<T, W>(s.first + i * d + r * B + g); });
    if (s.framed) solve(aggregate);
    if (s.statistic == kMean) {
      read_features<T, W, M>(s.message + i * d + int64_t(g) * m, m, residual);
      each(m, [&](auto r) GEOF_LAMBDA {
        residual[r] = aggregate[r] - residual[r];
        each(next(r), [&](auto c) GEOF_LAMBDA { moment[packed(r, c)] = residual[r] * residual[c]; });
      });
    } else if (s.statistic != kNone) {
      pull_back(s.second + i * t + g, s.framed);
    }
  }

  // x = L^{-1} x.
  GEOF_INLINE void solve(V* x) const {
    each(m, [&](auto r) GEOF_LAMBDA {
      each(r, [&](auto c) GEOF_LAMBDA { x[r] -= frame.a[strict(r, c)] * x[c]; });
      x[r] *= inverse[r];
    });
  }

  // C = L^{-1} S L^{-T}: first L^{-1} S, all columns; then each row against L^T.
  GEOF_INLINE void pull_back(const T* second, bool framed) {
    if (!framed) {
      each(m, [&](auto r) GEOF_LAMBDA {
        each(next(r), [&](auto c) GEOF_LAMBDA {
          moment[packed(r, c)] = load<T, W>(second + packed(r, c) * B);
        });
      });
      return;
    }
    each(m, [&](auto c) GEOF_LAMBDA {
      each(m, [&](auto r) GEOF_LAMBDA {
        V v = load<T, W>(second + (r >= c ? packed(r, c) : packed(c, r)) * B);
        each(r, [&](auto k) GEOF_LAMBDA { v -= frame.a[strict(r, k)] * half[k][c]; });
        half[r][c] = v * inverse[r];
      });
    });
    each(m, [&](auto r) GEOF_LAMBDA {
      each(next(r), [&](auto c) GEOF_LAMBDA {
        V v = half[r][c];
        each(c, [&](auto k) GEOF_LAMBDA { v -= moment[packed(r, k)] * frame.a[strict(c, k)]; });
        moment[packed(r, c)] = v * inverse[c];
      });
    });
  }

  // Returns lanes that are not positive definite at these jitters as 1, the others as 0.
  template <bool Diagonal>
  GEOF_INLINE V factorise(V shift) {
    V failed{}, reciprocal[N];
    each(m, [&](auto r) GEOF_LAMBDA {
      V pivot = moment[packed(r, r)] + shift;
      each(r, [&](auto c) GEOF_LAMBDA {
        V v{};
        if constexpr (!Diagonal) {
          v = moment[packed(r, c)];
          each(c, [&](auto k) GEOF_LAMBDA { v -= factor[packed(r, k)] * factor[packed(c, k)]; });
          v *= reciprocal[c];
          pivot -= v * v;
        }
        factor[packed(r, c)] = v;
      });
      failed = pivot > T(0) ? failed : fill<T, W>(1);
      factor[packed(r, r)] = square_root<T, W>(pivot > T(0) ? pivot : fill<T, W>(1));
      reciprocal[r] = T(1) / factor[packed(r, r)];
    });
    return failed;
  }

  GEOF_INLINE V factorise(V shift, bool diagonal) {
    return diagonal ? factorise<true>(shift) : factorise<false>(shift);
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

  // Beyond the schedule, for the lanes that failed. Returns those whose target is to be z.
  V rescue(const FeedbackArguments<T>& s, const V& failed) {
    V kept{};
    T block[triangle(N)], made[triangle(N)], last = s.jitter;
    for (int k = 0; k < s.retries; ++k) last *= s.growth;
    for (int l = 0; l < W; ++l) {
      if (!(lane<T, W>(failed, l) > 0)) continue;
      for (int r = 0; r < m; ++r)
        for (int c = 0; c <= r; ++c) {
          const T v = lane<T, W>(moment[packed(r, c)], l);
          block[packed(r, c)] = c == r ? v + s.floor : s.statistic == kDiagonal ? T(0) : v;
        }
      const int tried = rescue_block<T>(block, made, m, last);
      for (int k = 0; k < triangle(m); ++k) set_lane<T, W>(factor[k], l, made[k]);
      set_lane<T, W>(retry, l, T(s.retries + 1 + tried));
      set_lane<T, W>(kept, l, T(tried == kRelativeRetries));
    }
    return kept;
  }
};

// Lanes of `to` become those of `from`, or are added to, where `chosen` is set.
template <class T, int W, bool Add>
void copy_lanes(const T* from, T* to, int m, int64_t B, const Vec<T, W>& chosen) {
  for (int64_t k = 0; k < triangle(m) * B; k += B)
    for (int l = 0; l < W; ++l)
      if (lane<T, W>(chosen, l) > 0) to[k + l] = from[k + l] + (Add ? to[k + l] : T(0));
}

template <class T, int W, int M>
struct FeedbackTarget {
  using V = Vec<T, W>;
  using F = Feedback<T, W, M>;

  static void run(const FeedbackArguments<T>& s) {
    const Count<M> m = known<M>(s.m);
    each_node<W>(s.threads, s.n, int64_t(m) * s.B, s.B,
                 [&](int64_t i, int g) { group(s, i, g, m); });
  }

  // A group with a block that the schedule does not serve is left to `beyond`.
  static void group(const FeedbackArguments<T>& s, int64_t i, int g, Count<M> m) {
    group<false>(s, i, g, m);
  }
  static __attribute__((noinline, noclone, cold)) void beyond(const FeedbackArguments<T>& s,
                                                              int64_t i, int g, Count<M> m) {
    group<true>(s, i, g, m);
  }

  template <bool Beyond>
  static GEOF_INLINE void group(const FeedbackArguments<T>& s, int64_t i, int g, Count<M> m) {
    F f(s, i, g, m);
    if (!settle<Beyond>(s, i, g, f)) FeedbackTarget<T, W, 0>::beyond(s, i, g, m);
  }

  // Write what follows from aggregate and C; false where the schedule does not serve a block.
  template <bool Beyond>
  static GEOF_INLINE bool settle(const FeedbackArguments<T>& s, int64_t i, int g, F& f) {
    const Count<M> m = f.m;
    const int64_t B = s.B, d = m * B, t = triangle(m) * B;
    write_features<T, W, M>(s.aggregate + i * d + int64_t(g) * m, m, f.aggregate);
    if (s.statistic == kNone) return true;
    const V failed = f.stabilise(s);
    if (!Beyond && sum<T, W>(failed) > 0) return false;
    V kept{};
    if constexpr (Beyond) kept = f.rescue(s, failed);
    V finite{};  // x - x is 0 for finite x and NaN otherwise
    each(m, [&](auto r) GEOF_LAMBDA {
      finite += f.factor[packed(r, r)] - f.factor[packed(r, r)];
    });
    if (sum<T, W>(f.retry) > 0 || !(sum<T, W>(finite) == 0)) report(s, f, kept);
    T* target = s.target + i * t + g;
    each(m, [&](auto r) GEOF_LAMBDA {
      each(r, [&](auto c) GEOF_LAMBDA {
        store<T, W>(target + strict(r, c) * B, f.factor[packed(r, c)]);
      });
      store<T, W>(target + scale(m, r) * B, logarithm<T, W>(f.factor[packed(r, r)]));
    });
    if constexpr (Beyond) copy_lanes<T, W, false>(s.z + i * t + g, target, m, B, kept);
    if (s.moment) write_moment(s, f, i, g);
    if (s.attempt)
      for (int l = 0; l < W; ++l) s.attempt[i * B + g + l] = int64_t(lane<T, W>(f.retry, l));
    return true;
  }

  static __attribute__((noinline)) void write_moment(const FeedbackArguments<T>& s, const F& f,
                                                     int64_t i, int g) {
    const int m = f.m;
    T* to = s.moment + (i * f.B + g) * m * m;
    for (int r = 0; r < m; ++r)
      for (int c = 0; c <= r; ++c) {
        V v = f.moment[packed(r, c)];
        if (c < r && s.statistic == kDiagonal) v = V{};
        if (c == r) v += s.floor;
        for (int l = 0; l < W; ++l)
          to[(l * m + r) * m + c] = to[(l * m + c) * m + r] = lane<T, W>(v, l);
      }
  }

  // Sort the lanes that needed more than one attempt; rare, so it may be slow.
  static __attribute__((noinline)) void report(const FeedbackArguments<T>& s, const F& f,
                                               const V& kept) {
    FeedbackStatus seen;
    for (int l = 0; l < W; ++l) {
      bool finite = true;
      for (int r = 0; r < f.m; ++r) {
        finite = finite && std::isfinite(lane<T, W>(f.factor[packed(r, r)], l));
        for (int c = 0; c <= r; ++c)
          finite = finite && (std::isfinite(lane<T, W>(f.moment[packed(r, c)], l)) ||
                              (s.statistic == kDiagonal && c < r));
      }
      const int64_t retries = int64_t(lane<T, W>(f.retry, l));
      seen.non_finite += !finite;
      seen.kept += finite && lane<T, W>(kept, l) > 0;
      seen.rescued += finite && retries > s.retries && !(lane<T, W>(kept, l) > 0);
      seen.retried += retries > 0;
      seen.most_retries = retries > seen.most_retries ? retries : seen.most_retries;
    }
#pragma omp critical(geof_feedback_status)
    {
      s.status->non_finite += seen.non_finite;
      s.status->kept += seen.kept;
      s.status->rescued += seen.rescued;
      s.status->retried += seen.retried;
      if (seen.most_retries > s.status->most_retries) s.status->most_retries = seen.most_retries;
    }
  }
};

template <class T, int W, int M>
struct FeedbackTargetBackward {
  using V = Vec<T, W>;
  using F = Feedback<T, W, M>;
  static constexpr int N = capacity(M);

  static void run(const FeedbackArguments<T>& s) {
    const Count<M> m = known<M>(s.m);
    each_node<W>(s.threads, s.n, int64_t(m) * s.B, s.B,
                 [&](int64_t i, int g) { group(s, i, g, m); });
  }

  static void group(const FeedbackArguments<T>& s, int64_t i, int g, Count<M> m) {
    group<false>(s, i, g, m);
  }
  static __attribute__((noinline, noclone, cold)) void beyond(const FeedbackArguments<T>& s,
                                                              int64_t i, int g, Count<M> m) {
    group<true>(s, i, g, m);
  }

  template <bool Beyond>
  static GEOF_INLINE void group(const FeedbackArguments<T>& s, int64_t i, int g, Count<M> m) {
    const int64_t B = s.B, d = m * B, t = triangle(m) * B, features = i * d + int64_t(g) * m;
    F f(s, i, g, m);
    V gx[N];  // of the aggregate
    read_features<T, W, M>(s.grad_aggregate + features, m, gx);
    V lower[triangle(N)], both[N][N], kept{};
    const bool curved = s.framed && (s.statistic == kFull || s.statistic == kDiagonal);
    if (s.statistic != kNone) {
      const V failed = f.stabilise(s);
      if (!Beyond && sum<T, W>(failed) > 0)
        return FeedbackTargetBackward<T, W, 0>::beyond(s, i, g, m);
      if constexpr (Beyond) kept = f.rescue(s, failed);
      factor_backward(s, f, s.grad_target + i * t + g, lower);
      if constexpr (Beyond)
        for (int k = 0; k < triangle(m); ++k) lower[k] = kept > T(0) ? V{} : lower[k];
      T* gs = s.grad_second + i * t + g;
      if (s.statistic == kMean) {
        mean_backward(f, lower, gx, s.grad_message + features);
      } else if (s.framed) {
        pull_back_backward(f, lower, both, gs);
      } else {
        for (int k = 0; k < triangle(m); ++k) store<T, W>(gs + k * B, lower[k]);
      }
    }
    if (s.framed) solve_backward(f, gx);
    each(m, [&](auto r) GEOF_LAMBDA { store<T, W>(s.grad_first + i * d + r * B + g, gx[r]); });
    if (curved) {
      put_coordinates<T, W>(s.grad_z + i * t + g, m, B, s.add_to_z, [&](auto r, auto c) GEOF_LAMBDA {
        V own = gx[r] * f.aggregate[c];
        // The transport to the left, C L^T = L^{-1} S, and that to the right.
        each(m, [&](auto k) GEOF_LAMBDA { own += both[r][k] * f.half[c][k]; });
        each(m, [&](auto k) GEOF_LAMBDA {
          if (k >= r) own += lower[packed(k, r)] * f.moment[packed(k, c)];
        });
        return V(r == c ? own * -f.frame.e[r] : -own);
      });
    } else {
      put_coordinates<T, W>(s.grad_z + i * t + g, m, B, s.add_to_z, [&](auto r, auto c) GEOF_LAMBDA {
        const V own = s.framed ? V(gx[r] * f.aggregate[c]) : V{};
        return V(r == c ? own * -f.frame.e[r] : -own);
      });
    }
    if constexpr (Beyond)
      copy_lanes<T, W, true>(s.grad_target + i * t + g, s.grad_z + i * t + g, m, B, kept);
  }

  // Reverse of the Cholesky recursion and of the logarithm. Row r collects what later rows owe it
  // before its own turn, so that few values are in work at once.
  static GEOF_INLINE void factor_backward(const FeedbackArguments<T>& s, const F& f, const T* gt,
                                          V* gc) {
    const Count<M> m = f.m;
    const int64_t B = f.B;
    V reciprocal[N];
    each(m, [&](auto r) GEOF_LAMBDA { reciprocal[r] = T(1) / f.factor[packed(r, r)]; });
    each_down(m, [&](auto r) GEOF_LAMBDA {
      V row[N];
      each(r, [&](auto c) GEOF_LAMBDA { row[c] = load<T, W>(gt + strict(r, c) * B); });
      row[r] = load<T, W>(gt + scale(m, r) * B) * reciprocal[r];
      each(m, [&](auto k) GEOF_LAMBDA {
        if (k > r)
          each(next(r), [&](auto c) GEOF_LAMBDA {
            row[c] -= gc[packed(k, r)] * f.factor[packed(k, c)];
          });
      });
      const V pivot = row[r] * reciprocal[r];
      gc[packed(r, r)] = pivot * T(0.5);
      each(r, [&](auto k) GEOF_LAMBDA { row[k] -= pivot * f.factor[packed(r, k)]; });
      each_down(r, [&](auto c) GEOF_LAMBDA {
        const V q = row[c] * reciprocal[c];
        gc[packed(r, c)] = q;
        each(c, [&](auto k) GEOF_LAMBDA { row[k] -= q * f.factor[packed(c, k)]; });
      });
    });
    if (s.statistic == kDiagonal)
      for (int r = 0; r < m; ++r)
        for (int c = 0; c < r; ++c) gc[packed(r, c)] = V{};
  }

  static GEOF_INLINE void mean_backward(const F& f, const V* gc, V* gx, T* grad_message) {
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
    write_features<T, W, M>(grad_message, f.m, g);
  }

  // Reverse of C = L^{-1} S L^{-T}: `lower`, the gradient of C, becomes lower(gC) L^{-1}, and `both`
  // is L^{-T} times that, whose symmetric part goes to S.
  static GEOF_INLINE void pull_back_backward(const F& f, V* lower, V (*both)[N], T* gs) {
    const Count<M> m = f.m;
    each(m, [&](auto r) GEOF_LAMBDA {
      each_down(next(r), [&](auto c) GEOF_LAMBDA {
        lower[packed(r, c)] *= f.inverse[c];
        each(c, [&](auto k) GEOF_LAMBDA {
          lower[packed(r, k)] -= f.frame.a[strict(c, k)] * lower[packed(r, c)];
        });
      });
    });
    each(m, [&](auto c) GEOF_LAMBDA {
      each_down(m, [&](auto r) GEOF_LAMBDA {
        V v{};
        if (r >= c) v = lower[packed(r >= c ? r : c, c)];
        each(m, [&](auto k) GEOF_LAMBDA {
          if (k > r) v -= f.frame.a[strict(k, r)] * both[k][c];
        });
        both[r][c] = v * f.inverse[r];
      });
    });
    each(m, [&](auto r) GEOF_LAMBDA {
      each(r, [&](auto c) GEOF_LAMBDA {
        store<T, W>(gs + packed(r, c) * f.B, V(both[r][c] + both[c][r]));
      });
      store<T, W>(gs + packed(r, r) * f.B, both[r][r]);
    });
  }

  // Reverse of agg = L^{-1} first: gx = L^{-T} gx.
  static GEOF_INLINE void solve_backward(const F& f, V* gx) {
    each_down(f.m, [&](auto r) GEOF_LAMBDA {
      gx[r] *= f.inverse[r];
      each(r, [&](auto c) GEOF_LAMBDA { gx[c] -= f.frame.a[strict(r, c)] * gx[r]; });
    });
  }
};

}  // namespace geof
