/* Linear layers in bfloat16 by AMX tiles. */
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <unistd.h>

#include "threads.h"
#include "tiles.h"

typedef struct {
    const uint16_t *weights; /* bf16 [outputs / 32, width / 2, 32, 2], width the inputs rounded up to 32 */
    const float *bias;       /* [outputs, rounded up to 32] */
    int64_t inputs, outputs;
} Layer;

/* 1 if this process may use tiles: they are there, and Linux grants their state to all its threads from now on. */
int64_t ssd_tiles(void) {
#if TILES
    return syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* XFEATURE_XTILEDATA */) == 0;
#else
    return 0;
#endif
}

#if TILES
TILE_PRODUCT(product, _tile_dpbf16ps)

/* out [rows, width of them], bf16 or float32, rows stride numbers apart, = sums + bias */
INLINE void finish(float sums[][OUTPUTS], const float *bias, void *out, int64_t stride, int rows, int64_t width, int bf16) {
    for (int64_t i = 0; i < width; i += LANES) {
        const vf added = load(bias + i, 0);
        for (int r = 0; r < rows; r++) {
            const vf y = load(sums[r] + i, 0) + added;
            void *to = (void *)at(out, r * stride + i, bf16);
            store_first(to, y, width - i, bf16);
        }
    }
}

INLINE void blocks(const Layer *layer, const void *x, void *out, int64_t rows, int64_t begin, int64_t end, int bf16) {
    const int64_t width = (layer->inputs + 31) / 32 * 32, steps = width / 32;
    const int n = shape_evenly(rows);
    float sums[TILED_ROWS][OUTPUTS] __attribute__((aligned(64)));
    for (int64_t first = begin * OUTPUTS; first < end * OUTPUTS; first += OUTPUTS) {
        const char *weights = (const char *)layer->weights + first * width * 2;
        for (int64_t next = 0; next < rows; next += n) {
            const int64_t done = next + n < rows ? next : rows - n;
            product(weights, (const char *)x + done * width * 2, width * 2, steps, n, sums, sizeof sums[0], next == 0);
            void *to = (void *)at(out, done * layer->outputs + first, bf16);
            if (first + OUTPUTS <= layer->outputs)
                finish(sums, layer->bias + first, to, layer->outputs, n, OUTPUTS, bf16);
            else
                finish(sums, layer->bias + first, to, layer->outputs, n, layer->outputs - first, bf16);
        }
    }
    _tile_release();
}
#else
INLINE void blocks(const Layer *layer, const void *x, void *out, int64_t rows, int64_t begin, int64_t end, int bf16) {
    __builtin_trap(); /* ssd_tiles has said that there are none */
}
#endif

/* The outputs of blocks begin to end - 1, 32 each, in bf16. */
void ssd_bf16_blocks(const Layer *layer, const void *x, void *out, int64_t rows, int64_t begin, int64_t end) {
    blocks(layer, x, out, rows, begin, end, 1);
}

/* out [T, outputs], bf16 or float32, = x [T, inputs] W^T + bias, x and W bf16, sums float32; rows of x are padded with 0 to
 * a multiple of 32 inputs. */
void ssd_bf16_linear(const Layer *layer, const void *x, void *out, int64_t rows, int64_t threads, int64_t bf16) {
    if (bf16) {
        SHARE_BLOCKS(blocks_of(layer->outputs), threads, blocks(layer, x, out, rows, first, stop, 1))
    } else {
        SHARE_BLOCKS(blocks_of(layer->outputs), threads, blocks(layer, x, out, rows, first, stop, 0))
    }
}
