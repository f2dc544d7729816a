// Products of a small matrix with a wide one, inside a thread.
//
// The controller's maps act on chunks that fit the cache, in the middle of a parallel region, where
// a BLAS library cannot be called without starting threads of its own.
#pragma once

#include <vector>

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

// A small matrix in panels of kRows rows, each panel column by column: what multiply reads lies in a row.
template <class T>
struct Panels {
  int rows, columns;
  std::vector<T> data;

  explicit Panels(const Small<T>& a)
      : rows(a.rows), columns(a.columns), data(size_t(a.rows + kRows - 1) / kRows * kRows * a.columns) {
    for (int r = 0; r < rows; ++r)
      for (int k = 0; k < columns; ++k)
        data[(r / kRows * columns + k) * size_t(kRows) + r % kRows] = a.at(r, k);
  }
  GEOF_INLINE const T* row(int r) const { return data.data() + r / kRows * size_t(columns) * kRows + r % kRows; }
};

template <class T, int R>
GEOF_INLINE void multiply_rows(const T* a, int depth, const T* bias, const T* b, T* c, int64_t ld,
                               int columns) {
  constexpr int V = kWidth<T>;
  for (int j = 0; j < columns; j += 2 * V) {
    Vec<T, V> left[R], right[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) left[r] = right[r] = fill<T, V>(bias ? bias[r] : T(0));
    const T *w = a, *x = b + j;
#pragma GCC unroll 4
    for (int k = 0; k < depth; ++k, w += kRows, x += ld) {
      const Vec<T, V> one = load<T, V>(x), two = load<T, V>(x + V);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        left[r] += one * w[r];
        right[r] += two * w[r];
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      store<T, V>(c + r * ld + j, left[r]);
      store<T, V>(c + r * ld + j + V, right[r]);
    }
  }
}

// c = a b, plus a bias for every row unless it is null, for b and c with rows of `ld` values, of which the
// first `columns` are used.
template <class T>
void multiply(const Panels<T>& a, const T* bias, const T* b, T* c, int64_t ld, int columns) {
  int r = 0;
  for (; r + kRows <= a.rows; r += kRows)
    multiply_rows<T, kRows>(a.row(r), a.columns, bias ? bias + r : bias, b, c + r * ld, ld, columns);
  for (; r < a.rows; ++r)
    multiply_rows<T, 1>(a.row(r), a.columns, bias ? bias + r : bias, b, c + r * ld, ld, columns);
}

// The sums of eight registers, side by side: pairs are added crosswise until one register is left.
template <class T>
GEOF_INLINE Vec<T, 8> sums_of_eight(const Vec<T, 8>* x) {
  Vec<T, 8> two[4], four[2];
#pragma GCC unroll 4
  for (int k = 0; k < 4; ++k)
    two[k] = __builtin_shufflevector(x[2 * k], x[2 * k + 1], 0, 8, 2, 10, 4, 12, 6, 14) +
             __builtin_shufflevector(x[2 * k], x[2 * k + 1], 1, 9, 3, 11, 5, 13, 7, 15);
#pragma GCC unroll 2
  for (int k = 0; k < 2; ++k)
    four[k] = __builtin_shufflevector(two[2 * k], two[2 * k + 1], 0, 1, 8, 9, 4, 5, 12, 13) +
              __builtin_shufflevector(two[2 * k], two[2 * k + 1], 2, 3, 10, 11, 6, 7, 14, 15);
  return __builtin_shufflevector(four[0], four[1], 0, 1, 2, 3, 8, 9, 10, 11) +
         __builtin_shufflevector(four[0], four[1], 4, 5, 6, 7, 12, 13, 14, 15);
}

// total[k] += the sum of register k, for K registers.
template <class T, int V, int K>
GEOF_INLINE void add_sums(const Vec<T, V>* x, T* total) {
  if constexpr (V == 16 && K % 8 == 0) {
    Vec<T, 8> halves[K];
    for (int k = 0; k < K; ++k)
      halves[k] = __builtin_shufflevector(x[k], x[k], 0, 1, 2, 3, 4, 5, 6, 7) +
                  __builtin_shufflevector(x[k], x[k], 8, 9, 10, 11, 12, 13, 14, 15);
    add_sums<T, 8, K>(halves, total);
  } else if constexpr (V == 8 && K % 8 == 0) {
    for (int k = 0; k < K; k += 8)
      store<T, 8>(total + k, Vec<T, 8>(load<T, 8>(total + k) + sums_of_eight<T>(x + k)));
  } else {
    for (int k = 0; k < K; ++k) total[k] += sum<T, V>(x[k]);
  }
}

// The sums of x y^T over columns, the gradient of a map from the gradient of its output: tiles of
// kDots x kOthers entries, each tile in a row. A tile beyond the last row repeats it.
template <class T>
struct OuterSums {
  int rows, others;

  int tiles() const { return (others + kOthers - 1) / kOthers; }
  int64_t size() const { return int64_t((rows + kDots - 1) / kDots) * tiles() * kDots * kOthers; }
  int64_t at(int r, int c) const {
    return (int64_t(r / kDots) * tiles() + c / kOthers) * kDots * kOthers + r % kDots * kOthers +
           c % kOthers;
  }

  void add(const T* x, const T* y, int64_t ld, int columns, T* total) const {
    constexpr int V = kWidth<T>;
    for (int r = 0; r < rows; r += kDots)
      for (int c = 0; c < others; c += kOthers, total += kDots * kOthers) {
        const T *left[kDots], *right[kOthers];
#pragma GCC unroll 4
        for (int k = 0; k < kDots; ++k) left[k] = x + (r + k < rows ? r + k : rows - 1) * ld;
#pragma GCC unroll 4
        for (int k = 0; k < kOthers; ++k) right[k] = y + (c + k < others ? c + k : others - 1) * ld;
        Vec<T, V> sums[kDots * kOthers] = {};
        for (int j = 0; j < columns; j += V) {
          Vec<T, V> b[kOthers];
#pragma GCC unroll 4
          for (int k = 0; k < kOthers; ++k) b[k] = load<T, V>(right[k] + j);
#pragma GCC unroll 4
          for (int i = 0; i < kDots; ++i) {
            const Vec<T, V> a = load<T, V>(left[i] + j);
#pragma GCC unroll 4
            for (int k = 0; k < kOthers; ++k) sums[i * kOthers + k] += a * b[k];
          }
        }
        add_sums<T, V, kDots * kOthers>(sums, total);
      }
  }
};

// total[r] += the sum of row r.
template <class T>
void add_row_sums(const T* x, int rows, int64_t ld, int columns, T* total) {
  constexpr int V = kWidth<T>;
  const auto take = [&]<int R>(int first) GEOF_LAMBDA {
    Vec<T, V> sums[R] = {};
    for (int j = 0; j < columns; j += V)
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) sums[r] += load<T, V>(x + (first + r) * ld + j);
    add_sums<T, V, R>(sums, total + first);
  };
  int r = 0;
  for (; r + 8 <= rows; r += 8) take.template operator()<8>(r);
  for (; r < rows; ++r) take.template operator()<1>(r);
}

}  // namespace geof
