// How work is shared: fixed pieces, so results do not depend on the number of threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#ifdef _OPENMP
#include <omp.h>
#endif

namespace geof {

// The calling thread's number inside a parallel region.
inline int worker() {
#ifdef _OPENMP
  return omp_get_thread_num();
#else
  return 0;
#endif
}

// Either whole nodes [first, last) or, with slot >= 0, the part [begin, end) of a hub's edges.
struct Task {
  int64_t first, last;
  int64_t begin, end;
  int64_t slot;
};

struct Hub {
  int64_t node;
  int64_t first_slot, last_slot;
};

struct Partition {
  std::vector<Task> tasks;
  std::vector<Hub> hubs;
  std::vector<int64_t> pieces;  // the tasks that are parts of hubs, in the order of their slots
  int64_t slots = 0;
};

constexpr int kTiles = 16;       // blocks of nodes for sums over both ends of an edge
constexpr int64_t kGrain = 512;  // edges per task, and per part of a hub

// Cut the rows of a compressed adjacency into tasks of about kGrain edges each.
inline Partition cut(const int64_t* pointer, int64_t n) {
  Partition cutting;
  int64_t first = 0;
  auto flush = [&](int64_t last) {
    if (last > first) cutting.tasks.push_back({first, last, pointer[first], pointer[last], -1});
    first = last;
  };
  for (int64_t i = 0; i < n; ++i) {
    const int64_t degree = pointer[i + 1] - pointer[i];
    if (degree > 2 * kGrain) {
      flush(i);
      Hub hub{i, cutting.slots, cutting.slots};
      for (int64_t e = pointer[i]; e < pointer[i + 1]; e += kGrain) {
        cutting.pieces.push_back(int64_t(cutting.tasks.size()));
        cutting.tasks.push_back(
            {i, i + 1, e, std::min(e + kGrain, pointer[i + 1]), cutting.slots++});
      }
      hub.last_slot = cutting.slots;
      cutting.hubs.push_back(hub);
      first = i + 1;
    } else if (pointer[i + 1] - pointer[first] >= kGrain) {
      flush(i + 1);
    }
  }
  flush(n);
  return cutting;
}

}  // namespace geof
