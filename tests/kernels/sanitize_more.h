// The kernels beside a step's: the gate, sampled neighbourhoods, the targets of a piece of a graph.
#pragma once

#include "sanitize.h"

#include <algorithm>
#include <cstring>
#include <thread>

inline void refuse_bad_graphs() {
  current = "plan";
  for (const auto& [source, target] : std::vector<std::pair<std::vector<int64_t>, std::vector<int64_t>>>{
           {{0, 1}, {1, 0}}, {{0, 2}, {0, 1}}, {{0, -1}, {0, 1}}, {{0, 1}, {0, 2}}, {{0}, {-1}}}) {
    std::vector<int64_t> pointer(3);
    std::vector<int32_t> a(source.size()), b(source.size()), c(source.size());
    require(geof_plan(2, int64_t(source.size()), source.data(), target.data(), pointer.data(),
                      a.data(), b.data(), c.data()) == 2,
            "a bad graph was accepted");
  }
}

template <class T>
geof_gate_args gate_arguments(int64_t count, int threads, const std::vector<T>& pre,
                              const std::vector<T>& x, const std::vector<T>& aggregate) {
  geof_gate_args a{};
  a.dtype = sizeof(T) == 8;
  a.threads = threads;
  a.count = count;
  a.pre = pre.data();
  a.x = x.data();
  a.aggregate = aggregate.data();
  return a;
}

template <class T>
void gates() {
  current = "gate of " + std::to_string(sizeof(T)) + " bytes";
  for (const int64_t count : {0, 1, 3, 17, 4096, 4097, 9001, 20003}) {
    const auto pre = uniform<T>(count, 30), x = uniform<T>(count), aggregate = uniform<T>(count);
    const auto grad_out = uniform<T>(count);
    std::vector<std::vector<T>> seen;
    for (const int threads : {1, 3}) {
      std::vector<T> made[4];
      for (auto& array : made) array = unwritten<T>(count);
      geof_gate_args a = gate_arguments(count, threads, pre, x, aggregate);
      a.out = made[0].data();
      require(geof_gate(&a) == 0, "the gate failed");
      a.grad_out = grad_out.data();
      a.grad_pre = made[1].data();
      a.grad_x = made[2].data();
      a.grad_aggregate = made[3].data();
      require(geof_gate_backward(&a) == 0, "the gate's backward failed");
      for (size_t k = 0; k < 4; ++k) {
        for (const T value : made[k]) require(std::isfinite(value), "a value was not written");
        if (threads == 1)
          seen.push_back(made[k]);
        else
          require(seen[k] == made[k], "the result depends on the number of threads");
      }
      ++cases;
    }
  }
}

// Two threads write one array, which no kernel may do: the thread sanitizer has to notice.
inline void race() {
  const int64_t count = 20003;
  const auto pre = uniform<float>(count), x = uniform<float>(count);
  auto out = unwritten<float>(count);
  const auto write = [&] {
    geof_gate_args a = gate_arguments(count, 1, pre, x, x);
    a.out = out.data();
    geof_gate(&a);
  };
  std::thread other(write);
  write();
  other.join();
}

inline int sample(const Graph& graph, const std::vector<int64_t>& seed,
                  const std::vector<int64_t>& fanout, geof_sample_args& a) {
  a.n = graph.n;
  a.E = graph.E();
  a.seeds = int64_t(seed.size());
  a.hops = int64_t(fanout.size());
  a.pointer = graph.pointer.data();
  a.source = graph.source.data();
  a.seed = seed.data();
  a.fanout = fanout.data();
  for (int k = 0; k < 4; ++k) a.state[k] = 0x9e3779b97f4a7c15ULL * uint64_t(k + 1) | 1;
  return geof_sample(&a);
}

inline void samples(const Graph& graph) {
  current = "samples of a graph of " + std::to_string(graph.n);
  for (const auto& fanout :
       std::vector<std::vector<int64_t>>{{}, {-1}, {0}, {1}, {2, 2}, {3, 2, 1}, {-1, 5}, {300}})
    for (const int64_t seeds : {int64_t(0), int64_t(1), graph.n / 2, graph.n}) {
      std::vector<int64_t> seed;
      for (int64_t k = 0; k < std::min(seeds, graph.n); ++k) seed.push_back(graph.n - 1 - k);
      seed.shrink_to_fit();
      geof_sample_args a{};
      require(sample(graph, seed, fanout, a) == 0, "a sample was refused");
      std::vector<int64_t> nodes(a.nodes), source(a.edges), target(a.edges), place(a.edges);
      for (const bool places : {false, true})
        geof_sample_take(nodes.data(), source.data(), target.data(), places ? place.data() : nullptr);
      require(int64_t(std::set<int64_t>(nodes.begin(), nodes.end()).size()) == a.nodes,
              "a node came twice");
      for (int64_t e = 0; e < a.edges; ++e) {
        require(source[e] >= 0 && source[e] < a.nodes && target[e] >= 0 && target[e] < a.nodes,
                "an edge ends outside the sample");
        require(graph.source[place[e]] == nodes[source[e]], "an edge has another's place");
      }
      ++cases;
    }
  if (graph.n == 0) return;
  geof_sample_args a{};
  for (const int64_t wrong : {graph.n, int64_t(-1), INT64_MAX, INT64_MIN}) {
    require(sample(graph, {0, wrong}, {2}, a) == 2, "a seed outside the graph was taken");
    Graph bad = graph;
    bad.source.assign(graph.source.size(), wrong);
    require(sample(bad, {0}, {-1}, a) == 2, "a neighbour outside the graph was met");
    bad = graph;
    bad.pointer[1] = wrong == graph.n ? graph.E() + 1 : wrong;
    require(sample(bad, {0}, {-1}, a) == 2, "a row outside the edges was read");
  }
  require(sample(graph, {0}, {-1}, a) == 0, "after refusals a sample was refused");
}

// Targets of a piece, whose sources are all nodes: the sums of the whole graph.
template <class T>
void pieces(const Graph& graph, int m, int B) {
  current = "pieces, m=" + std::to_string(m) + " B=" + std::to_string(B);
  const int64_t n = graph.n, d = int64_t(m) * B, t = int64_t(m) * (m + 1) / 2 * B;
  const auto h = uniform<T>(n * d), y = uniform<T>(n * d);
  std::vector<T> whole;
  const auto moments = [&](int64_t begin, int64_t count, int threads, int64_t first_target) {
    std::vector<int64_t> pointer;
    for (int64_t i = begin; i <= begin + count; ++i)
      pointer.push_back(graph.pointer[i] - graph.pointer[begin]);
    pointer.shrink_to_fit();
    const auto* from = graph.narrow_source.data() + graph.pointer[begin];
    const std::vector<int32_t> source(from, from + pointer.back());
    auto weight = unwritten<T>(pointer.back()), first = unwritten<T>(count * d);
    auto second = unwritten<T>(count * t);
    geof_moments a{};
    a.shape = {int32_t(sizeof(T) == 8), threads, count, m, B};
    a.E = pointer.back();
    a.temperature = 2.0 * double(d);
    a.h = h.data();
    a.y = y.data();
    a.pointer = pointer.data();
    a.source = a.target = a.by_source = source.data();
    a.weight = weight.data();
    a.first = first.data();
    a.second = second.data();
    a.sources = n;
    a.first_target = first_target;
    const int code = geof_edge_moments(&a);
    return std::pair(code, first);
  };
  for (const int64_t size : {n, int64_t(1), int64_t(7), int64_t(64)})
    for (int64_t begin = 0; begin < n; begin += size)
      for (const int threads : {1, 3}) {
        const int64_t count = std::min(size, n - begin);
        const auto [code, first] = moments(begin, count, threads, begin);
        require(code == 0, "a piece was refused");
        if (size == n && threads == 1) whole = first;
        require(std::memcmp(first.data(), whole.data() + begin * d, first.size() * sizeof(T)) == 0,
                "a piece has other sums than the whole");
        ++cases;
      }
  for (const int64_t wrong : {n, int64_t(-1), INT64_MAX, INT64_MIN})
    require(moments(0, 1, 1, wrong).first == 2, "targets outside the graph were read");
}
