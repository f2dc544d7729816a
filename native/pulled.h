// Neighbourhoods of few edges, Eqs. (5), (6) and (8) as the paper writes them: each residual is
// carried into the target's frame by a substitution of its own,
//
//   q_ij = L_i^{-1} (y_j - y_i),   C_i = sum_j w_ij q_ij q_ij^T + floor I.
//
// Per node, C = L^{-1} S L^{-T} (feedback.h) costs as much as m + (m + 2) / 3 of these, forward and
// backward, so up to m neighbours they are cheaper. The node itself, whose residual is nothing, does
// not count: molecules and citations have two to five.
#pragma once

#include "feedback.h"
#include "moments.h"

namespace geof {

// f(r, c, sum_k x_k[r] y_k[c]) for the lower triangle, two rows at a time so that sums stay in registers.
template <class T, int W, int M, class F>
GEOF_INLINE void lower_products(const Vec<T, W> (*x)[capacity(M)], const Vec<T, W> (*y)[capacity(M)],
                                int count, Count<M> m, const F& f) {
  using V = Vec<T, W>;
  if constexpr (kUnrolled && M > 0 && M % 2 == 0) {
    each(Constant<M / 2>{}, [&](auto half) GEOF_LAMBDA {
      constexpr int r = 2 * half, s = r + 1;
      V upper[s] = {}, lower[s + 1] = {};
      for (int k = 0; k < count; ++k) {
        const V one = x[k][r], two = x[k][s];
        each(Constant<s>{}, [&](auto c) GEOF_LAMBDA {
          upper[c] += one * y[k][c];
          lower[c] += two * y[k][c];
        });
        lower[s] += two * y[k][s];
      }
      each(Constant<s>{}, [&](auto c) GEOF_LAMBDA { f(Constant<r>{}, c, upper[c]); });
      each(Constant<s + 1>{}, [&](auto c) GEOF_LAMBDA { f(Constant<s>{}, c, lower[c]); });
    });
  } else {
    for (int r = 0; r < m; ++r)
      for (int c = 0; c <= r; ++c) {
        V total{};
        for (int k = 0; k < count; ++k) total += x[k][r] * y[k][c];
        f(r, c, total);
      }
  }
}

template <class T, int W, int M>
struct Pulled {
  using V = Vec<T, W>;
  using A = MomentArguments<T>;
  using F = Feedback<T, W, M>;
  using Rows = EdgeMoments<T, W, M>;
  using Back = EdgeMomentsBackward<T, W, M>;
  static constexpr int N = capacity(M), kMost = N + 1;  // edges, the self-loop among them

  int count = 0;
  int64_t edge[kMost];   // those with a residual
  V residual[kMost][N];  // q_ij
  V weighted[kMost][N];  // w_ij q_ij

  // Whether row i has at most m edges beside the self-loop.
  static bool serves(const A& s, int64_t i) { return s.pointer[i + 1] - s.pointer[i] <= s.m + 1; }

  // Fills in the aggregate and C of f, whose frame is there.
  GEOF_INLINE Pulled(const A& s, int64_t i, int64_t g, F& f, bool framed) {
    s.table ? gather<true>(s, i, g, f, framed) : gather<false>(s, i, g, f, framed);
    if (framed) f.solve(f.aggregate);
    lower_products<T, W, M>(weighted, residual, count, f.m, [&](auto r, auto c, V v) GEOF_LAMBDA {
      f.moment[packed(r, c)] = v;
    });
  }

  template <bool Carrying>
  GEOF_INLINE void gather(const A& s, int64_t i, int64_t g, F& f, bool framed) {
    const Count<M> m = f.m;
    const int64_t B = s.B, d = m * B, self = s.first_target + i;
    const int64_t begin = s.pointer[i], end = s.pointer[i + 1];
    const T* yi = s.y + self * d + g;
    each(m, [&](auto r) GEOF_LAMBDA { f.aggregate[r] = load<T, W>(yi + r * B); });
    for (int64_t e = begin; e < end; ++e) {
      if (g == 0 && e + 4 < s.E) prefetch(s.y + s.source[e + 4] * d, d);
      const T* own = nullptr;
      if constexpr (Carrying) own = Rows::carried(s, e, d, g);
      // Alone, a node's own residual tells whether it is finite.
      if (s.source[e] == self && !own && end - begin > 1) continue;
      const T *yj = s.y + s.source[e] * d + g, w = s.weight[e];
      V* q = residual[count];
      each(m, [&](auto r) GEOF_LAMBDA {
        V message = load<T, W>(yj + r * B);
        if (Carrying && own) message += load<T, W>(own + r * B);
        q[r] = message - load<T, W>(yi + r * B);
        f.aggregate[r] += q[r] * w;
      });
      if (framed) f.solve(q);
      each(m, [&](auto r) GEOF_LAMBDA { weighted[count][r] = q[r] * w; });
      edge[count++] = e;
    }
  }

  // Aggregate and target of row i, which is `local` to the feedback's arrays.
  static void row(const A& s, int64_t i, const FeedbackArguments<T>& feedback, int64_t local,
                  Count<M> m, T* first, T* second) {
    for (int g = 0; g < s.B; g += W)
      if (!group(s, i, feedback, local, g, m)) {
        Rows::sum_row(s, i, m, first, second);
        FeedbackTarget<T, W, 0>::beyond(feedback, local, g, m);
      }
  }

  static bool group(const A& s, int64_t i, const FeedbackArguments<T>& feedback, int64_t local, int g,
                    Count<M> m) {
    F f(feedback.z + local * triangle(m) * s.B + g, m, s.B);
    const Pulled pulled(s, i, g, f, feedback.framed);
    return FeedbackTarget<T, W, M>::template settle<false>(feedback, local, g, f);
  }

  // The reverse: gradients of z, and what the edges of row i do to i and leave for their sources.
  static void row_backward(const A& s, int64_t i, const FeedbackArguments<T>& feedback, int64_t local,
                           Count<M> m, T* first, T* second, const typename Back::Edges& edges) {
    const int64_t B = s.B, d = m * B, t = triangle(m) * B, begin = s.pointer[i];
    T* rows = edges.row + (begin - edges.begin) * d;
    const T *pull = feedback.grad_first + local * d, *curve = feedback.grad_second + local * t;
    V score[kMost] = {};
    for (int64_t e = begin; e < s.pointer[i + 1]; ++e) prefetch(s.h + s.source[e] * d, d);
    for (int g = 0; g < B; g += W)
      if (!group_backward(s, i, feedback, local, g, m, rows, score)) {
        Rows::sum_row(s, i, m, first, second);
        FeedbackTargetBackward<T, W, 0>::beyond(feedback, local, g, m);
        for (int64_t e = begin; e < s.pointer[i + 1]; ++e)
          score[e - begin] += Back::edge(s, i, e, g, m, pull, curve, rows + (e - begin) * d);
      }
    T* force = edges.force + (begin - edges.begin);
    for (int64_t e = begin; e < s.pointer[i + 1]; ++e)
      force[e - begin] = sum<T, W>(score[e - begin]) + (s.grad_weight ? s.grad_weight[e] : T(0));
    Back::settle(s, i, d, pull, rows, force);
  }

  static bool group_backward(const A& s, int64_t i, const FeedbackArguments<T>& feedback,
                             int64_t local, int g, Count<M> m, T* rows, V* score) {
    using Reverse = FeedbackTargetBackward<T, W, M>;
    const int64_t B = s.B, d = m * B, t = triangle(m) * B, begin = s.pointer[i];
    F f(feedback.z + local * t + g, m, B);
    Pulled pulled(s, i, g, f, feedback.framed);
    if (sum<T, W>(f.stabilise(feedback)) > 0) return false;
    V lower[triangle(N)], gx[N], p[N];
    Reverse::factor_backward(feedback, f, feedback.grad_target + local * t + g, lower);
    read_features<T, W, M>(feedback.grad_aggregate + local * d + int64_t(g) * m, m, gx);
    each(m, [&](auto r) GEOF_LAMBDA { p[r] = gx[r]; });
    if (feedback.framed) Reverse::solve_backward(f, p);
    each(m, [&](auto r) GEOF_LAMBDA { store<T, W>(feedback.grad_first + local * d + r * B + g, p[r]); });
    for (int64_t e = begin; e < s.pointer[i + 1]; ++e)
      each(m, [&](auto r) GEOF_LAMBDA {
        store<T, W>(rows + (e - begin) * d + r * B + g, V(p[r] * s.weight[e]));
      });
    for (int k = 0; k < pulled.count; ++k) {
      const int64_t e = pulled.edge[k];
      const V* q = pulled.residual[k];
      T* row = rows + (e - begin) * d + g;
      V bent[N], total{};
      Back::bend([&](int at) GEOF_LAMBDA { return lower[at]; }, q, bent, m);
      each(m, [&](auto r) GEOF_LAMBDA { total += (gx[r] + bent[r] * T(0.5)) * q[r]; });
      score[e - begin] += total;
      if (feedback.framed) Reverse::solve_backward(f, bent);
      each(m, [&](auto r) GEOF_LAMBDA {
        const V own = bent[r] * s.weight[e];
        pulled.weighted[k][r] = own;
        store<T, W>(row + r * B, V(load<T, W>(row + r * B) + own));
      });
    }
    // q = L^{-1} (y_j - y_i) and agg = L^{-1} first: each gives -L^{-T} g times itself.
    T* gz = feedback.grad_z + local * t + g;
    const auto put = [&](T* to, V v) GEOF_LAMBDA {
      store<T, W>(to, feedback.add_to_z ? V(load<T, W>(to) + v) : v);
    };
    lower_products<T, W, M>(pulled.weighted, pulled.residual, pulled.count, m,
                            [&](auto r, auto c, V v) GEOF_LAMBDA {
      const V own = feedback.framed ? V(-(v + p[r] * f.aggregate[c])) : V{};
      r == c ? put(gz + scale(m, r) * B, V(own * f.frame.e[r])) : put(gz + strict(r, c) * B, own);
    });
    return true;
  }
};

}  // namespace geof
