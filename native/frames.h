// h = L xi and y = L phi(xi), Eqs. (1), (4) and (5), and their gradients.
#pragma once

#include "lanes.h"

namespace geof {

// Features x and messages are (n, B, m); coordinates z, h and y are (n, *, B), lanes last.
template <class T>
struct FrameArguments {
  int threads;
  int64_t n;
  int m, B;
  bool framed;     // y = L phi(xi); otherwise y = phi(xi)
  bool lanes_out;  // h lanes last; otherwise (n, B, m), as a readout wants it
  int add;         // gradients that are added to: 1 of z, 2 of x, 4 of message
  const T *z, *x, *message;
  T *h, *y;
  const T *grad_h, *grad_y;
  T *grad_z, *grad_x, *grad_message;
};

// W blocks, of P nodes: L as strictly lower entries and the exponentials of l.
template <class T, int W, int M, int P>
struct Frame {
  Vec<T, W> a[triangle(capacity(M))];
  Vec<T, W> e[capacity(M)];

  GEOF_INLINE Frame(const T* z, int m, int B) {
    const int64_t t = int64_t(triangle(m)) * B;
    for (int k = 0; k < m * (m - 1) / 2; ++k) a[k] = load<T, W, P>(z + int64_t(k) * B, t);
    for (int r = 0; r < m; ++r)
      e[r] = exponential<T, W>(load<T, W, P>(z + int64_t(scale(m, r)) * B, t));
  }
  GEOF_INLINE void apply(const Vec<T, W>* x, Vec<T, W>* h, int m) const {
    for (int r = 0; r < m; ++r) {
      Vec<T, W> total = e[r] * x[r];
      for (int c = 0; c < r; ++c) total += a[strict(r, c)] * x[c];
      h[r] = total;
    }
  }
  // g_x += L^T g_h and g_L += g_h x^T (strictly lower part and the exponentials' part).
  GEOF_INLINE void apply_backward(const Vec<T, W>* x, const Vec<T, W>* gh, Vec<T, W>* gx,
                                  Vec<T, W>* ga, Vec<T, W>* ge, int m) const {
    for (int r = 0; r < m; ++r) {
      gx[r] += e[r] * gh[r];
      ge[r] += gh[r] * x[r];
      for (int c = 0; c < r; ++c) {
        gx[c] += a[strict(r, c)] * gh[r];
        ga[strict(r, c)] += gh[r] * x[c];
      }
    }
  }
};

// Call work.template operator()<W, P>(i, g) for every group of W blocks, of P nodes at once where
// the processor's registers are wide enough, over nodes [0, n).
template <class T, int W, int M, class Work>
GEOF_INLINE void each_group(int64_t begin, int64_t end, int B, const Work& work) {
  int64_t i = begin;
  if constexpr (kPairs && sizeof(T) == 4 && W == 8 && M > 0) {
    if (B == 8)
      for (; i + 2 <= end; i += 2) work.template operator()<16, 2>(i, 0);
  }
  for (; i < end; ++i)
    for (int g = 0; g < B; g += W) work.template operator()<W, 1>(i, g);
}

constexpr int64_t kNodes = 64;  // nodes a thread takes at once

template <class T, int W, int M, class Work>
void each_node(int threads, int64_t n, int64_t d, int B, const Work& work) {
#pragma omp parallel for schedule(static) num_threads(threads) if (n * d > 16384)
  for (int64_t begin = 0; begin < n; begin += kNodes)
    each_group<T, W, M>(begin, begin + kNodes < n ? begin + kNodes : n, B, work);
}

template <class T, int W, int M>
struct ApplyFrames {
  static void run(const FrameArguments<T>& s) {
    const int m = M ? M : s.m, B = s.B;
    const int64_t d = int64_t(m) * B, t = int64_t(triangle(m)) * B;
    each_node<T, W, M>(s.threads, s.n, d, B, [&]<int L, int P>(int64_t i, int g) {
      group<L, P>(s, i, g, m, B, d, t);
    });
  }

  template <int L, int P>
  static GEOF_INLINE void group(const FrameArguments<T>& s, int64_t i, int g, int m, int B,
                                int64_t d, int64_t t) {
    using V = Vec<T, L>;
    const Frame<T, L, M, P> frame(s.z + i * t + g, m, B);
    V x[capacity(M)], h[capacity(M)];
    const int64_t from = i * d + int64_t(g) * m;
    read_features<T, L, M, P>(s.x + from, m, d, x);
    frame.apply(x, h, m);
    if (s.lanes_out) {
      for (int k = 0; k < m; ++k) store<T, L, P>(s.h + i * d + k * B + g, d, h[k]);
    } else {
      write_features<T, L, M, P>(s.h + from, m, d, h);
    }
    if (!s.message) return;
    read_features<T, L, M, P>(s.message + from, m, d, x);
    if (s.framed) frame.apply(x, h, m);
    for (int k = 0; k < m; ++k)
      store<T, L, P>(s.y + i * d + k * B + g, d, s.framed ? h[k] : x[k]);
  }
};

template <class T, int W, int M>
struct ApplyFramesBackward {
  static void run(const FrameArguments<T>& s) {
    const int m = M ? M : s.m, B = s.B;
    const int64_t d = int64_t(m) * B, t = int64_t(triangle(m)) * B;
    each_node<T, W, M>(s.threads, s.n, d, B, [&]<int L, int P>(int64_t i, int g) {
      group<L, P>(s, i, g, m, B, d, t);
    });
  }

  template <int L, int P>
  static GEOF_INLINE void group(const FrameArguments<T>& s, int64_t i, int g, int m, int B,
                                int64_t d, int64_t t) {
    using V = Vec<T, L>;
    const Frame<T, L, M, P> frame(s.z + i * t + g, m, B);
    V x[capacity(M)], gh[capacity(M)], gx[capacity(M)];
    V ga[triangle(capacity(M))], ge[capacity(M)];
    const int64_t from = i * d + int64_t(g) * m;
    for (int k = 0; k < m * (m - 1) / 2; ++k) ga[k] = V{};
    read_features<T, L, M, P>(s.x + from, m, d, x);
    if (s.lanes_out) {
      for (int k = 0; k < m; ++k) gh[k] = load<T, L, P>(s.grad_h + i * d + k * B + g, d);
    } else {
      read_features<T, L, M, P>(s.grad_h + from, m, d, gh);
    }
    for (int k = 0; k < m; ++k) gx[k] = ge[k] = V{};
    if (s.add & 2) read_features<T, L, M, P>(s.grad_x + from, m, d, gx);
    frame.apply_backward(x, gh, gx, ga, ge, m);
    write_features<T, L, M, P>(s.grad_x + from, m, d, gx);
    if (s.message) {
      for (int k = 0; k < m; ++k) gx[k] = V{};
      if (s.add & 4) read_features<T, L, M, P>(s.grad_message + from, m, d, gx);
      read_features<T, L, M, P>(s.message + from, m, d, x);
      for (int k = 0; k < m; ++k) {
        gh[k] = load<T, L, P>(s.grad_y + i * d + k * B + g, d);
        if (!s.framed) gx[k] += gh[k];
      }
      if (s.framed) frame.apply_backward(x, gh, gx, ga, ge, m);
      write_features<T, L, M, P>(s.grad_message + from, m, d, gx);
    }
    T* gz = s.grad_z + i * t + g;
    for (int k = 0; k < triangle(m); ++k) {
      const int r = k - m * (m - 1) / 2;
      const V own = r < 0 ? ga[k] : V(ge[r] * frame.e[r]);
      T* to = gz + int64_t(k) * B;
      store<T, L, P>(to, t, s.add & 1 ? V(load<T, L, P>(to, t) + own) : own);
    }
  }
};

}  // namespace geof
