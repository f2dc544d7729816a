// Drives every kernel over many shapes, for the sanitizers to watch (test_sanitizers.py).
//
// All arrays lie on the heap with exactly the sizes native/geof.h documents, so that one value too
// many is out of bounds. Outputs start as NaN and must come out finite: what a kernel forgets to
// write is seen too. Every kernel runs with one thread and with three and must give the same bits.
//
// `sanitize short` makes one array a value too short, `sanitize race` lets two threads write one
// array: the sanitizer has to notice. `sanitize threads` has work that is
// shared out, and callers in several threads of one process.
#include "sanitize.h"
#include "sanitize_more.h"

#include <cstring>
#include <functional>
#include <thread>

namespace {

int64_t missing = 0;  // values by which one array is too short

struct Options {
  int m, B;
  int statistic = kFull;
  bool framed = true;
  int H = 0, rank = 1;
};

template <class T>
struct Run {
  const Graph& graph;
  const Options o;
  const int64_t n = graph.n, E = graph.E();
  const int64_t d = int64_t(o.m) * o.B, t = int64_t(o.m) * (o.m + 1) / 2 * o.B;
  const bool second_wanted = o.statistic == kFull || o.statistic == kDiagonal;

  // Results of the run with one thread, in order; the others must repeat them.
  std::vector<std::vector<T>> seen{};
  size_t position = 0;
  int threads = 1;

  geof_shape shape() const {
    return {int32_t(sizeof(T) == 8), int32_t(threads), n, int32_t(o.m), int32_t(o.B)};
  }

  void done(int code) { require(code == 0, "a kernel ran out of memory"); }

  void keep(const std::vector<T>& values, const char* name, bool finite = true) {
    for (const T& value : values)
      if (finite && !std::isfinite(value)) fail(std::string(name) + " is not finite or not written");
    if (threads == 1) {
      seen.push_back(values);
    } else {
      const std::vector<T>& first = seen.at(position++);
      if (first.size() != values.size() ||
          (values.size() && std::memcmp(first.data(), values.data(), values.size() * sizeof(T))))
        fail(std::string(name) + " depends on the number of threads");
    }
  }

  void frames(const std::vector<T>& z, const std::vector<T>& x, const std::vector<T>& message,
              std::vector<T>& h, std::vector<T>& y) {
    for (const bool lanes : {false, true})
      for (const bool with_message : {false, true}) {
        h = unwritten<T>(n * d);
        y = unwritten<T>(with_message ? n * d : 0);
        geof_frames a{};
        a.shape = shape();
        a.framed = o.framed;
        a.lanes_out = lanes;
        a.z = z.data();
        a.x = x.data();
        a.h = h.data();
        if (with_message) {
          a.message = message.data();
          a.y = y.data();
        }
        done(geof_apply_frames(&a));
        keep(h, "h");
        keep(y, "y");
        const auto grad_h = uniform_like(n * d), grad_y = uniform_like(with_message ? n * d : 0);
        for (const int add : {0, 7}) {
          auto grad_z = add ? std::vector<T>(n * t) : unwritten<T>(n * t - (n ? missing : 0));
          auto grad_x = add ? std::vector<T>(n * d) : unwritten<T>(n * d);
          auto grad_message = add ? std::vector<T>(with_message ? n * d : 0)
                                  : unwritten<T>(with_message ? n * d : 0);
          a.add = add;
          a.grad_h = grad_h.data();
          a.grad_y = with_message ? grad_y.data() : nullptr;
          a.grad_z = grad_z.data();
          a.grad_x = grad_x.data();
          a.grad_message = with_message ? grad_message.data() : nullptr;
          done(geof_apply_frames_backward(&a));
          keep(grad_z, "gradient of z by frames");
          keep(grad_x, "gradient of x by frames");
          keep(grad_message, "gradient of message by frames");
        }
      }
  }

  // What edges carry: nothing, a bias, or a bias and rows of a table.
  struct Terms {
    std::vector<T> bias, table, grad_bias, grad_table;
    std::vector<int32_t> row;
  };
  static constexpr int64_t kRows = 5;

  Terms terms(int carrying) {
    Terms c;
    if (carrying > 0) {
      c.bias = uniform_like(E);
      c.grad_bias = unwritten<T>(E);
    }
    for (int64_t e = 0; e < int64_t(c.bias.size()); e += 7)
      c.bias[e] = e % 2 ? T(300) : -std::numeric_limits<T>::infinity();
    if (carrying > 1) {
      c.table = uniform_like(kRows * d);
      c.grad_table = unwritten<T>(kRows * d);
      for (int64_t e = 0; e < E; ++e) c.row.push_back(int32_t(e % (kRows + 1)) - 1);
    }
    for (int64_t e = 0; e < int64_t(c.bias.size()); ++e)
      if (graph.narrow_source[e] == graph.narrow_target[e]) c.bias[e] = 0;
    return c;
  }

  void carry(geof_moments& a, Terms& c) const {
    if (!c.bias.empty()) {
      a.bias = c.bias.data();
      a.grad_bias = c.grad_bias.data();
    }
    if (c.table.empty()) return;
    a.row = c.row.data();
    a.table = c.table.data();
    a.rows = kRows;
    a.grad_table = c.grad_table.data();
  }

  geof_moments moment_arguments(const std::vector<T>& h, const std::vector<T>& y,
                                std::vector<T>& weight) const {
    geof_moments a{};
    a.shape = shape();
    a.E = E;
    a.temperature = 2.0 * double(d);
    a.h = h.data();
    a.y = y.data();
    a.pointer = graph.pointer.data();
    a.source = graph.narrow_source.data();
    a.target = graph.narrow_target.data();
    a.by_source = graph.by_source.data();
    a.active = graph.active.empty() ? nullptr : graph.active.data();
    a.weight = weight.data();
    return a;
  }

  void moments(const std::vector<T>& h, const std::vector<T>& y, std::vector<T>& first,
               std::vector<T>& second, int carrying) {
    auto weight = unwritten<T>(E);
    Terms carried = terms(carrying);
    first = unwritten<T>(n * d);
    second = unwritten<T>(second_wanted ? n * t : 0);
    geof_moments a = moment_arguments(h, y, weight);
    carry(a, carried);
    a.first = first.data();
    a.second = second_wanted ? second.data() : nullptr;
    done(geof_edge_moments(&a));
    keep(weight, "weight");
    keep(first, "first");
    keep(second, "second");
    const auto grad_weight = uniform_like(E), grad_first = uniform_like(n * d);
    const auto grad_second = uniform_like(second_wanted ? n * t : 0);
    for (const bool of_weight : {false, true}) {
      auto grad_h = unwritten<T>(n * d), grad_y = unwritten<T>(n * d);
      a.grad_weight = of_weight ? grad_weight.data() : nullptr;
      a.grad_first = grad_first.data();
      a.grad_second = second_wanted ? grad_second.data() : nullptr;
      a.grad_h = grad_h.data();
      a.grad_y = grad_y.data();
      done(geof_edge_moments_backward(&a));
      keep(grad_h, "gradient of h");
      keep(grad_y, "gradient of y");
      keep(carried.grad_bias, "gradient of the edges' bias");
      keep(carried.grad_table, "gradient of the edges' table");
    }
  }

  geof_feedback_args feedback_arguments(const std::vector<T>& z, const std::vector<T>& message,
                                        const std::vector<T>& first,
                                        const std::vector<T>& second) const {
    geof_feedback_args a{};
    a.shape = shape();
    a.statistic = o.statistic;
    a.framed = o.framed;
    a.floor = 0.5;
    a.jitter = 1e-6;
    a.growth = 10;
    a.retries = 3;
    a.z = z.data();
    a.message = message.data();
    a.first = first.data();
    a.second = second_wanted ? second.data() : nullptr;
    return a;
  }

  void feedback(const std::vector<T>& z, const std::vector<T>& message, const std::vector<T>& first,
                const std::vector<T>& second) {
    const bool any = o.statistic != kNone;
    for (const bool shown : {false, true}) {
      auto aggregate = unwritten<T>(n * d), target = unwritten<T>(any ? n * t : 0);
      auto moment = unwritten<T>(any && shown ? n * d * o.m : 0);
      std::vector<int64_t> attempt(any && shown ? n * o.B : 0, -1);
      geof_feedback_args a = feedback_arguments(z, message, first, second);
      a.aggregate = aggregate.data();
      a.target = any ? target.data() : nullptr;
      a.moment = any && shown ? moment.data() : nullptr;
      a.attempt = any && shown ? attempt.data() : nullptr;
      done(geof_feedback(&a));
      keep(aggregate, "aggregate");
      keep(target, "target");
      keep(moment, "moment");
      for (const int64_t tried : attempt) require(tried == 0, "an attempt was not written");
      for (const int64_t status : a.status) require(status == 0, "a good block was reported");
    }
    const auto grad_aggregate = uniform_like(n * d), grad_target = uniform_like(any ? n * t : 0);
    for (const bool add : {false, true}) {
      auto grad_z = add ? std::vector<T>(n * t) : unwritten<T>(n * t);
      auto grad_message = unwritten<T>(o.statistic == kMean ? n * d : 0);
      auto grad_first = unwritten<T>(n * d), grad_second = unwritten<T>(second_wanted ? n * t : 0);
      geof_feedback_args a = feedback_arguments(z, message, first, second);
      a.add_to_z = add;
      a.grad_aggregate = grad_aggregate.data();
      a.grad_target = any ? grad_target.data() : nullptr;
      a.grad_z = grad_z.data();
      a.grad_message = o.statistic == kMean ? grad_message.data() : nullptr;
      a.grad_first = grad_first.data();
      a.grad_second = second_wanted ? grad_second.data() : nullptr;
      done(geof_feedback_backward(&a));
      keep(grad_z, "gradient of z by feedback");
      keep(grad_message, "gradient of message by feedback");
      keep(grad_first, "gradient of first");
      keep(grad_second, "gradient of second");
    }
  }

  void evolve(const std::vector<T>& z, const std::vector<T>& x, const std::vector<T>& message,
              const std::vector<T>& h, const std::vector<T>& y, int carrying) {
    Terms carried = terms(carrying);
    const int64_t rank = o.m > 1 ? o.rank : 0, p = 2 * (o.m - 1) * rank + o.m;
    const auto shared = uniform_like(n * o.H), hidden = uniform_like(int64_t(o.H) * 2 * o.m);
    const auto output = uniform_like(o.H ? p * o.H : 0), bias = uniform_like(o.H ? p : 0);
    auto aggregate = unwritten<T>(n * d), next = unwritten<T>(n * t), weight = unwritten<T>(E);
    geof_evolve_args a{};
    a.feedback = feedback_arguments(z, message, {}, {});
    a.edges = moment_arguments(h, y, weight);
    carry(a.edges, carried);
    a.feedback.aggregate = aggregate.data();
    a.H = o.H;
    a.rank = rank;
    a.mix = 0.5;
    a.strength = 0.1;
    a.offdiagonal = 0.3;
    a.low = -0.4;
    a.high = 0.6;
    a.x = x.data();
    if (o.H) {
      a.shared = shared.data();
      a.hidden = hidden.data();
      a.output = output.data();
      a.bias = bias.data();
    }
    a.next = next.data();
    done(geof_evolve(&a));
    keep(aggregate, "aggregate of the evolution");
    keep(next, "next");
    keep(weight, "weight of the evolution");
    const auto grad_aggregate = uniform_like(n * d), grad_next = uniform_like(n * t);
    auto grad_z = unwritten<T>(n * t), grad_x = unwritten<T>(o.H ? n * d : 0);
    auto grad_message = unwritten<T>(o.statistic == kMean ? n * d : 0);
    auto grad_h = unwritten<T>(n * d), grad_y = unwritten<T>(n * d);
    auto grad_shared = unwritten<T>(n * o.H), grad_hidden = unwritten<T>(int64_t(o.H) * 2 * o.m);
    auto grad_output = unwritten<T>(o.H ? p * o.H : 0), grad_bias = unwritten<T>(o.H ? p : 0);
    a.feedback.add_to_z = 1;
    a.feedback.grad_aggregate = grad_aggregate.data();
    a.feedback.grad_z = grad_z.data();
    a.feedback.grad_message = o.statistic == kMean ? grad_message.data() : nullptr;
    a.edges.grad_h = grad_h.data();
    a.edges.grad_y = grad_y.data();
    a.grad_next = grad_next.data();
    if (o.H) {
      a.grad_x = grad_x.data();
      a.grad_shared = grad_shared.data();
      a.grad_hidden = grad_hidden.data();
      a.grad_output = grad_output.data();
      a.grad_bias = grad_bias.data();
    }
    done(geof_evolve_backward(&a));
    keep(grad_z, "gradient of z by the evolution");
    keep(grad_x, "gradient of x by the evolution");
    keep(grad_message, "gradient of message by the evolution");
    keep(grad_h, "gradient of h by the evolution");
    keep(grad_y, "gradient of y by the evolution");
    keep(grad_shared, "gradient of shared");
    keep(grad_hidden, "gradient of hidden");
    keep(grad_output, "gradient of output");
    keep(grad_bias, "gradient of bias");
    keep(carried.grad_bias, "gradient of the edges' bias by the evolution");
    keep(carried.grad_table, "gradient of the edges' table by the evolution");
  }

  // Blocks the schedule cannot mend: reported, and nothing is read or written out of place.
  void spoilt(const std::vector<T>& z, const std::vector<T>& message, const std::vector<T>& first,
              std::vector<T> second) {
    if (!second_wanted || n == 0) return;
    const T bad[] = {T(-1e3), std::numeric_limits<T>::quiet_NaN(),
                     std::numeric_limits<T>::infinity()};
    for (const T value : bad) {
      for (int64_t k = 0; k < t; ++k) second[k] = value;  // all blocks of the first node
      auto aggregate = unwritten<T>(n * d), target = unwritten<T>(n * t);
      std::vector<int64_t> attempt(n * o.B, -1);
      geof_feedback_args a = feedback_arguments(z, message, first, second);
      a.aggregate = aggregate.data();
      a.target = target.data();
      a.attempt = attempt.data();
      done(geof_feedback(&a));
      const int64_t counted = std::isfinite(value) ? a.status[1] + a.status[4] : a.status[0];
      require(counted == o.B, "bad blocks were not counted");
      if (std::isfinite(value)) rescued_backward(z, message, first, second);
      keep(aggregate, "aggregate beside bad blocks");
    }
  }

  void rescued_backward(const std::vector<T>& z, const std::vector<T>& message,
                        const std::vector<T>& first, const std::vector<T>& second) {
    const auto grad_aggregate = uniform_like(n * d), grad_target = uniform_like(n * t);
    auto grad_z = unwritten<T>(n * t), grad_first = unwritten<T>(n * d);
    auto grad_second = unwritten<T>(n * t);
    geof_feedback_args a = feedback_arguments(z, message, first, second);
    a.grad_aggregate = grad_aggregate.data();
    a.grad_target = grad_target.data();
    a.grad_z = grad_z.data();
    a.grad_first = grad_first.data();
    a.grad_second = grad_second.data();
    done(geof_feedback_backward(&a));
    keep(grad_z, "gradient of z beside rescued blocks");
    keep(grad_second, "gradient of second beside rescued blocks");
  }

  std::vector<T> uniform_like(int64_t size) { return uniform<T>(size); }

  void all() {
    std::vector<T> h, y, first, second;
    for (const int number : {1, 3}) {
      generator.seed(unsigned(1 + o.m * 64 + o.B));
      threads = number;
      const auto z = uniform<T>(n * t, 1 / std::sqrt(double(o.m)));
      const auto x = uniform_like(n * d), message = uniform_like(n * d);
      frames(z, x, message, h, y);
      for (const int carrying : {2, 1, 0}) {
        moments(h, y, first, second, carrying);
        evolve(z, x, message, h, y, carrying);
      }
      feedback(z, message, first, second);
      spoilt(z, message, first, second);
      ++cases;
    }
    require(position == seen.size(), "fewer results with three threads");
  }
};

void run(const Graph& graph, const Options& options) {
  for (const int bytes : {4, 8}) {
    current = "bytes=" + std::to_string(bytes) + " n=" + std::to_string(graph.n) +
              " E=" + std::to_string(graph.E()) + " m=" + std::to_string(options.m) +
              " B=" + std::to_string(options.B) + " statistic=" + std::to_string(options.statistic) +
              " framed=" + std::to_string(options.framed) + " H=" + std::to_string(options.H) +
              " rank=" + std::to_string(options.rank);
    if (bytes == 4) {
      Run<float>{graph, options}.all();
    } else {
      Run<double>{graph, options}.all();
    }
  }
}

// Graphs with something to share out: hubs in pieces and every parallel region; more chunks than
// shares; more blocks than columns.
void shared() {
  current = "graphs";
  const Graph crowd = make_graph(1301, 4000, 1200, false), marked = make_graph(1300, 4000, 1030, true);
  samples(crowd);
  pieces<float>(make_graph(130, 600, 90, false), 4, 8);
  pieces<double>(make_graph(130, 600, 90, false), 3, 5);
  run(crowd, Options{2, 8, kFull, true, 5, 2});
  run(marked, Options{4, 8, kMean, true, 0, 1});
  run(crowd, Options{3, 5, kDiagonal, false, 3, 1});
  run(make_graph(67, 200, 0, false), Options{1, 520, kFull, true, 2, 1});
  run(make_graph(150, 300, 0, false), Options{2, 256, kFull, true, 3, 1});
}

// Callers in several threads of one process, each with arrays of its own and all with one graph.
void together() {
  current = "graphs";
  const Graph graph = make_graph(200, 700, 150, false);
  const auto call = [&] {
    run(graph, Options{4, 8, kFull, true, 5, 2});
    run(graph, Options{3, 5, kMean, true, 0, 1});
    gates<float>();
    samples(graph);
    pieces<double>(graph, 3, 4);
  };
  std::thread one(call), two(call);
  call();
  one.join();
  two.join();
}

// Every size of blocks, the other sizes and the switches in turn.
void sizes() {
  current = "graphs";
  const Graph small[] = {make_graph(5, 9, 0, false), make_graph(0, 0, 0, false),
                         make_graph(6, 14, 3, true), make_graph(1, 0, 0, false),
                         make_graph(2, 3, 0, false)};
  const int counts[] = {8, 1, 4, 3, 16, 2, 24, 5, 12};
  int turn = 0;
  for (int m = 1; m <= GEOF_LARGEST_BLOCK; ++m) {
    // Sizes with code of their own meet every count, statistic and graph.
    const bool special = m == 1 || m == 4 || m == 8 || m == 5 || m == GEOF_LARGEST_BLOCK;
    const int rounds = m == GEOF_LARGEST_BLOCK ? 4 : special ? 18 : 2;
    for (int k = 0; k < rounds; ++k, ++turn) {
      Options o{m, counts[turn % 9]};
      o.statistic = (turn + k / 9) % 4;
      o.framed = turn % 3 != 0;
      const int hidden[] = {0, 1, 8, 13, 4};
      o.H = hidden[turn % 5];
      o.rank = turn % 2 ? 4 : 1;
      run(small[m >= 16 ? turn % 3 : turn % 5], o);
    }
  }
  for (const Graph& graph : small) samples(graph);
  // Pairs of nodes, odd and even numbers of them, with every statistic.
  for (const int m : {4, 8})
    for (int k = 0; k < 8; ++k) run(small[k % 2 ? 0 : 2], Options{m, 8, k % 4, k < 4, 13, 1 + k % 4});
}

}  // namespace

int main(int count, char** arguments) {
  const std::string mode = count > 1 ? arguments[1] : "";
  missing = mode == "short" ? 1 : 0;
  if (mode == "race") {
    race();
    return 0;
  }
  if (mode == "threads") {
    together();
  } else {
    refuse_bad_graphs();
    gates<float>();
    gates<double>();
    sizes();
  }
  shared();
  std::printf("%lld cases\n", static_cast<long long>(cases.load()));
  return 0;
}
