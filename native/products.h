// Products of a small matrix with a wide one, inside a thread.
//
// The controller's maps act on chunks that fit the cache, in the middle of a parallel region, where
// a BLAS library cannot be called without starting threads of its own.
#pragma once

#include "lanes.h"

namespace geof {

#if defined(__AVX512F__)
constexpr int kRegisterBytes = 64, kRows = 8, kDots = 4, kOthers = 4;
#elif defined(__AVX2__)
constexpr int kRegisterBytes = 32, kRows = 4, kDots = 4, kOthers = 2;
#else
constexpr int kRegisterBytes = 16, kRows = 4, kDots = 4, kOthers = 2;
#endif

template <class T>
constexpr int kWidth = kRegisterBytes / int(sizeof(T));
// Columns are padded to a multiple of this; padding holds finite values.
constexpr int kColumnStep = 32;

// A matrix by its strides, so that a transpose is the same memory.
template <class T>
struct Small {
  const T* data;
  int rows, columns;
  int64_t row_stride, column_stride;

  Small transposed() const { return {data, columns, rows, column_stride, row_stride}; }
  GEOF_INLINE T at(int r, int c) const { return data[r * row_stride + c * column_stride]; }
};

template <class T, int R>
GEOF_INLINE void multiply_rows(const Small<T>& a, int first, const T* b, T* c, int64_t ld,
                               int columns) {
  constexpr int V = kWidth<T>;
  for (int j = 0; j < columns; j += 2 * V) {
    Vec<T, V> left[R] = {}, right[R] = {};
    for (int k = 0; k < a.columns; ++k) {
      const Vec<T, V> x = load<T, V>(b + k * ld + j), y = load<T, V>(b + k * ld + j + V);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const T w = a.at(first + r, k);
        left[r] += x * w;
        right[r] += y * w;
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      store<T, V>(c + (first + r) * ld + j, left[r]);
      store<T, V>(c + (first + r) * ld + j + V, right[r]);
    }
  }
}

// c = a b for b and c with rows of `ld` values, of which the first `columns` are used.
template <class T>
void multiply(const Small<T>& a, const T* b, T* c, int64_t ld, int columns) {
  int r = 0;
  for (; r + kRows <= a.rows; r += kRows) multiply_rows<T, kRows>(a, r, b, c, ld, columns);
  for (; r < a.rows; ++r) multiply_rows<T, 1>(a, r, b, c, ld, columns);
}

template <class T, int R, int S>
GEOF_INLINE void dots(const T* x, const T* y, int64_t ld, int columns, T* total, int64_t stride) {
  constexpr int V = kWidth<T>;
  Vec<T, V> sums[R][S] = {};
  for (int j = 0; j < columns; j += V) {
    Vec<T, V> left[R];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) left[r] = load<T, V>(x + r * ld + j);
#pragma GCC unroll 4
    for (int s = 0; s < S; ++s) {
      const Vec<T, V> right = load<T, V>(y + s * ld + j);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) sums[r][s] += left[r] * right;
    }
  }
  for (int r = 0; r < R; ++r)
    for (int s = 0; s < S; ++s) total[r * stride + s] += sum<T, V>(sums[r][s]);
}

// R rows of add_outer.
template <class T, int R>
GEOF_INLINE void add_rows(const T* x, const T* y, int others, int64_t ld, int columns, T* total) {
  int s = 0;
  for (; s + kOthers <= others; s += kOthers)
    dots<T, R, kOthers>(x, y + s * ld, ld, columns, total + s, others);
  for (; s < others; ++s) dots<T, R, 1>(x, y + s * ld, ld, columns, total + s, others);
}

// total (rows, others) += x y^T, the gradient of a map from the gradient of its output.
template <class T>
void add_outer(const T* x, int rows, const T* y, int others, int64_t ld, int columns, T* total) {
  int r = 0;
  for (; r + kDots <= rows; r += kDots)
    add_rows<T, kDots>(x + r * ld, y, others, ld, columns, total + int64_t(r) * others);
  for (; r < rows; ++r)
    add_rows<T, 1>(x + r * ld, y, others, ld, columns, total + int64_t(r) * others);
}

}  // namespace geof
