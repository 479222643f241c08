/* Shares of a layer's blocks for OpenMP's threads, torch's own where torch is loaded. */
#ifndef SSD_THREADS_H
#define SSD_THREADS_H

#include <omp.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>

#define OUTPUTS 32 /* of a block of a linear layer */

static inline int64_t blocks_of(int64_t outputs) { return (outputs + OUTPUTS - 1) / OUTPUTS; }

/* First block of thread me of n; its share ends where the next one's begins. */
static inline int64_t share(int64_t blocks, int64_t me, int64_t n) { return blocks * me / n; }

/* Run BODY with block from ``first`` to ``stop`` - 1 being the share of each of at most ``threads`` threads. */
#define SHARE_BLOCKS(blocks, threads, BODY)                                              \
    if ((threads) < 2 || (blocks) < 2) {                                                 \
        const int64_t first = 0, stop = (blocks);                                        \
        BODY;                                                                            \
    } else {                                                                             \
        _Pragma("omp parallel num_threads(threads)") {                                   \
            const int64_t n = omp_get_num_threads(), me = omp_get_thread_num();          \
            const int64_t first = share(blocks, me, n), stop = share(blocks, me + 1, n); \
            BODY;                                                                        \
        }                                                                                \
    }

/* Threads of one region wait here for each other: turning, because the others are microseconds away, and giving the core
 * away where they turn out not to be. */
typedef struct {
    _Atomic int64_t arrived, rounds;
} Meeting;

static inline void meet(Meeting *meeting, int64_t threads) {
    if (threads < 2) return;
    const int64_t round = atomic_load(&meeting->rounds);
    if (atomic_fetch_add(&meeting->arrived, 1) == threads - 1) {
        atomic_store(&meeting->arrived, 0);
        atomic_fetch_add(&meeting->rounds, 1);
        return;
    }
    for (int64_t turns = 0; atomic_load(&meeting->rounds) == round; turns++) {
        if (turns > 20000) sched_yield();
#if defined(__x86_64__)
        else __builtin_ia32_pause();
#endif
    }
}

#endif
