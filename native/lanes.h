// Vectors whose lanes are blocks: one register holds one coordinate of W blocks.
//
// The compiler's vector extension is used throughout, so the same source serves every
// instruction set; geof.cpp is compiled once for each.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#if defined(__AVX__)
#include <immintrin.h>
#endif

#define GEOF_INLINE inline __attribute__((always_inline))
#define GEOF_LAMBDA __attribute__((always_inline))

namespace geof {

#ifdef GEOF_ROLLED  // the sanitizers' build: loops stay loops, or it would take minutes and gigabytes
constexpr bool kUnrolled = false;
#else
constexpr bool kUnrolled = true;
#endif

template <int N>
using Constant = std::integral_constant<int, N>;

// A number known to the compiler, or for M = 0 one that is not.
template <int M>
using Count = std::conditional_t<(M > 0 && kUnrolled), Constant<M>, int>;

template <int M>
GEOF_INLINE Count<M> known(int m) {
  if constexpr (M > 0 && kUnrolled) {
    return Count<M>{};
  } else {
    return m;
  }
}

template <int N>
GEOF_INLINE constexpr auto next(Constant<N>) {
  return Constant<N + 1>{};
}
GEOF_INLINE constexpr int next(int n) { return n + 1; }

// f(0), ..., f(n - 1), and from the last to the first. A known count is written out, each f called
// with a constant: then arrays over a block become registers. Compilers do not unroll nests of loops
// over triangles by themselves.
template <int N, class F>
GEOF_INLINE void each(Constant<N>, const F& f) {
  [&]<int... K>(std::integer_sequence<int, K...>) GEOF_LAMBDA {
    (f(Constant<K>{}), ...);
  }(std::make_integer_sequence<int, N>{});
}
template <class F>
GEOF_INLINE void each(int n, const F& f) {
  for (int k = 0; k < n; ++k) f(k);
}
template <int N, class F>
GEOF_INLINE void each_down(Constant<N>, const F& f) {
  [&]<int... K>(std::integer_sequence<int, K...>) GEOF_LAMBDA {
    (f(Constant<N - 1 - K>{}), ...);
  }(std::make_integer_sequence<int, N>{});
}
template <class F>
GEOF_INLINE void each_down(int n, const F& f) {
  for (int k = n - 1; k >= 0; --k) f(k);
}

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

// The lower halves of a and b side by side, and the upper ones.
template <class T>
GEOF_INLINE void join_halves(Vec<T, 8> a, Vec<T, 8> b, Vec<T, 8>& lower, Vec<T, 8>& upper) {
  lower = __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11);
  upper = __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15);
}

// Features lie block by block, m values each; registers hold one value of W blocks. Read the W
// blocks at `from` into x[0..m), or write them back.
template <class T, int W, int M>
GEOF_INLINE void read_features(const T* from, Count<M> m, Vec<T, W>* x) {
  if constexpr (M == 8 && W == 8) {
    for (int l = 0; l < 8; ++l) x[l] = load<T, 8>(from + l * 8);
    transpose8<T>(x);
  } else if constexpr (M == 4 && W == 8) {
    Vec<T, 8> even[2], odd[2];  // values 0 and 1, then 2 and 3, of four blocks each
    for (int l = 0; l < 2; ++l) {
      const Vec<T, 8> a = load<T, 8>(from + l * 16), b = load<T, 8>(from + l * 16 + 8);
      even[l] = __builtin_shufflevector(a, b, 0, 4, 8, 12, 1, 5, 9, 13);
      odd[l] = __builtin_shufflevector(a, b, 2, 6, 10, 14, 3, 7, 11, 15);
    }
    join_halves<T>(even[0], even[1], x[0], x[1]);
    join_halves<T>(odd[0], odd[1], x[2], x[3]);
  } else {
    for (int k = 0; k < m; ++k) {
      Vec<T, W> v{};
      for (int l = 0; l < W; ++l) set_lane<T, W>(v, l, from[l * m + k]);
      x[k] = v;
    }
  }
}
template <class T, int W, int M>
GEOF_INLINE void write_features(T* to, Count<M> m, const Vec<T, W>* x) {
  if constexpr (M == 8 && W == 8) {
    Vec<T, 8> rows[8];
    each(m, [&](auto k) GEOF_LAMBDA { rows[k] = x[k]; });
    transpose8<T>(rows);
    each(m, [&](auto l) GEOF_LAMBDA { store<T, 8>(to + l * 8, rows[l]); });
  } else if constexpr (M == 4 && W == 8) {
    Vec<T, 8> even[2], odd[2];
    join_halves<T>(x[0], x[1], even[0], even[1]);
    join_halves<T>(x[2], x[3], odd[0], odd[1]);
    for (int l = 0; l < 2; ++l) {
      const Vec<T, 8> a = even[l], b = odd[l];
      store<T, 8>(to + l * 16, __builtin_shufflevector(a, b, 0, 4, 8, 12, 1, 5, 9, 13));
      store<T, 8>(to + l * 16 + 8, __builtin_shufflevector(a, b, 2, 6, 10, 14, 3, 7, 11, 15));
    }
  } else {
    for (int k = 0; k < m; ++k)
      for (int l = 0; l < W; ++l) to[l * m + k] = lane<T, W>(x[k], l);
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
#if defined(__AVX__)
  // Compilers leave the loop over lanes as it is.
  if constexpr (sizeof(T) == 4 && W == 8) return Vec<T, W>(_mm256_sqrt_ps(__m256(v)));
  if constexpr (sizeof(T) == 8 && W == 4) return Vec<T, W>(_mm256_sqrt_pd(__m256d(v)));
  if constexpr (sizeof(T) == 4 && W == 4) return Vec<T, W>(_mm_sqrt_ps(__m128(v)));
#endif
  for (int l = 0; l < W; ++l) set_lane<T, W>(v, l, std::sqrt(lane<T, W>(v, l)));
  return v;
}

// v where it is not below (above) the bound, else the bound; NaN stays NaN. One instruction: a comparison
// and a blend otherwise.
template <class T, int W>
GEOF_INLINE Vec<T, W> at_least(Vec<T, W> v, Vec<T, W> bound) {
#if defined(__AVX__)
  if constexpr (sizeof(T) == 4 && W == 8) return Vec<T, W>(_mm256_max_ps(__m256(bound), __m256(v)));
  if constexpr (sizeof(T) == 8 && W == 4) return Vec<T, W>(_mm256_max_pd(__m256d(bound), __m256d(v)));
#endif
  return v < bound ? bound : v;
}
template <class T, int W>
GEOF_INLINE Vec<T, W> at_most(Vec<T, W> v, Vec<T, W> bound) {
#if defined(__AVX__)
  if constexpr (sizeof(T) == 4 && W == 8) return Vec<T, W>(_mm256_min_ps(__m256(bound), __m256(v)));
  if constexpr (sizeof(T) == 8 && W == 4) return Vec<T, W>(_mm256_min_pd(__m256d(bound), __m256d(v)));
#endif
  return v > bound ? bound : v;
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
  x = at_most<T, W>(at_least<T, W>(x, fill<T, W>(low)), fill<T, W>(high));
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
  if constexpr (W == 1) {
    exponent = T(k);
  } else {
    exponent = __builtin_convertvector(k, Vec<T, W>);
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
