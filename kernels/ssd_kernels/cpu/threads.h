/* Shares of a layer's blocks for OpenMP's threads, torch's own where torch is loaded. */
#ifndef SSD_THREADS_H
#define SSD_THREADS_H

#include <omp.h>
#include <stdint.h>

/* Run BODY with block from ``first`` to ``stop`` - 1 being the share of each of at most ``threads`` threads. */
#define SHARE_BLOCKS(blocks, threads, BODY)                                              \
    if ((threads) < 2 || (blocks) < 2) {                                                 \
        const int64_t first = 0, stop = (blocks);                                        \
        BODY;                                                                            \
    } else {                                                                             \
        _Pragma("omp parallel num_threads(threads)") {                                   \
            const int64_t n = omp_get_num_threads(), me = omp_get_thread_num();          \
            const int64_t first = (blocks)*me / n, stop = (blocks) * (me + 1) / n;       \
            BODY;                                                                        \
        }                                                                                \
    }

#endif
