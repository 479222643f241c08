/* A block's keys and values in the order of AMX tiles: a step's words are pairs of bfloat16 numbers along the inputs. */
#ifndef SSD_ATTENTION_TILES_H
#define SSD_ATTENTION_TILES_H

#include "tiles.h"
#include "vector.h"

#define WIDE (2 * LANES) /* positions, or dimensions, per step */
#define BLOCK 64         /* positions per step of the softmax */

/* x[i][j] <-> x[j][i] */
INLINE void transpose16(vu *x) {
    for (int half = 8; half; half /= 2) {
        for (int i = 0; i < 16; i++) {
            if (i & half) continue;
            vu a = x[i], b = x[i + half];
            if (half == 8) {
                x[i] = SHUFFLE(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23);
                x[i + half] = SHUFFLE(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
            } else if (half == 4) {
                x[i] = SHUFFLE(a, b, 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27);
                x[i + half] = SHUFFLE(a, b, 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31);
            } else if (half == 2) {
                x[i] = SHUFFLE(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
                x[i + half] = SHUFFLE(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
            } else {
                x[i] = SHUFFLE(a, b, 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30);
                x[i + half] = SHUFFLE(a, b, 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31);
            }
        }
    }
}

#if TILES
/* bf16 keys at 32 * halves places -> [halves, D / 2, 32] pairs of dimensions */
INLINE void key_tiles(const char *keys, const int64_t *places, int64_t D, int halves, uint32_t *out) {
    for (int side = 0; side < 2 * halves; side++) {
        for (int64_t pair = 0; pair < D / 2; pair += LANES) {
            vu x[LANES];
            for (int i = 0; i < LANES; i++) memcpy(&x[i], keys + places[side * LANES + i] + 4 * pair, 64);
            transpose16(x);
            uint32_t *to = out + (side / 2 * D / 2 + pair) * WIDE + side % 2 * LANES;
            for (int i = 0; i < LANES; i++) memcpy(to + i * WIDE, &x[i], 64);
        }
    }
}

/* bf16 values at 32 * halves places -> [D / 32, halves * 16, 32] pairs of positions */
INLINE void value_tiles(const char *values, const int64_t *places, int64_t D, int halves, uint32_t *out) {
    const int pairs = halves * LANES;
    for (int pair = 0; pair < pairs; pair++) {
        const char *even = values + places[2 * pair], *odd = values + places[2 * pair + 1];
        for (int64_t d = 0; d < D; d += LANES) {
            vh low, high;
            memcpy(&low, even + 2 * d, sizeof low);
            memcpy(&high, odd + 2 * d, sizeof high);
            const vu words = widen(low) | widen(high) << 16;
            memcpy(out + (d / WIDE * pairs + pair) * WIDE + d % WIDE, &words, 64);
        }
    }
}

TILE_PRODUCT(tile_product, _tile_dpbf16ps)
#endif

#endif
