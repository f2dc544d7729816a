// How work is shared: fixed pieces, so results do not depend on the number of threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace geof {

// Scratch memory that a thread keeps: fresh pages for every call would cost more than its arithmetic.
template <class T>
T* thread_scratch(size_t size) {
  static thread_local std::vector<T> kept;
  if (kept.size() < size) kept.resize(size);
  return kept.data();
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

// Sums over both ends of an edge. Nodes are cut into kBlocks blocks and edges into tiles, one for
// every unordered pair of blocks. The tiles are played like a tournament: in round 0 every block
// meets itself, in each later round all blocks meet in pairs. So tiles of one round have no node in
// common: they run side by side without atomics, and every sum has a fixed order.
constexpr int kBlocks = 16;
constexpr int kTiles = kBlocks * (kBlocks + 1) / 2;

struct Round {
  int first, last;  // tiles [first, last)
};

// Round 0 has kBlocks tiles, each of the kBlocks - 1 others half as many.
inline Round tiles_of(int round) {
  if (round == 0) return {0, kBlocks};
  const int first = kBlocks + (round - 1) * (kBlocks / 2);
  return {first, first + kBlocks / 2};
}

// tile[a][b] of every pair of blocks, by the circle method: block kBlocks - 1 stands still while the
// others turn.
struct Tournament {
  int tile[kBlocks][kBlocks];

  Tournament() {
    constexpr int turning = kBlocks - 1;
    for (int a = 0; a < kBlocks; ++a) tile[a][a] = a;
    for (int round = 0; round < turning; ++round)
      for (int k = 0; k < kBlocks / 2; ++k) {
        const int a = k == 0 ? turning : (round + k) % turning;
        const int b = k == 0 ? round : (round - k + turning) % turning;
        tile[a][b] = tile[b][a] = kBlocks + round * (kBlocks / 2) + k;
      }
  }
};

}  // namespace geof
