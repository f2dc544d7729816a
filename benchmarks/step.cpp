// One recurrent step's kernels alone, on a generated batch of molecules: see step.py.
//
// step NODES ROUNDS: the best CPU time of each kernel, in nanoseconds per node, and a checksum.
#include <time.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <utility>
#include <vector>

#include "geof.h"

namespace {

using Floats = std::vector<float>;

constexpr int m = 8, B = 8, t = m * (m + 1) / 2, d = m * B, H = 8, rank = 4;
constexpr int p = 2 * (m - 1) * rank + m;

double seconds() {
  timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return double(now.tv_sec) + 1e-9 * double(now.tv_nsec);
}

// Chains of thirty atoms with branches and rings: 2.1 neighbours, and every node's self-loop.
std::vector<std::pair<int64_t, int64_t>> molecules(int64_t n) {
  std::vector<std::pair<int64_t, int64_t>> edges;
  const auto connect = [&](int64_t i, int64_t j) {
    edges.push_back({i, j});
    edges.push_back({j, i});
  };
  for (int64_t i = 0; i < n; ++i) edges.push_back({i, i});
  for (int64_t i = 1; i < n; ++i)
    if (i % 30) connect(i, i % 7 == 0 && i > 5 ? i - 3 : i - 1);
  for (int64_t i = 6; i < n; i += 11) connect(i, i - 5);
  std::sort(edges.begin(), edges.end());
  edges.erase(std::unique(edges.begin(), edges.end()), edges.end());
  return edges;
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t n = argc > 1 ? std::atoll(argv[1]) : 3821;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 60;
  const auto pairs = molecules(n);
  const int64_t E = int64_t(pairs.size());
  std::vector<int64_t> source, target, pointer(n + 1);
  for (const auto& [i, j] : pairs) target.push_back(i), source.push_back(j);
  std::vector<int32_t> narrow(E), ends(E), by_source(E);
  if (geof_plan(n, E, source.data(), target.data(), pointer.data(), narrow.data(), ends.data(),
                by_source.data()))
    return 1;

  std::mt19937 generator(1);
  std::normal_distribution<float> normal;
  const auto draw = [&](int64_t count, float scale) {
    Floats values(count);
    for (float& v : values) v = scale * normal(generator);
    return values;
  };
  Floats z = draw(n * t * B, 0.3f), x = draw(n * d, 1), message = draw(n * d, 1);
  Floats shared = draw(n * H, 1), hidden = draw(H * 2 * m, 0.2f), output = draw(p * H, 0.2f);
  Floats bias = draw(p, 0.1f), grad_aggregate = draw(n * d, 1), grad_next = draw(n * t * B, 1);
  Floats h(n * d), y(n * d), aggregate(n * d), next(n * t * B), weight(E), grad_z(n * t * B);
  Floats grad_x(n * d), grad_message(n * d), grad_h(n * d), grad_y(n * d), grad_shared(n * H);
  Floats grad_hidden(H * 2 * m), grad_output(p * H), grad_bias(p);

  const geof_shape shape{0, 1, n, m, B};
  geof_frames frames{};
  frames.shape = shape;
  frames.framed = frames.lanes_out = 1;
  frames.z = z.data(), frames.x = x.data(), frames.message = message.data();
  frames.h = h.data(), frames.y = y.data();
  geof_frames back = frames;
  back.add = 3;
  back.grad_h = grad_h.data(), back.grad_y = grad_y.data(), back.grad_z = grad_z.data();
  back.grad_x = grad_x.data(), back.grad_message = grad_message.data();

  geof_evolve_args step{};
  geof_feedback_args& feedback = step.feedback;
  feedback.shape = shape;
  feedback.statistic = feedback.framed = feedback.add_to_z = 1;
  feedback.floor = 1, feedback.jitter = 1e-6, feedback.growth = 10, feedback.retries = 5;
  feedback.z = z.data(), feedback.message = message.data();
  feedback.aggregate = aggregate.data(), feedback.grad_aggregate = grad_aggregate.data();
  feedback.grad_z = grad_z.data(), feedback.grad_message = grad_message.data();
  geof_moments& edges = step.edges;
  edges.shape = shape, edges.E = E, edges.temperature = 64;
  edges.h = h.data(), edges.y = y.data(), edges.weight = weight.data();
  edges.pointer = pointer.data(), edges.source = narrow.data(), edges.target = ends.data();
  edges.by_source = by_source.data();
  edges.grad_h = grad_h.data(), edges.grad_y = grad_y.data();
  step.H = H, step.rank = rank, step.mix = 0.5, step.strength = 0.1;
  step.offdiagonal = 2, step.low = -5, step.high = 5;
  step.x = x.data(), step.shared = shared.data(), step.hidden = hidden.data();
  step.output = output.data(), step.bias = bias.data(), step.next = next.data();
  step.grad_next = grad_next.data(), step.grad_x = grad_x.data();
  step.grad_shared = grad_shared.data(), step.grad_hidden = grad_hidden.data();
  step.grad_output = grad_output.data(), step.grad_bias = grad_bias.data();

  std::array<double, 4> best;
  best.fill(1e9);
  for (int k = 0; k < rounds; ++k) {
    std::array<double, 5> at;
    at[0] = seconds();
    int failed = geof_apply_frames(&frames);
    at[1] = seconds();
    failed |= geof_evolve(&step);
    at[2] = seconds();
    failed |= geof_evolve_backward(&step);
    at[3] = seconds();
    failed |= geof_apply_frames_backward(&back);
    at[4] = seconds();
    if (failed) return 1;
    for (int part = 0; part < 4; ++part) best[part] = std::min(best[part], at[part + 1] - at[part]);
  }
  double checksum = 0;
  for (const Floats* values : {&next, &grad_z, &grad_x, &grad_message, &grad_output, &grad_shared})
    for (const float v : *values) checksum += std::abs(v);
  for (const double time : best) std::printf("%.1f ", time * 1e9 / double(n));
  std::printf("%.6e\n", checksum);
}
