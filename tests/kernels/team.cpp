// OpenMP's entry points, as GCC calls them, over plain threads, for the thread sanitizer.
//
// It knows where a std::thread begins and ends. Of libgomp's own waiting, which is not compiled with
// it, it knows nothing, and would report a race wherever two parts of a kernel follow each other.
// Pieces of work are dealt without any order between them that memory could rely on.
#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

namespace {

struct Team {
  int size = 1;
  std::atomic<long> dealt{0};
};
struct Loop {
  long start, end, step, chunk;
};

thread_local Team* team = nullptr;
thread_local int number = 0;
thread_local Loop loop{};

std::mutex& critical() {
  static std::mutex one;
  return one;
}

void run_team(void (*work)(void*), void* data, unsigned threads, const Loop& whole) {
  Team own, *const outer = team;
  const int outer_number = number;
  own.size = int(std::max(1u, threads));
  const auto live = [&](int k) {
    team = &own;
    number = k;
    loop = whole;
    work(data);
  };
  std::vector<std::thread> others;
  for (int k = 1; k < own.size; ++k) others.emplace_back(live, k);
  live(0);
  for (std::thread& other : others) other.join();
  team = outer;
  number = outer_number;
}

}  // namespace

extern "C" {

int omp_get_num_threads() { return team ? team->size : 1; }
int omp_get_thread_num() { return number; }

void GOMP_parallel(void (*work)(void*), void* data, unsigned threads, unsigned) {
  run_team(work, data, threads, {});
}

// The loop is the whole region: nobody calls `start`.
void GOMP_parallel_loop_nonmonotonic_dynamic(void (*work)(void*), void* data, unsigned threads,
                                             long start, long end, long step, long chunk, unsigned) {
  run_team(work, data, threads, {start, end, step, chunk});
}

bool GOMP_loop_nonmonotonic_dynamic_next(long* begin, long* end) {
  const long at = team->dealt.fetch_add(1, std::memory_order_relaxed);
  const long first = loop.start + at * loop.chunk * loop.step;
  if (first >= loop.end) return false;
  *begin = first;
  *end = std::min(first + loop.chunk * loop.step, loop.end);
  return true;
}

bool GOMP_loop_nonmonotonic_dynamic_start(long start, long end, long step, long chunk, long* from,
                                          long* to) {
  loop = {start, end, step, chunk};
  return GOMP_loop_nonmonotonic_dynamic_next(from, to);
}

void GOMP_loop_end_nowait() {}

void GOMP_critical_name_start(void**) { critical().lock(); }
void GOMP_critical_name_end(void**) { critical().unlock(); }
}
