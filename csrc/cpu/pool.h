// Threads that work on one job together and meet at barriers.
//
// The caller is worker 0. A wait spins for microseconds, because running workers meet within one,
// and then sleeps, because the other worker may need this core. When waits show that another
// program has taken a core, later jobs use one worker fewer until a trial shows that the core is
// free again. No sum depends on the number of workers, so a listener hears no difference.
#pragma once
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace qwen_tts {

using Clock = std::chrono::steady_clock;

constexpr auto kSpin = std::chrono::microseconds(40);
// A wait this long means that the other worker has lost its core: shares of work are more even.
constexpr auto kLate = std::chrono::microseconds(300);
constexpr int kPausesBetweenLooks = 64;  // pauses between two readings of the clock
// A job is crowded when a worker waited for this fraction of it.
constexpr double kCrowdedPart = 0.2;
// The time until the next trial; each failed trial doubles it. A trial may cost a time slice.
constexpr Clock::duration kFirstPatience = std::chrono::milliseconds(20);
constexpr Clock::duration kLastPatience = std::chrono::seconds(2);
constexpr Clock::duration kCalm = std::chrono::seconds(1);  // after it kFirstPatience applies again

inline void pause_thread() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// A counter that threads wait on.
class Event {
 public:
  uint32_t count() const { return count_.load(std::memory_order_acquire); }

  void advance() {
    count_.fetch_add(1);
    if (num_sleepers_.load() > 0) {
      std::lock_guard<std::mutex> lock(mutex_);
      changed_.notify_all();
    }
  }

  // Waits until the count is no longer `seen`; returns how long that took beyond `kLate`.
  Clock::duration wait_past(uint32_t seen) {
    for (int i = 0; i < kPausesBetweenLooks; ++i) {
      if (count() != seen) return {};
      pause_thread();
    }
    const auto began = Clock::now();
    while (Clock::now() - began < kSpin)
      for (int i = 0; i < kPausesBetweenLooks; ++i) {
        if (count() != seen) return {};
        pause_thread();
      }
    std::unique_lock<std::mutex> lock(mutex_);
    num_sleepers_.fetch_add(1);
    changed_.wait(lock, [&] { return count_.load() != seen; });
    num_sleepers_.fetch_sub(1);
    const auto waited = Clock::now() - began;
    return waited > kLate ? waited : Clock::duration{};
  }

 private:
  alignas(64) std::atomic<uint32_t> count_{0};
  std::atomic<int> num_sleepers_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
};

// The part of `count` items that a worker does.
struct Share {
  int first, end;
};
inline Share share_of(int count, int worker, int num_workers) {
  return {int(int64_t(count) * worker / num_workers),
          int(int64_t(count) * (worker + 1) / num_workers)};
}

class Pool {
 public:
  explicit Pool(int num_threads)
      : num_threads_(num_threads), num_workers_(num_threads), crew_(new_crew()) {}
  ~Pool() {
    // A child process does not have its parent's threads, so it has none to join.
    if (crew_->process != getpid()) {
      static_cast<void>(crew_.release());
      return;
    }
    dismiss(*crew_);
  }

  int num_threads() const { return num_threads_; }
  // The number of workers of the next job; any thread may call this.
  int num_workers() const { return num_workers_.load(std::memory_order_relaxed); }

  // Calls job(worker, num_workers) in every worker; returns when all have returned. Jobs run one at
  // a time. A job throws nothing and allocates nothing: its caller reserves the memory in advance.
  template <class Job>
  void run(Job&& job) {
    if (crew_->process != getpid()) {  // after a fork only the calling thread exists
      auto crew = new_crew();
      static_cast<void>(crew_.release());
      crew_ = std::move(crew);
    }
    const auto began = Clock::now();
    auto call = [](void* job, int worker, int num_workers) {
      (*static_cast<std::remove_reference_t<Job>*>(job))(worker, num_workers);
    };
    Crew& crew = *crew_;
    const int num_workers = this->num_workers();
    crew.call = call, crew.job = &job, crew.num_workers = num_workers;
    for (int i = 1; i < num_workers; ++i) crew.members[i - 1]->ticket.advance();
    crew.late[0].set({});
    call(&job, 0, num_workers);
    barrier(0);
    const auto now = Clock::now();
    adapt(now, now - began);
  }

  // Every worker of the running job calls this; all return once all have called.
  void barrier(int worker) {
    Late& late = crew_->late[worker];
    late.set(late.sum() + wait_for_all());
  }

 private:
  struct Member {
    Event ticket;
    std::thread thread;
  };
  // How long one worker waited for others that had lost their core, in the job that it began last.
  // A thread's wait at the end of a job is not counted: the caller may read this before it ends.
  class alignas(64) Late {
   public:
    Clock::duration sum() const { return Clock::duration(ticks_.load(std::memory_order_relaxed)); }
    void set(Clock::duration sum) { ticks_.store(sum.count(), std::memory_order_relaxed); }

   private:
    std::atomic<Clock::rep> ticks_{0};
  };
  // Everything that the threads share. A child process makes its own and leaves its parent's alone.
  struct Crew {
    pid_t process = getpid();
    std::vector<std::unique_ptr<Member>> members;
    std::unique_ptr<Late[]> late;
    Event phase;
    alignas(64) std::atomic<int> num_arrived{0};
    void (*call)(void*, int, int) = nullptr;
    void* job = nullptr;
    int num_workers = 0;
    std::atomic<bool> is_closing{false};
  };

  // Throws the system's error if it refuses a thread or memory; no new thread is then left.
  std::unique_ptr<Crew> new_crew() {
    auto crew = std::make_unique<Crew>();
    crew->late = std::make_unique<Late[]>(num_threads_);
    try {
      for (int worker = 1; worker < num_threads_; ++worker) {
        crew->members.push_back(std::make_unique<Member>());
        Member& member = *crew->members.back();
        member.thread = std::thread([this, &crew = *crew, &member, worker] {
          for (uint32_t seen = 0;; ++seen) {
            member.ticket.wait_past(seen);
            if (crew.is_closing) return;
            crew.late[worker].set({});
            crew.call(crew.job, worker, crew.num_workers);
            wait_for_all();
          }
        });
      }
    } catch (...) {
      dismiss(*crew);
      throw;
    }
    return crew;
  }

  static void dismiss(Crew& crew) {
    crew.is_closing = true;
    for (auto& member : crew.members) member->ticket.advance();
    for (auto& member : crew.members)
      if (member->thread.joinable()) member->thread.join();  // a refused thread is not joinable
  }

  // Returns how long this worker waited for others that had lost their core.
  Clock::duration wait_for_all() {
    Crew& crew = *crew_;
    // Read before arriving: once all have arrived, the caller may write it for the next job.
    const int num_workers = crew.num_workers;
    if (num_workers == 1) return {};
    const uint32_t seen = crew.phase.count();
    if (crew.num_arrived.fetch_add(1, std::memory_order_acq_rel) < num_workers - 1)
      return crew.phase.wait_past(seen);
    crew.num_arrived.store(0, std::memory_order_relaxed);
    crew.phase.advance();
    return {};
  }

  void adapt(Clock::time_point now, Clock::duration duration) {
    const int num_workers = this->num_workers();
    Clock::duration late{};
    for (int i = 0; i < num_workers; ++i) late = std::max(late, crew_->late[i].sum());
    if (num_workers > 1 && late > kCrowdedPart * duration) {
      num_workers_.store(num_workers - 1, std::memory_order_relaxed);
      changed_at_ = now, patience_ = std::min(2 * patience_, kLastPatience);
    } else if (num_workers < num_threads_) {
      if (now - changed_at_ < patience_) return;
      num_workers_.store(num_workers + 1, std::memory_order_relaxed);
      changed_at_ = now;
    } else if (now - changed_at_ > kCalm) {
      patience_ = kFirstPatience / 2;
    }
  }

  const int num_threads_;
  std::atomic<int> num_workers_;
  Clock::time_point changed_at_{};
  Clock::duration patience_ = kFirstPatience / 2;
  std::unique_ptr<Crew> crew_;
};

}  // namespace qwen_tts
