// How work is shared: fixed pieces, so results do not depend on the number of threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

namespace geof {

enum Purpose { kChunkScratch, kEdgeScratch, kNumberScratch };

// Not a vector: that would clear what is written before it is read.
template <class T>
struct Kept {
  std::unique_ptr<T[]> data;
  size_t size = 0;
};

template <class T, Purpose>
Kept<T>& kept_memory() {
  static thread_local Kept<T> kept;
  return kept;
}

// Scratch memory that a thread keeps: fresh pages for every call would cost more than its arithmetic.
template <class T, Purpose P>
T* thread_scratch(size_t size) {
  Kept<T>& kept = kept_memory<T, P>();
  if (kept.size < size) {
    kept = {};
    // Numbers of nodes are all 0 between calls.
    kept = {std::unique_ptr<T[]>(P == kNumberScratch ? new T[size]() : new T[size]), size};
  }
  return kept.data.get();
}

// What a thread may keep of one scratch: a quarter of GEOF_KEPT_MEMORY, which Python has checked
// (geof.kernels.memory). What a node with very many edges needed is more.
inline size_t most_kept() {
  static const size_t bytes = [] {
    const char* given = std::getenv("GEOF_KEPT_MEMORY");
    if (given == nullptr || *given == 0) given = "4G";
    char* unit = nullptr;
    const size_t number = std::strtoull(given, &unit, 10);
    const int shift = *unit == 'K' ? 10 : *unit == 'M' ? 20 : *unit == 'G' ? 30 : 0;
    return (number << shift) / 4;
  }();
  return bytes;
}

// The same where an exception must not leave: null when memory ran out.
template <class T, Purpose P>
T* thread_scratch_or_null(size_t size) noexcept {
  try {
    return thread_scratch<T, P>(size);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

template <class T, Purpose P>
void give_back() {
  Kept<T>& kept = kept_memory<T, P>();
  if (kept.size * sizeof(T) > most_kept()) kept = {};
}

constexpr int64_t kNodes = 64;  // nodes a thread takes at once

// Products or numbers below which one thread does the work alone; kAloneAtEdges where it also has to
// wait for the others between the parts.
#ifndef GEOF_ALONE  // the tests' own build shares out the smallest work
#define GEOF_ALONE 16384
#endif
constexpr int64_t kAlone = GEOF_ALONE, kAloneAtEdges = 4 * kAlone;

// Sums over both ends of an edge. Targets are cut into spans of about kSpanEdges incoming edges. An
// edge leaves what its source is to receive in a row of its own; when all edges of a span are done,
// every source collects its rows. So no two threads write to one place, every sum has a fixed order,
// and the rows, bounded in number, stay in the cache. Where the sources' sums do not, every span would
// fetch most of them anew: with more nodes than kSpanEdges a span has kSpanEdgesPerNode times as many
// edges as there are nodes. Spans begin at multiples of kNodes.
#ifndef GEOF_SPAN_EDGES  // the tests' own build has short ones
#define GEOF_SPAN_EDGES 32768
#endif
#ifndef GEOF_SPAN_EDGES_PER_NODE
#define GEOF_SPAN_EDGES_PER_NODE 4
#endif
constexpr int64_t kSpanEdges = GEOF_SPAN_EDGES, kSpanEdgesPerNode = GEOF_SPAN_EDGES_PER_NODE;
constexpr int kPieces = 64;  // shares of a span's sources

// Where the spans begin, and n at the end.
inline std::vector<int64_t> spans_of(const int64_t* pointer, int64_t n) {
  const int64_t most = n > kSpanEdges ? std::max(kSpanEdges, kSpanEdgesPerNode * n) : kSpanEdges;
  std::vector<int64_t> begins{0};
  for (int64_t i = 0; i < n; i += kNodes) {
    const int64_t end = std::min(i + kNodes, n);
    if (i > begins.back() && pointer[end] - pointer[begins.back()] > most) begins.push_back(i);
  }
  if (n > 0) begins.push_back(n);
  return begins;
}

// The most edges of a span.
inline int64_t largest_span(const std::vector<int64_t>& begins, const int64_t* pointer) {
  int64_t most = 0;
  for (size_t k = 0; k + 1 < begins.size(); ++k)
    most = std::max(most, pointer[begins[k + 1]] - pointer[begins[k]]);
  return most;
}

}  // namespace geof
