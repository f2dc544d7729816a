/* The C interface of GeoF's kernels. Python fills these structures through ctypes.
 *
 * Names as in the package: n nodes, E edges with one self-loop each, B blocks of size m,
 * t = m (m + 1) / 2. Layouts: "features" are (n, B, m); "lanes" are (n, *, B), blocks last.
 * Pointers marked "or null" switch that part off. Every function returns 0, 1 when memory ran out,
 * or 2, before anything is read by an index, when an index of the edges points outside its array.
 * Results do not depend on the number of threads. */
#ifndef GEOF_H
#define GEOF_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GEOF_ABI 5
#define GEOF_EXPORT __attribute__((visibility("default")))
#define GEOF_LARGEST_BLOCK 32

typedef struct {
  int32_t dtype; /* 0 float, 1 double */
  int32_t threads;
  int64_t n;
  int32_t m, B;
} geof_shape;

typedef struct {
  geof_shape shape;
  int32_t framed;    /* y = L message; otherwise y = message */
  int32_t lanes_out; /* h as lanes; otherwise as features */
  int32_t add;       /* gradients to add to instead of writing: 1 of z, 2 of x, 4 of message */
  const void *z, *x, *message; /* lanes, features, features or null */
  void *h, *y;
  const void *grad_h, *grad_y;
  void *grad_z, *grad_x, *grad_message;
} geof_frames;

typedef struct {
  geof_shape shape;
  int64_t E;
  double temperature;
  const void *h, *y;
  const int64_t* pointer;
  const int32_t* source;
  const uint8_t* active; /* or null */
  void* weight;
  void *first, *second; /* second: or null */
  const void *grad_weight, *grad_first, *grad_second; /* first and last: or null */
  const int32_t *target, *by_source;
  void *grad_h, *grad_y;
  const void* bias;      /* (E), added to the exponents, or null */
  const int32_t* row;    /* (E), which row of the table an edge carries, -1 for none; or null */
  const void* table;     /* (rows, m, B), or null */
  int64_t rows;
  void *grad_bias, *grad_table; /* or null, with their inputs */
  /* Forward only: with `sources` above 0, h and y have that many rows, which `source` counts, and
   * those of the n targets begin at `first_target`. */
  int64_t sources, first_target;
} geof_moments;

typedef struct {
  geof_shape shape;
  int32_t statistic; /* 0 none, 1 full, 2 diagonal, 3 mean */
  int32_t framed;
  double floor, jitter, growth;
  int32_t retries, add_to_z;
  const void *z, *message, *first, *second;
  void *aggregate, *target;
  void* moment;      /* (n, B, m, m) or null */
  int64_t* attempt;  /* (n, B) or null */
  int64_t status[5]; /* blocks: not finite, kept, retried; most retries; rescued blocks */
  const void *grad_aggregate, *grad_target;
  void *grad_z, *grad_message, *grad_first, *grad_second;
} geof_feedback_args;

typedef struct {
  geof_feedback_args feedback; /* moments, target and their gradients are not used */
  geof_moments edges;          /* moments and their gradients are not used */
  int64_t H, rank;             /* H = 0: no correction */
  double mix, strength, offdiagonal, low, high;
  const void* x; /* features */
  const void *shared, *hidden, *output, *bias; /* (n, H), (H, 2m), (p, H), (p) */
  void* next;                                  /* lanes */
  const void* grad_next;
  void *grad_x, *grad_shared, *grad_hidden, *grad_output, *grad_bias;
} geof_evolve_args;

typedef struct {
  int32_t dtype, threads;
  int64_t count;
  const void *pre, *x, *aggregate;
  void* out;
  const void* grad_out;
  void *grad_pre, *grad_x, *grad_aggregate;
} geof_gate_args;

typedef struct {
  int64_t n, E, seeds, hops;
  const int64_t *pointer, *source; /* (n + 1), (E): the in-neighbours of every node */
  const int64_t *seed, *fanout;    /* (seeds), each once; (hops), -1 for all */
  uint64_t state[4];               /* of NumPy's PCG64: state and increment, high words first */
  int64_t nodes, edges;            /* how many were met and taken */
} geof_sample_args;

GEOF_EXPORT int geof_abi(void);
GEOF_EXPORT int geof_openmp(void);
GEOF_EXPORT const char* geof_compiler(void);
/* The best instruction set this processor and system can run: 0 generic, 1 AVX2, 2 AVX-512. */
GEOF_EXPORT int geof_processor(void);

/* From edges sorted by target, then source: where each target's edges begin (n + 1), both ends in
 * 32 bits, and the edges by source for the backward pass, span of targets by span (E). Returns 2
 * also when the targets do not ascend. */
GEOF_EXPORT int geof_plan(int64_t n, int64_t E, const int64_t* source, const int64_t* target,
                          int64_t* pointer, int32_t* narrow_source, int32_t* narrow_target,
                          int32_t* by_source);

GEOF_EXPORT int geof_apply_frames(const geof_frames*);
GEOF_EXPORT int geof_apply_frames_backward(const geof_frames*);
GEOF_EXPORT int geof_edge_moments(const geof_moments*);
GEOF_EXPORT int geof_edge_moments_backward(const geof_moments*);
GEOF_EXPORT int geof_feedback(geof_feedback_args*);
GEOF_EXPORT int geof_feedback_backward(geof_feedback_args*);
GEOF_EXPORT int geof_evolve(geof_evolve_args*);
GEOF_EXPORT int geof_evolve_backward(geof_evolve_args*);
GEOF_EXPORT int geof_gate(const geof_gate_args*);
GEOF_EXPORT int geof_gate_backward(const geof_gate_args*);

/* Sampled neighbourhoods of some seeds; the thread that drew them takes them into arrays of its own:
 * nodes, and of each edge its ends, as positions among them, and its place in `source` or null. */
GEOF_EXPORT int geof_sample(geof_sample_args*);
GEOF_EXPORT int geof_sample_take(int64_t* nodes, int64_t* source, int64_t* target, int64_t* place);

#ifdef __cplusplus
}
#endif
#endif
