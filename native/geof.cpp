// The C interface: chooses the specialisation for a dtype, block size and block count.
#include "geof.h"

#include <algorithm>
#include <new>
#include <vector>

#include "evolve.h"
#include "feedback.h"
#include "frames.h"
#include "gate.h"
#include "moments.h"
#include "sample.h"

namespace geof {
namespace {

// Whether all of some indices lie below a bound and above -1.
bool all_below(const int32_t* index, int64_t count, int64_t bound) {
  bool wrong = false;
  for (int64_t k = 0; k < count; ++k) wrong |= uint32_t(index[k]) >= uint64_t(bound);
  return !wrong;
}

// Whether the edges stay inside the arrays that a kernel reads by them. The backward pass also
// reads `target` and, span by span, `by_source`.
bool sound(const geof_moments& a, bool backward) {
  const int64_t n = a.shape.n, rows = a.sources ? a.sources : n;
  if (a.first_target < 0 || a.first_target > rows - n) return false;
  if (backward && rows != n) return false;
  if (a.pointer[0] != 0 || a.pointer[n] != a.E) return false;
  bool wrong = false;
  for (int64_t i = 0; i < n; ++i) wrong |= a.pointer[i + 1] < a.pointer[i];
  if (wrong || !all_below(a.source, a.E, rows)) return false;
  if (a.table)  // a negative row is none
    for (int64_t e = 0; e < a.E; ++e) wrong |= a.row[e] >= a.rows;
  if (wrong || !backward) return !wrong;
  if (!all_below(a.target, a.E, n)) return false;
  const std::vector<int64_t> begins = spans_of(a.pointer, n);
  for (size_t k = 0; k + 1 < begins.size(); ++k) {
    const int64_t begin = a.pointer[begins[k]], end = a.pointer[begins[k + 1]];
    for (int64_t e = begin; e < end; ++e) wrong |= a.by_source[e] < begin || a.by_source[e] >= end;
  }
  return !wrong;
}

// Run a kernel that reads by the edges' indices, if they can be trusted.
template <class Run>
int guarded(const geof_moments& edges, bool backward, const Run& run) {
  try {
    return sound(edges, backward) ? run() : 2;
  } catch (const std::bad_alloc&) {
    return 1;
  }
}

// The common shapes have code of their own; size 0 stands for any.
template <template <class, int, int> class Kernel, class T, int W, class Arguments>
void choose_size(const Arguments& s, int m) {
  if constexpr (W == 8) {
    if (m == 4) return Kernel<T, W, 4>::run(s);
    if (m == 8) return Kernel<T, W, 8>::run(s);
  }
  Kernel<T, W, 0>::run(s);
}

// As many blocks in a register as divide the block count.
template <template <class, int, int> class Kernel, class T, class Arguments>
int choose_lanes(const Arguments& s, const geof_shape& shape) {
  try {
    if (sizeof(T) == 4 && shape.B % 8 == 0) {
      choose_size<Kernel, T, sizeof(T) == 4 ? 8 : 4>(s, shape.m);
    } else if (shape.B % 4 == 0) {
      choose_size<Kernel, T, 4>(s, shape.m);
    } else {
      choose_size<Kernel, T, 1>(s, shape.m);
    }
  } catch (const std::bad_alloc&) {
    return 1;
  }
  return 0;
}

template <class T>
const T* in(const void* p) {
  return static_cast<const T*>(p);
}
template <class T>
T* out(void* p) {
  return static_cast<T*>(p);
}

template <class T>
FrameArguments<T> typed(const geof_frames& a) {
  const geof_shape& k = a.shape;
  return {k.threads,        k.n,
          k.m,              k.B,
          a.framed != 0,    a.lanes_out != 0,
          a.add,
          in<T>(a.z),       in<T>(a.x),
          in<T>(a.message), out<T>(a.h),
          out<T>(a.y),      in<T>(a.grad_h),
          in<T>(a.grad_y),  out<T>(a.grad_z),
          out<T>(a.grad_x), out<T>(a.grad_message)};
}

template <class T>
MomentArguments<T> typed(const geof_moments& a) {
  const geof_shape& k = a.shape;
  return {k.threads,
          k.n,
          a.E,
          k.m,
          k.B,
          T(a.temperature),
          in<T>(a.h),
          in<T>(a.y),
          a.pointer,
          a.source,
          a.active,
          out<T>(a.weight),
          out<T>(a.first),
          out<T>(a.second),
          in<T>(a.grad_weight),
          in<T>(a.grad_first),
          in<T>(a.grad_second),
          a.target,
          a.by_source,
          out<T>(a.grad_h),
          out<T>(a.grad_y),
          in<T>(a.bias),
          a.row,
          in<T>(a.table),
          a.rows,
          out<T>(a.grad_bias),
          out<T>(a.grad_table),
          a.first_target};
}

template <class T>
FeedbackArguments<T> typed(const geof_feedback_args& a, FeedbackStatus* status) {
  const geof_shape& k = a.shape;
  return {k.threads,
          k.n,
          k.m,
          k.B,
          a.statistic,
          a.framed != 0,
          T(a.floor),
          T(a.jitter),
          T(a.growth),
          a.retries,
          in<T>(a.z),
          in<T>(a.message),
          in<T>(a.first),
          in<T>(a.second),
          out<T>(a.aggregate),
          out<T>(a.target),
          out<T>(a.moment),
          a.attempt,
          status,
          in<T>(a.grad_aggregate),
          in<T>(a.grad_target),
          a.add_to_z != 0,
          out<T>(a.grad_z),
          out<T>(a.grad_message),
          out<T>(a.grad_first),
          out<T>(a.grad_second)};
}

template <class T>
EvolveArguments<T> typed(const geof_evolve_args& a, FeedbackStatus* status) {
  return {typed<T>(a.feedback, status),
          typed<T>(a.edges),
          int(a.H),
          int(a.rank),
          T(a.mix),
          T(a.strength),
          T(a.offdiagonal),
          T(a.low),
          T(a.high),
          in<T>(a.x),
          in<T>(a.shared),
          in<T>(a.hidden),
          in<T>(a.output),
          in<T>(a.bias),
          out<T>(a.next),
          in<T>(a.grad_next),
          out<T>(a.grad_x),
          out<T>(a.grad_shared),
          out<T>(a.grad_hidden),
          out<T>(a.grad_output),
          out<T>(a.grad_bias)};
}

template <class T>
GateArguments<T> typed(const geof_gate_args& a) {
  return {a.threads,         a.count,          in<T>(a.pre),       in<T>(a.x),
          in<T>(a.aggregate), out<T>(a.out),    in<T>(a.grad_out),  out<T>(a.grad_pre),
          out<T>(a.grad_x),   out<T>(a.grad_aggregate)};
}

template <template <class, int, int> class Kernel, class C>
int dispatch(const C* a) {
  return a->shape.dtype == 0 ? choose_lanes<Kernel, float>(typed<float>(*a), a->shape)
                             : choose_lanes<Kernel, double>(typed<double>(*a), a->shape);
}

// Kernels that may meet blocks they cannot factorise; `feedback` is where they say so.
template <template <class, int, int> class Kernel, class C>
int dispatch_counting(C* a, geof_feedback_args* feedback) {
  FeedbackStatus status;
  const geof_shape& shape = feedback->shape;
  const int code = shape.dtype == 0
                       ? choose_lanes<Kernel, float>(typed<float>(*a, &status), shape)
                       : choose_lanes<Kernel, double>(typed<double>(*a, &status), shape);
  feedback->status[0] = status.non_finite;
  feedback->status[1] = status.kept;
  feedback->status[2] = status.retried;
  feedback->status[3] = status.most_retries;
  feedback->status[4] = status.rescued;
  return code;
}

}  // namespace
}  // namespace geof

using namespace geof;

int geof_abi(void) { return GEOF_ABI; }

int geof_openmp(void) {
#ifdef _OPENMP
  return 1;
#else
  return 0;
#endif
}

const char* geof_compiler(void) { return __VERSION__; }

int geof_processor(void) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("fma"))
    return 2;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return 1;
#endif
  return 0;
}

int geof_plan(int64_t n, int64_t E, const int64_t* source, const int64_t* target,
              int64_t* pointer, int32_t* narrow_source, int32_t* narrow_target,
              int32_t* by_source) try {
  std::fill(pointer, pointer + n + 1, 0);
  std::vector<int64_t> outgoing(n + 1);
  for (int64_t e = 0; e < E; ++e) {
    const int64_t j = source[e], i = target[e];
    if (i < 0 || i >= n || j < 0 || j >= n || (e > 0 && i < target[e - 1])) return 2;
    ++pointer[i + 1];
    ++outgoing[j + 1];
    narrow_source[e] = int32_t(j);
    narrow_target[e] = int32_t(i);
  }
  for (int64_t i = 0; i < n; ++i) {
    pointer[i + 1] += pointer[i];
    outgoing[i + 1] += outgoing[i];
  }
  std::vector<int32_t> sorted(E);
  for (int64_t e = 0; e < E; ++e) sorted[outgoing[source[e]]++] = int32_t(e);
  // In this order the edges are dealt to their spans.
  const std::vector<int64_t> begins = spans_of(pointer, n);
  std::vector<int64_t> place(begins.size());
  std::vector<int32_t> span(n);
  for (size_t k = 0; k + 1 < begins.size(); ++k) {
    place[k] = pointer[begins[k]];
    std::fill(span.begin() + begins[k], span.begin() + begins[k + 1], int32_t(k));
  }
  for (const int32_t e : sorted) by_source[place[span[target[e]]]++] = e;
  return 0;
} catch (const std::bad_alloc&) {
  return 1;
}

int geof_apply_frames(const geof_frames* a) { return dispatch<ApplyFrames>(a); }
int geof_apply_frames_backward(const geof_frames* a) { return dispatch<ApplyFramesBackward>(a); }
int geof_edge_moments(const geof_moments* a) {
  return guarded(*a, false, [&] { return dispatch<EdgeMoments>(a); });
}
int geof_edge_moments_backward(const geof_moments* a) {
  return guarded(*a, true, [&] { return dispatch<EdgeMomentsBackward>(a); });
}
int geof_feedback(geof_feedback_args* a) { return dispatch_counting<FeedbackTarget>(a, a); }
int geof_feedback_backward(geof_feedback_args* a) {
  return dispatch_counting<FeedbackTargetBackward>(a, a);
}
int geof_evolve(geof_evolve_args* a) {
  return guarded(a->edges, false, [&] { return dispatch_counting<Evolve>(a, &a->feedback); });
}
int geof_evolve_backward(geof_evolve_args* a) {
  return guarded(a->edges, true,
                 [&] { return dispatch_counting<EvolveBackward>(a, &a->feedback); });
}
int geof_gate(const geof_gate_args* a) {
  a->dtype == 0 ? gate(typed<float>(*a)) : gate(typed<double>(*a));
  return 0;
}
int geof_gate_backward(const geof_gate_args* a) {
  a->dtype == 0 ? gate_backward(typed<float>(*a)) : gate_backward(typed<double>(*a));
  return 0;
}

int geof_sample(geof_sample_args* a) try {
  Sampled& made = last_sample();
  if (!Sampler(*a, made).run()) return 2;
  a->nodes = int64_t(made.nodes.size());
  a->edges = int64_t(made.place.size());
  return 0;
} catch (const std::bad_alloc&) {
  return 1;
}

int geof_sample_take(int64_t* nodes, int64_t* source, int64_t* target, int64_t* place) {
  const Sampled& made = last_sample();
  std::copy(made.nodes.begin(), made.nodes.end(), nodes);
  std::copy(made.source.begin(), made.source.end(), source);
  std::copy(made.target.begin(), made.target.end(), target);
  if (place) std::copy(made.place.begin(), made.place.end(), place);
  return 0;
}
