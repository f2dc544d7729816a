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
  const T *z, *x, *message;
  T *h, *y;
  const T *grad_h, *grad_y;
  T *grad_z, *grad_x, *grad_message;
};

// One group of W blocks of a node: L as strictly lower entries and the exponentials of l.
template <class T, int W, int M>
struct Frame {
  Vec<T, W> a[triangle(capacity(M))];
  Vec<T, W> e[capacity(M)];

  GEOF_INLINE Frame(const T* z, int m, int B) {
    for (int k = 0; k < m * (m - 1) / 2; ++k) a[k] = load<T, W>(z + int64_t(k) * B);
    for (int r = 0; r < m; ++r)
      e[r] = exponential<T, W>(load<T, W>(z + int64_t(scale(m, r)) * B));
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

template <class T, int W, int M>
struct ApplyFrames {
  using V = Vec<T, W>;

  static void run(const FrameArguments<T>& s) {
    const int m = M ? M : s.m, B = s.B;
    const int64_t d = int64_t(m) * B, t = int64_t(triangle(m)) * B;
#pragma omp parallel for schedule(static) num_threads(s.threads) if (s.n * d > 16384)
    for (int64_t i = 0; i < s.n; ++i)
      for (int g = 0; g < B; g += W) node(s, i, g, m, B, d, t);
  }

  static GEOF_INLINE void node(const FrameArguments<T>& s, int64_t i, int g, int m, int B,
                               int64_t d, int64_t t) {
    const Frame<T, W, M> frame(s.z + i * t + g, m, B);
    V x[capacity(M)], h[capacity(M)];
    const int64_t from = i * d + int64_t(g) * m;
    for (int k = 0; k < m; ++k) x[k] = gather<T, W>(s.x + from + k, m);
    frame.apply(x, h, m);
    for (int k = 0; k < m; ++k) {
      if (s.lanes_out) {
        store<T, W>(s.h + i * d + k * B + g, h[k]);
      } else {
        scatter<T, W>(s.h + from + k, m, h[k]);
      }
    }
    if (!s.message) return;
    for (int k = 0; k < m; ++k) x[k] = gather<T, W>(s.message + from + k, m);
    if (s.framed) frame.apply(x, h, m);
    for (int k = 0; k < m; ++k) store<T, W>(s.y + i * d + k * B + g, s.framed ? h[k] : x[k]);
  }
};

template <class T, int W, int M>
struct ApplyFramesBackward {
  using V = Vec<T, W>;

  static void run(const FrameArguments<T>& s) {
    const int m = M ? M : s.m, B = s.B;
    const int64_t d = int64_t(m) * B, t = int64_t(triangle(m)) * B;
#pragma omp parallel for schedule(static) num_threads(s.threads) if (s.n * d > 16384)
    for (int64_t i = 0; i < s.n; ++i)
      for (int g = 0; g < B; g += W) node(s, i, g, m, B, d, t);
  }

  static GEOF_INLINE void node(const FrameArguments<T>& s, int64_t i, int g, int m, int B,
                               int64_t d, int64_t t) {
    const Frame<T, W, M> frame(s.z + i * t + g, m, B);
    V x[capacity(M)], gh[capacity(M)], gx[capacity(M)];
    V ga[triangle(capacity(M))], ge[capacity(M)];
    const int64_t from = i * d + int64_t(g) * m;
    for (int k = 0; k < m * (m - 1) / 2; ++k) ga[k] = V{};
    for (int k = 0; k < m; ++k) {
      x[k] = gather<T, W>(s.x + from + k, m);
      gh[k] = s.lanes_out ? load<T, W>(s.grad_h + i * d + k * B + g)
                          : gather<T, W>(s.grad_h + from + k, m);
      gx[k] = ge[k] = V{};
    }
    frame.apply_backward(x, gh, gx, ga, ge, m);
    for (int k = 0; k < m; ++k) scatter<T, W>(s.grad_x + from + k, m, gx[k]);
    if (s.message) {
      for (int k = 0; k < m; ++k) {
        x[k] = gather<T, W>(s.message + from + k, m);
        gh[k] = load<T, W>(s.grad_y + i * d + k * B + g);
        gx[k] = s.framed ? V{} : gh[k];
      }
      if (s.framed) frame.apply_backward(x, gh, gx, ga, ge, m);
      for (int k = 0; k < m; ++k) scatter<T, W>(s.grad_message + from + k, m, gx[k]);
    }
    T* gz = s.grad_z + i * t + g;
    for (int k = 0; k < m * (m - 1) / 2; ++k) store<T, W>(gz + int64_t(k) * B, ga[k]);
    for (int r = 0; r < m; ++r)
      store<T, W>(gz + int64_t(scale(m, r)) * B, V(ge[r] * frame.e[r]));
  }
};

}  // namespace geof
