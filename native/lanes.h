// Vectors whose lanes are blocks: one register holds one coordinate of W blocks.
//
// The compiler's vector extension is used throughout, so the same source serves every
// instruction set; kernels.cpp is compiled once for each.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#define GEOF_INLINE inline __attribute__((always_inline))

namespace geof {

template <class T>
struct BitsOf;
template <>
struct BitsOf<float> {
  using type = int32_t;
};
template <>
struct BitsOf<double> {
  using type = int64_t;
};

template <class T, int W>
struct Lanes {
  typedef T type __attribute__((vector_size(W * sizeof(T))));
  typedef typename BitsOf<T>::type bits __attribute__((vector_size(W * sizeof(T))));
};
template <class T>
struct Lanes<T, 1> {
  using type = T;
  using bits = typename BitsOf<T>::type;
};

template <class T, int W>
using Vec = typename Lanes<T, W>::type;
template <class T, int W>
using Bits = typename Lanes<T, W>::bits;

template <class T, int W>
GEOF_INLINE Vec<T, W> load(const T* from) {
  Vec<T, W> v;
  std::memcpy(&v, from, sizeof v);
  return v;
}
template <class T, int W>
GEOF_INLINE void store(T* to, Vec<T, W> v) {
  std::memcpy(to, &v, sizeof v);
}
template <class T, int W>
GEOF_INLINE Vec<T, W> fill(T x) {
  if constexpr (W == 1) {
    return x;
  } else {
    return Vec<T, W>{} + x;
  }
}
template <class T, int W>
GEOF_INLINE T lane(const Vec<T, W>& v, int l) {
  if constexpr (W == 1) {
    return v;
  } else {
    return v[l];
  }
}
template <class T, int W>
GEOF_INLINE void set_lane(Vec<T, W>& v, int l, T x) {
  if constexpr (W == 1) {
    v = x;
  } else {
    v[l] = x;
  }
}
// The wide processors' registers hold eight blocks of two nodes: with P = 2 the upper lanes come
// from `part` values further on.
#if defined(__AVX512F__)
constexpr bool kPairs = true;
#else
constexpr bool kPairs = false;
#endif

template <class T, int W, int P>
GEOF_INLINE Vec<T, W> load(const T* from, int64_t part) {
  if constexpr (P == 1) {
    return load<T, W>(from);
  } else {
    static_assert(P == 2 && W == 16);
    const Vec<T, 8> a = load<T, 8>(from), b = load<T, 8>(from + part);
    return __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  }
}
template <class T, int W, int P>
GEOF_INLINE void store(T* to, int64_t part, Vec<T, W> v) {
  if constexpr (P == 1) {
    store<T, W>(to, v);
  } else {
    store<T, 8>(to, __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7));
    store<T, 8>(to + part, __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15));
  }
}
template <class T, int W, int P>
GEOF_INLINE void scatter(T* to, int64_t stride, int64_t part, Vec<T, W> v) {
  for (int l = 0; l < W; ++l)
    to[l / (W / P) * part + l % (W / P) * stride] = lane<T, W>(v, l);
}

// Rows to columns, in three rounds of shuffles.
template <class T>
GEOF_INLINE void transpose8(Vec<T, 8>* x) {
  using V = Vec<T, 8>;
  V a[8], b[8];
#pragma GCC unroll 4
  for (int k = 0; k < 4; ++k) {
    a[2 * k] = __builtin_shufflevector(x[2 * k], x[2 * k + 1], 0, 8, 2, 10, 4, 12, 6, 14);
    a[2 * k + 1] = __builtin_shufflevector(x[2 * k], x[2 * k + 1], 1, 9, 3, 11, 5, 13, 7, 15);
  }
#pragma GCC unroll 2
  for (int k = 0; k < 8; k += 4)
#pragma GCC unroll 2
    for (int l = 0; l < 2; ++l) {
      b[k + l] = __builtin_shufflevector(a[k + l], a[k + l + 2], 0, 1, 8, 9, 4, 5, 12, 13);
      b[k + l + 2] = __builtin_shufflevector(a[k + l], a[k + l + 2], 2, 3, 10, 11, 6, 7, 14, 15);
    }
#pragma GCC unroll 4
  for (int k = 0; k < 4; ++k) {
    x[k] = __builtin_shufflevector(b[k], b[k + 4], 0, 1, 2, 3, 8, 9, 10, 11);
    x[k + 4] = __builtin_shufflevector(b[k], b[k + 4], 4, 5, 6, 7, 12, 13, 14, 15);
  }
}

// Features lie block by block, m values each; registers hold one value of W blocks. Read the W
// blocks at `from` (of P nodes, `part` values apart) into x[0..m), or write them back.
template <class T, int W, int M, int P>
GEOF_INLINE void read_features(const T* from, int m, int64_t part, Vec<T, W>* x) {
  if constexpr (M == 8 && W / P == 8) {
    Vec<T, 8> half[P][8];
#pragma GCC unroll 2
    for (int p = 0; p < P; ++p) {
#pragma GCC unroll 8
      for (int l = 0; l < 8; ++l) half[p][l] = load<T, 8>(from + p * part + l * 8);
      transpose8<T>(half[p]);
    }
#pragma GCC unroll 8
    for (int k = 0; k < 8; ++k) {
      if constexpr (P == 1) {
        x[k] = half[0][k];
      } else {
        x[k] = __builtin_shufflevector(half[0][k], half[1][k], 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10,
                                       11, 12, 13, 14, 15);
      }
    }
  } else {
    for (int k = 0; k < m; ++k)
      for (int l = 0; l < W; ++l)
        set_lane<T, W>(x[k], l, from[l / (W / P) * part + l % (W / P) * m + k]);
  }
}
template <class T, int W, int M, int P>
GEOF_INLINE void write_features(T* to, int m, int64_t part, const Vec<T, W>* x) {
  if constexpr (M == 8 && W / P == 8) {
#pragma GCC unroll 2
    for (int p = 0; p < P; ++p) {
      Vec<T, 8> half[8];
#pragma GCC unroll 8
      for (int k = 0; k < 8; ++k) {
        if constexpr (P == 1) {
          half[k] = x[k];
        } else if (p == 0) {
          half[k] = __builtin_shufflevector(x[k], x[k], 0, 1, 2, 3, 4, 5, 6, 7);
        } else {
          half[k] = __builtin_shufflevector(x[k], x[k], 8, 9, 10, 11, 12, 13, 14, 15);
        }
      }
      transpose8<T>(half);
#pragma GCC unroll 8
      for (int l = 0; l < 8; ++l) store<T, 8>(to + p * part + l * 8, half[l]);
    }
  } else {
    for (int k = 0; k < m; ++k) scatter<T, W, P>(to + k, m, part, x[k]);
  }
}
// The sum of all lanes, halves added to halves: a fixed order.
template <class T, int W>
GEOF_INLINE T sum(Vec<T, W> v) {
  if constexpr (W == 1) {
    return v;
  } else if constexpr (W == 2) {
    return v[0] + v[1];
  } else if constexpr (W == 4) {
    return sum<T, 2>(__builtin_shufflevector(v, v, 0, 1) + __builtin_shufflevector(v, v, 2, 3));
  } else if constexpr (W == 8) {
    return sum<T, 4>(__builtin_shufflevector(v, v, 0, 1, 2, 3) +
                     __builtin_shufflevector(v, v, 4, 5, 6, 7));
  } else {
    static_assert(W == 16);
    return sum<T, 8>(__builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) +
                     __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15));
  }
}
template <class T, int W>
GEOF_INLINE Vec<T, W> square_root(Vec<T, W> v) {
  for (int l = 0; l < W; ++l) set_lane<T, W>(v, l, std::sqrt(lane<T, W>(v, l)));
  return v;
}

template <class T, int W>
GEOF_INLINE Bits<T, W> bits_of(Vec<T, W> v) {
  Bits<T, W> b;
  std::memcpy(&b, &v, sizeof b);
  return b;
}
template <class T, int W>
GEOF_INLINE Vec<T, W> from_bits(Bits<T, W> b) {
  Vec<T, W> v;
  std::memcpy(&v, &b, sizeof v);
  return v;
}
// 2^n for integers within the exponent's range.
template <class T, int W>
GEOF_INLINE Vec<T, W> power_of_two(Bits<T, W> n) {
  if constexpr (sizeof(T) == 4) {
    return from_bits<T, W>((n + 127) << 23);
  } else {
    return from_bits<T, W>((n + 1023) << 52);
  }
}

// exp to about one unit in the last place; exact limits 0 and infinity, NaN stays NaN.
//
// exp(x) = 2^n exp(r) with n = round(x / ln 2), |r| <= ln 2 / 2, and a Taylor polynomial for r.
// The scale is applied in two halves so that subnormal results come out right.
template <class T, int W>
GEOF_INLINE Vec<T, W> exponential(Vec<T, W> x) {
  constexpr bool single = sizeof(T) == 4;
  constexpr T low = single ? T(-104) : T(-746), high = single ? T(89) : T(710);
  constexpr T magic = single ? T(12582912.0) : T(6755399441055744.0);  // 1.5 * 2^23 or 2^52
  constexpr T ln2_high = single ? T(0.693359375) : T(6.93147180369123816490e-01);
  constexpr T ln2_low = single ? T(-2.12194440e-4) : T(1.90821492927058770002e-10);
  x = x < low ? fill<T, W>(low) : x;
  x = x > high ? fill<T, W>(high) : x;
  const Vec<T, W> shifted = x * T(1.44269504088896340736) + magic;
  const Vec<T, W> n = shifted - magic;
  const Bits<T, W> whole = bits_of<T, W>(shifted) - bits_of<T, W>(fill<T, W>(magic));
  const Vec<T, W> r = (x - n * ln2_high) - n * ln2_low;
  constexpr int degree = single ? 7 : 13;
  constexpr T inverse_factorial[] = {1.0,           1.0,           1.0 / 2,         1.0 / 6,
                                     1.0 / 24,      1.0 / 120,     1.0 / 720,       1.0 / 5040,
                                     1.0 / 40320,   1.0 / 362880,  1.0 / 3628800,   1.0 / 39916800,
                                     1.0 / 479001600, 1.0 / 6227020800.0};
  Vec<T, W> p = fill<T, W>(inverse_factorial[degree]);
#pragma GCC unroll 16
  for (int k = degree - 1; k >= 2; --k) p = p * r + inverse_factorial[k];
  p = (p * r) * r + r + T(1);
  const Bits<T, W> half = whole >> 1;
  return p * power_of_two<T, W>(half) * power_of_two<T, W>(whole - half);
}

// log of a positive normal number to about one unit in the last place.
//
// x = 2^k (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)), s = f / (2 + f) and
// log(1 + f) = 2 atanh(s) = f - (f^2/2 - s (f^2/2 + R(s^2))).
template <class T, int W>
GEOF_INLINE Vec<T, W> logarithm(Vec<T, W> x) {
  constexpr bool single = sizeof(T) == 4;
  using B = typename BitsOf<T>::type;
  constexpr int mantissa = single ? 23 : 52;
  constexpr B bias = single ? 127 : 1023;
  constexpr B root_half = single ? B(0x3f3504f3) : B(0x3fe6a09e667f3bcd);
  Bits<T, W> b = bits_of<T, W>(x) - root_half;
  const Bits<T, W> k = b >> mantissa;
  const Vec<T, W> scaled = from_bits<T, W>(bits_of<T, W>(x) - (k << mantissa));
  (void)bias;
  const Vec<T, W> f = scaled - T(1);
  const Vec<T, W> s = f / (f + T(2)), z = s * s, halved = f * f * T(0.5);
  // 2/3, 2/5, ...: the series of 2 atanh(s) / s - 2, long enough for |s| <= 0.1716.
  constexpr int terms = single ? 5 : 10;
  Vec<T, W> series = fill<T, W>(T(2.0 / (2 * terms + 1)));
#pragma GCC unroll 16
  for (int j = terms - 1; j >= 1; --j) series = series * z + T(2.0 / (2 * j + 1));
  series = series * z;
  Vec<T, W> exponent;
  for (int l = 0; l < W; ++l) {
    if constexpr (W == 1) {
      exponent = T(k);
    } else {
      exponent[l] = T(k[l]);
    }
  }
  constexpr T ln2_high = single ? T(0.693359375) : T(6.93147180369123816490e-01);
  constexpr T ln2_low = single ? T(-2.12194440e-4) : T(1.90821492927058770002e-10);
  return exponent * ln2_high - ((halved - (s * (halved + series) + exponent * ln2_low)) - f);
}

template <class T>
GEOF_INLINE void prefetch(const T* from, int64_t count) {
  const char* p = reinterpret_cast<const char*>(from);
  for (int64_t k = 0; k < count * int64_t(sizeof(T)); k += 64) __builtin_prefetch(p + k);
}

// Positions in packed triangles and in coordinates [a, l] of a block.
GEOF_INLINE constexpr int triangle(int m) { return m * (m + 1) / 2; }
GEOF_INLINE constexpr int strict(int r, int c) { return r * (r - 1) / 2 + c; }  // a_rc, r > c
GEOF_INLINE constexpr int packed(int r, int c) { return r * (r + 1) / 2 + c; }  // S_rc, r >= c
GEOF_INLINE constexpr int scale(int m, int r) { return m * (m - 1) / 2 + r; }   // l_r

constexpr int kLargest = 32;  // the largest block
constexpr int capacity(int M) { return M ? M : kLargest; }

}  // namespace geof
