/* Matrix products by AMX tiles: 32 outputs of up to 32 rows at a time, the weights read once and in order.
 * A step multiplies 64 bytes of each row with 2 KiB of weights, [16, 32 outputs, 4 bytes]: 64 inputs in int8, 32 in bf16.
 * An element of the product is summed in the order of its inputs, however many rows run beside it. */
#ifndef SSD_TILES_H
#define SSD_TILES_H

#include "vector.h"

#if defined(__AMX_TILE__) && defined(__AMX_INT8__) && defined(__AMX_BF16__)
#define TILES 1
#else
#define TILES 0
#endif

#define TILE_ROWS 16
#define TILED_ROWS (2 * TILE_ROWS) /* at a time */
#define TILE_BYTES 64   /* of a row, per step */
#define STEP_BYTES 2048 /* of weights, per step */
#define AHEAD 8192      /* bytes of weights to ask for before they are needed */

#if TILES
typedef struct {
    uint8_t palette, start, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
} TileShape;

/* Tiles 0 to 3: sums of (first, second) 16 rows x (first, second) 16 outputs; 4, 5: inputs; 6, 7: weights. */
INLINE void shape_tiles(int rows) {
    TileShape shape = {.palette = 1};
    const int first = rows < TILE_ROWS ? rows : TILE_ROWS, second = rows - first;
    const int of[8] = {first, first, second, second, first, second, TILE_ROWS, TILE_ROWS};
    for (int i = 0; i < 8; i++) {
        shape.rows[i] = of[i];
        shape.bytes[i] = of[i] ? TILE_BYTES : 0;
    }
    _tile_loadconfig(&shape);
}

/* Shape tiles once for all rows of a layer, taken n at a time, which is returned: as few times as possible, and the last
 * ones begin n before the end, so that some rows may be computed twice, alike. */
INLINE int shape_evenly(int64_t rows) {
    const int64_t times = (rows + TILED_ROWS - 1) / TILED_ROWS, n = times ? (rows + times - 1) / times : 0;
    if (n) shape_tiles(n);
    return n;
}

#define TILE_PRODUCT(NAME, MULTIPLY)                                                                              \
    /* sums [rows, 32], rows apart bytes apart, of inputs [rows, steps * 64 bytes], rows stride bytes apart, and    \
     * weights [steps, 2 KiB] */                                                                                    \
    INLINE void NAME(const char *weights, const char *inputs, int64_t stride, int64_t steps, int rows, void *sums,  \
                     int64_t apart, int fetch) {                                                                    \
        _tile_zero(0);                                                                                            \
        _tile_zero(1);                                                                                            \
        if (rows > TILE_ROWS) {                                                                                   \
            _tile_zero(2);                                                                                        \
            _tile_zero(3);                                                                                        \
        }                                                                                                         \
        for (int64_t step = 0; step < steps; step++) {                                                            \
            const char *now = weights + step * STEP_BYTES;                                                        \
            if (fetch) for (int line = 0; line < STEP_BYTES; line += 64) __builtin_prefetch(now + AHEAD + line);             \
            _tile_loadd(6, now, 128);                                                                             \
            _tile_loadd(7, now + 64, 128);                                                                        \
            _tile_loadd(4, inputs + step * TILE_BYTES, stride);                                                   \
            MULTIPLY(0, 4, 6);                                                                                    \
            MULTIPLY(1, 4, 7);                                                                                    \
            if (rows > TILE_ROWS) {                                                                               \
                _tile_loadd(5, inputs + TILE_ROWS * stride + step * TILE_BYTES, stride);                          \
                MULTIPLY(2, 5, 6);                                                                                \
                MULTIPLY(3, 5, 7);                                                                                \
            }                                                                                                     \
        }                                                                                                         \
        _tile_stored(0, sums, apart);                                                                             \
        _tile_stored(1, (char *)sums + 64, apart);                                                                \
        if (rows > TILE_ROWS) {                                                                                   \
            _tile_stored(2, (char *)sums + TILE_ROWS * apart, apart);                                             \
            _tile_stored(3, (char *)sums + TILE_ROWS * apart + 64, apart);                                        \
        }                                                                                                         \
    }
#endif

#endif
