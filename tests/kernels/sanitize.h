// Draws, messages and graphs of the sanitizers' driver (sanitize.cpp).
#pragma once

#include "geof.h"

#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

enum Statistic { kNone = 0, kFull = 1, kDiagonal = 2, kMean = 3 };

inline thread_local std::mt19937 generator(0);
inline thread_local std::string current;  // what is being run, for messages
inline std::atomic<int64_t> cases{0};

[[noreturn]] inline void fail(const std::string& what) {
  std::fprintf(stderr, "%s: %s\n", current.c_str(), what.c_str());
  std::exit(1);
}

inline void require(bool holds, const char* what) {
  if (!holds) fail(what);
}

template <class T>
std::vector<T> uniform(int64_t size, double scale = 1) {
  std::uniform_real_distribution<double> draw(-scale, scale);
  std::vector<T> values(size);
  for (T& value : values) value = T(draw(generator));
  return values;
}

template <class T>
std::vector<T> unwritten(int64_t size) {
  return std::vector<T>(size, std::numeric_limits<T>::quiet_NaN());
}

struct Graph {
  int64_t n;
  std::vector<int64_t> source, target, pointer;
  std::vector<int32_t> narrow_source, narrow_target, by_source;
  std::vector<uint8_t> active;

  int64_t E() const { return int64_t(source.size()); }
};

// Edges sorted by target, then source, with a self-loop each. The last node hears `hub` others and
// speaks to them: beyond its edges the arrays end. `repeats` leaves every other edge in the list
// twice, the second one inactive.
inline Graph make_graph(int64_t n, int64_t edges, int64_t hub, bool repeats) {
  std::set<std::pair<int64_t, int64_t>> pairs;
  for (int64_t i = 0; i < n; ++i) pairs.insert({i, i});
  for (int64_t e = 0; n > 1 && e < edges; ++e)  // without a hub the last node stays alone
    pairs.insert({int64_t(generator() % (n - 1)), int64_t(generator() % (n - 1))});
  for (int64_t j = 0; j < hub; ++j) {
    pairs.insert({n - 1, j});
    pairs.insert({j, n - 1});
  }
  Graph graph;
  graph.n = n;
  for (const auto& [i, j] : pairs)
    for (int copy = 0; copy < (repeats && (i + j) % 2 == 0 ? 2 : 1); ++copy) {
      graph.target.push_back(i);
      graph.source.push_back(j);
      if (repeats) graph.active.push_back(copy == 0);
    }
  graph.source.shrink_to_fit();
  graph.target.shrink_to_fit();
  graph.active.shrink_to_fit();
  graph.pointer.resize(n + 1);
  for (auto* narrow : {&graph.narrow_source, &graph.narrow_target, &graph.by_source})
    narrow->resize(graph.E());
  require(geof_plan(n, graph.E(), graph.source.data(), graph.target.data(), graph.pointer.data(),
                    graph.narrow_source.data(), graph.narrow_target.data(),
                    graph.by_source.data()) == 0,
          "the plan was refused");
  const std::set<int32_t> every(graph.by_source.begin(), graph.by_source.end());
  require(graph.pointer[n] == graph.E() && int64_t(every.size()) == graph.E(),
          "the plan lost an edge");
  return graph;
}
