// The feature gate, Eq. (7), from its pre-activation: out = xi + sigmoid(pre) (agg - xi).
#pragma once

#include "lanes.h"
#include "products.h"
#include "tasks.h"

namespace geof {

template <class T>
struct GateArguments {
  int threads;
  int64_t count;
  const T *pre, *x, *aggregate;
  T* out;
  const T* grad_out;
  T *grad_pre, *grad_x, *grad_aggregate;
};

template <class T, int W>
GEOF_INLINE Vec<T, W> sigmoid(Vec<T, W> v) {
  return T(1) / (exponential<T, W>(-v) + T(1));
}

constexpr int64_t kEntries = 4096;  // entries a thread takes at once

// Call one<W>(k) for all entries, W at a time where they suffice.
template <class T, class Work>
void each_entry(int threads, int64_t count, const Work& work) {
#pragma omp parallel for schedule(static) num_threads(threads) if (count > kAlone)
  for (int64_t begin = 0; begin < count; begin += kEntries) {
    const int64_t end = begin + kEntries < count ? begin + kEntries : count;
    int64_t k = begin;
    for (; k + kWidth<T> <= end; k += kWidth<T>) work.template operator()<kWidth<T>>(k);
    for (; k < end; ++k) work.template operator()<1>(k);
  }
}

template <class T>
void gate(const GateArguments<T>& s) {
  each_entry<T>(s.threads, s.count, [&]<int W>(int64_t k) GEOF_LAMBDA {
    const Vec<T, W> x = load<T, W>(s.x + k), r = sigmoid<T, W>(load<T, W>(s.pre + k));
    store<T, W>(s.out + k, Vec<T, W>(x + r * (load<T, W>(s.aggregate + k) - x)));
  });
}

template <class T>
void gate_backward(const GateArguments<T>& s) {
  each_entry<T>(s.threads, s.count, [&]<int W>(int64_t k) GEOF_LAMBDA {
    using V = Vec<T, W>;
    const V r = sigmoid<T, W>(load<T, W>(s.pre + k)), g = load<T, W>(s.grad_out + k);
    const V towards = g * r, rest = g - towards;
    store<T, W>(s.grad_aggregate + k, towards);
    store<T, W>(s.grad_x + k, rest);
    store<T, W>(s.grad_pre + k,
                V((load<T, W>(s.aggregate + k) - load<T, W>(s.x + k)) * r * rest));
  });
}

}  // namespace geof
