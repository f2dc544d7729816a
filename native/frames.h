// h = L xi and y = L phi(xi), Eqs. (1), (4) and (5), and their gradients.
#pragma once

#include "lanes.h"
#include "tasks.h"

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

// W blocks: L as strictly lower entries and the exponentials of l.
template <class T, int W, int M>
struct Frame {
  using V = Vec<T, W>;

  V a[triangle(capacity(M))];
  V e[capacity(M)];

  GEOF_INLINE Frame(const T* z, Count<M> m, int64_t B) {
    each(m, [&](auto r) GEOF_LAMBDA {
      each(r, [&](auto c) GEOF_LAMBDA { a[strict(r, c)] = load<T, W>(z + strict(r, c) * B); });
    });
    each(m, [&](auto r) GEOF_LAMBDA {
      e[r] = exponential<T, W>(load<T, W>(z + scale(m, r) * B));
    });
  }
  GEOF_INLINE void apply(const V* x, V* h, Count<M> m) const {
    each(m, [&](auto r) GEOF_LAMBDA {
      V total = e[r] * x[r];
      each(r, [&](auto c) GEOF_LAMBDA { total += a[strict(r, c)] * x[c]; });
      h[r] = total;
    });
  }
  // gx += L^T gh.
  GEOF_INLINE void apply_transposed(const V* gh, V* gx, Count<M> m) const {
    each(m, [&](auto r) GEOF_LAMBDA {
      gx[r] += e[r] * gh[r];
      each(r, [&](auto c) GEOF_LAMBDA { gx[c] += a[strict(r, c)] * gh[r]; });
    });
  }
};

// Add to a block's gradient of z, or write it: own(r, c) of a_rc, then own(r, r) of l_r.
template <class T, int W, class C, class Own>
GEOF_INLINE void put_coordinates(T* gz, C m, int64_t B, bool add, const Own& own) {
  const auto put = [&](T* to, Vec<T, W> v) GEOF_LAMBDA {
    store<T, W>(to, add ? Vec<T, W>(load<T, W>(to) + v) : v);
  };
  each(m, [&](auto r) GEOF_LAMBDA {
    each(r, [&](auto c) GEOF_LAMBDA { put(gz + strict(r, c) * B, own(r, c)); });
    put(gz + scale(m, r) * B, own(r, r));
  });
}

// Call work(i, g) for every group of W blocks of every node.
template <int W, class Work>
void each_node(int threads, int64_t n, int64_t d, int B, const Work& work) {
#pragma omp parallel for schedule(static) num_threads(threads) if (n * d > kAlone)
  for (int64_t begin = 0; begin < n; begin += kNodes)
    for (int64_t i = begin; i < begin + kNodes && i < n; ++i)
      for (int g = 0; g < B; g += W) work(i, g);
}

template <class T, int W, int M>
struct ApplyFrames {
  using V = Vec<T, W>;

  static void run(const FrameArguments<T>& s) {
    const Count<M> m = known<M>(s.m);
    each_node<W>(s.threads, s.n, int64_t(m) * s.B, s.B,
                 [&](int64_t i, int g) GEOF_LAMBDA { group(s, i, g, m); });
  }

  static GEOF_INLINE void group(const FrameArguments<T>& s, int64_t i, int g, Count<M> m) {
    const int64_t B = s.B, d = m * B, t = triangle(m) * B, from = i * d + int64_t(g) * m;
    const Frame<T, W, M> frame(s.z + i * t + g, m, B);
    V x[capacity(M)], h[capacity(M)];
    read_features<T, W, M>(s.x + from, m, x);
    frame.apply(x, h, m);
    if (s.lanes_out) {
      each(m, [&](auto k) GEOF_LAMBDA { store<T, W>(s.h + i * d + k * B + g, h[k]); });
    } else {
      write_features<T, W, M>(s.h + from, m, h);
    }
    if (!s.message) return;
    read_features<T, W, M>(s.message + from, m, x);
    if (s.framed) frame.apply(x, h, m);
    const V* y = s.framed ? h : x;
    each(m, [&](auto k) GEOF_LAMBDA { store<T, W>(s.y + i * d + k * B + g, y[k]); });
  }
};

template <class T, int W, int M>
struct ApplyFramesBackward {
  using V = Vec<T, W>;

  static void run(const FrameArguments<T>& s) {
    const Count<M> m = known<M>(s.m);
    each_node<W>(s.threads, s.n, int64_t(m) * s.B, s.B,
                 [&](int64_t i, int g) GEOF_LAMBDA { group(s, i, g, m); });
  }

  static GEOF_INLINE void group(const FrameArguments<T>& s, int64_t i, int g, Count<M> m) {
    const int64_t B = s.B, d = m * B, t = triangle(m) * B, from = i * d + int64_t(g) * m;
    const Frame<T, W, M> frame(s.z + i * t + g, m, B);
    V x[capacity(M)], gh[capacity(M)], message[capacity(M)], gy[capacity(M)];
    read_features<T, W, M>(s.x + from, m, x);
    if (s.lanes_out) {
      each(m, [&](auto k) GEOF_LAMBDA { gh[k] = load<T, W>(s.grad_h + i * d + k * B + g); });
    } else {
      read_features<T, W, M>(s.grad_h + from, m, gh);
    }
    pull(frame, gh, s.grad_x + from, m, s.add & 2);
    T* gz = s.grad_z + i * t + g;
    if (s.message) {
      each(m, [&](auto k) GEOF_LAMBDA { gy[k] = load<T, W>(s.grad_y + i * d + k * B + g); });
      if (s.framed) {
        read_features<T, W, M>(s.message + from, m, message);
        pull(frame, gy, s.grad_message + from, m, s.add & 4);
        put_coordinates<T, W>(gz, m, B, s.add & 1, [&](auto r, auto c) GEOF_LAMBDA {
          const V own = gh[r] * x[c] + gy[r] * message[c];
          return r == c ? V(own * frame.e[r]) : own;
        });
        return;
      }
      if (s.add & 4) {
        read_features<T, W, M>(s.grad_message + from, m, message);
        each(m, [&](auto k) GEOF_LAMBDA { gy[k] += message[k]; });
      }
      write_features<T, W, M>(s.grad_message + from, m, gy);
    }
    put_coordinates<T, W>(gz, m, B, s.add & 1, [&](auto r, auto c) GEOF_LAMBDA {
      const V own = gh[r] * x[c];
      return r == c ? V(own * frame.e[r]) : own;
    });
  }

  // Write L^T gh, or add it.
  static GEOF_INLINE void pull(const Frame<T, W, M>& frame, const V* gh, T* to, Count<M> m,
                               bool add) {
    V gx[capacity(M)];
    if (add) {
      read_features<T, W, M>(to, m, gx);
    } else {
      each(m, [&](auto k) GEOF_LAMBDA { gx[k] = V{}; });
    }
    frame.apply_transposed(gh, gx, m);
    write_features<T, W, M>(to, m, gx);
  }
};

}  // namespace geof
