// Checks the thread pool of csrc/cpu alone, with faults and delays that a test has to cause itself.
//
//   pool_driver CHECK    CHECK is a name listed at the end of this file; exit code 0: it passed
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include "pool.h"
#include "status.h"

using qwen_tts::Pool;
using std::chrono::milliseconds;

// How many allocations succeed before one fails; negative: none fails.
static std::atomic<int> failing{-1};

void* operator new(size_t size) {
  if (failing.load() >= 0 && failing.fetch_sub(1) == 0) throw std::bad_alloc();
  void* memory = std::malloc(size);
  if (!memory) throw std::bad_alloc();
  return memory;
}
void* operator new(size_t size, std::align_val_t align) {
  if (failing.load() >= 0 && failing.fetch_sub(1) == 0) throw std::bad_alloc();
  void* memory = nullptr;
  if (posix_memalign(&memory, size_t(align), size)) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }

namespace {

void expect(bool is_true, const char* what) {
  if (is_true) return;
  std::printf("FAILED: %s\n", what);
  std::fflush(stdout);
  _exit(1);
}

struct Idle {
  void operator()(int, int) {}
};

// Runs a job and returns how many workers took part.
int workers_of(Pool& pool) {
  std::atomic<int> num_calls{0};
  pool.run([&](int, int) { ++num_calls; });
  return num_calls;
}

// Checks that all workers take part. There may be one fewer, if an earlier job was late.
void expect_that_all_work(Pool& pool, const char* what) {
  const int num_workers = pool.num_workers();
  expect(num_workers >= pool.num_threads() - 1 && workers_of(pool) == num_workers, what);
}

// Returns whether an attempt succeeds while the allocation `failing_one` fails.
template <class Try>
bool goes_through(int failing_one, Try attempt) {
  failing = failing_one;
  bool is_done = true;
  try {
    attempt();
  } catch (const std::bad_alloc&) {
    is_done = false;
  }
  failing = -1;
  return is_done;
}

void check_refused_threads() {
  int num_failed = 0;
  for (;; ++num_failed) {
    std::unique_ptr<Pool> pool;
    if (!goes_through(num_failed, [&] { pool = std::make_unique<Pool>(4); })) continue;
    expect(workers_of(*pool) == 4, "a pool of 4 threads");
    break;
  }
  expect(num_failed >= 8, "that some allocation of each thread failed");
}

void check_refused_threads_of_a_fork() {
  Pool pool(4);
  const pid_t child = fork();
  if (child == 0) {
    int num_failed = 0;
    while (!goes_through(num_failed, [&] { pool.run(Idle()); })) ++num_failed;
    expect(num_failed >= 8, "that some allocation of each thread failed");
    expect_that_all_work(pool, "all workers in a child");
    _exit(0);
  }
  int status = 1;
  waitpid(child, &status, 0);
  expect(status == 0, "a child whose threads were refused at first");
  expect(workers_of(pool) == 4, "4 workers in the parent");
}

void sleep_for(int ms) { std::this_thread::sleep_for(milliseconds(ms)); }

// Returns whether a job was not held up. Other programs that take a core change what the pool does,
// so a check that they may have disturbed is repeated.
bool ran_undisturbed(Pool& pool) {
  const auto began = qwen_tts::Clock::now();
  pool.run(Idle());
  return qwen_tts::Clock::now() - began < qwen_tts::kLate;
}
constexpr int kAttempts = 200;

// A worker's last wait ends after its job; the next job must not count it as its own lateness.
void check_lateness_stays_with_its_job() {
  int num_undisturbed = 0;
  for (int i = 0; i < kAttempts && num_undisturbed < 3; ++i) {
    Pool pool(2);
    pool.run([&](int worker, int) {
      if (worker == 0) sleep_for(40);
    });
    if (!ran_undisturbed(pool)) continue;
    ++num_undisturbed;
    expect(pool.num_workers() == 2, "two workers after a job that no thread waited in");
  }
  expect(num_undisturbed > 0, "a machine that leaves two cores for a moment");
}

// Returns the first promise that the pool breaks, or null. Sets `is_disturbed` if another program
// took a core meanwhile.
const char* taken_core_fault(bool& is_disturbed) {
  Pool pool(2);
  const auto began = qwen_tts::Clock::now();
  // The second worker arrives late, as if a busy program had its core.
  auto job = [&](int worker, int) {
    if (worker == 1) sleep_for(2);
    pool.barrier(worker);
  };
  auto idle_after_25_ms = [&] {
    sleep_for(25);
    is_disturbed |= !ran_undisturbed(pool);
  };
  pool.run(job);
  if (pool.num_workers() != 1) return "one worker fewer where one came late";
  if (workers_of(pool) != 1) return "jobs of one worker";
  idle_after_25_ms();
  if (pool.num_workers() != 2) return "a trial after 20 ms";
  pool.run(job);
  if (pool.num_workers() != 1) return "one worker fewer again";
  idle_after_25_ms();
  // A sleep that took too long is a disturbance, too: after the second trial the pool waits 40 ms.
  is_disturbed |= qwen_tts::Clock::now() - began > milliseconds(25 + 2 + 25 + 10);
  if (pool.num_workers() != 1) return "more patience after a trial that failed";
  idle_after_25_ms();
  if (pool.num_workers() != 2) return "a trial after 40 ms";
  return nullptr;
}

void check_a_taken_core_is_left_and_tried_again() {
  for (int i = 0; i < kAttempts; ++i) {
    bool is_disturbed = false;
    const char* fault = taken_core_fault(is_disturbed);
    if (!fault) return;
    expect(is_disturbed, fault);
  }
  expect(false, "a machine that leaves two cores for a moment");
}

// Another thread reads the number of workers while jobs change it; the thread sanitizer watches.
void check_workers_may_be_asked_for_at_any_time() {
  Pool pool(3);
  std::atomic<bool> is_over{false};
  std::thread watcher([&] {
    while (!is_over) expect(pool.num_workers() >= 1, "a number of workers");
  });
  for (int i = 0; i < 50; ++i)
    pool.run([&](int worker, int) {
      if (worker == i % 3) sleep_for(1);
      pool.barrier(worker);
    });
  is_over = true;
  watcher.join();
}

void check_no_exception_leaves_a_call() {
  using qwen_tts::status_of;
  expect(status_of([] {}) == kDone, "done");
  expect(status_of([] { throw std::bad_alloc(); }) == kOutOfMemory, "no memory");
  expect(status_of([] { throw std::length_error(""); }) == kOutOfMemory, "a length");
  const auto error = std::make_error_code(std::errc::resource_unavailable_try_again);
  expect(status_of([=] { throw std::system_error(error); }) == kNoThreads, "no threads");
  expect(status_of([] { throw 1; }) == kUnforeseen, "anything else");
}

}  // namespace

int main(int, char** argv) {
  const struct {
    const char* name;
    void (*check)();
  } checks[] = {
      {"refused threads", check_refused_threads},
      {"refused threads of a fork", check_refused_threads_of_a_fork},
      {"lateness", check_lateness_stays_with_its_job},
      {"a taken core", check_a_taken_core_is_left_and_tried_again},
      {"asking for workers", check_workers_may_be_asked_for_at_any_time},
      {"exceptions", check_no_exception_leaves_a_call},
  };
  for (const auto& each : checks)
    if (!std::strcmp(each.name, argv[1])) {
      each.check();
      return 0;
    }
  return 2;
}
