/* Linear layers with int8 weights: rows are rounded to int8 as they come, sums are integers, so nothing depends on order.
 * Products of floats are rounded before they are added to anything: every processor gives the same bits. */
#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#else
#pragma GCC optimize("fp-contract=off")
#endif

#include "threads.h"
#include "tiles.h"

#define ZERO 128            /* added to rounded inputs: the instruction multiplies unsigned with signed numbers */
#define MOST_ROWS 8         /* rows per step */
#define FEWEST_TILED 2      /* one row takes as long as reading the weights, by tiles or not */

/* sum[i] += the product of 4 inputs with the 4 weights of output i */
INLINE vi multiply4(vi sum, const uint8_t *inputs, const int8_t *weights) {
    int32_t four;
    memcpy(&four, inputs, sizeof four);
#ifdef __AVX512VNNI__
    return (vi)_mm512_dpbusd_epi32((__m512i)sum, _mm512_set1_epi32(four), _mm512_loadu_si512(weights));
#else
    for (int i = 0; i < LANES; i++)
        for (int j = 0; j < 4; j++) sum[i] += (int32_t)inputs[j] * weights[4 * i + j];
    return sum;
#endif
}

/* x [width] to bytes, round(x / scale) + ZERO, padded with ZERO; returns scale = max |x| / 127, or NaN if x is not finite. */
INLINE float quantise(const void *x, int64_t width, int64_t padded, uint8_t *to, int bf16) {
    vi largest = {0};
    for (int64_t i = 0; i < width; i += LANES) {
        vi bits = (vi)load_first(at(x, i, bf16), width - i, bf16) & 0x7fffffff, more = bits > largest;
        largest = (more & bits) | (~more & largest);
    }
    int32_t top = 0;
    for (int i = 0; i < LANES; i++) top = largest[i] > top ? largest[i] : top;
    float most;
    memcpy(&most, &top, sizeof most);
    const float inverse = most > 0 ? 127.0f / most : 0.0f;
    memset(to + width, ZERO, padded - width);
    for (int64_t i = 0; i < width; i += LANES) {
        const int64_t n = width - i < LANES ? width - i : LANES;
        vf shifted = load_first(at(x, i, bf16), n, bf16) * inverse + 12582912.0f; /* 1.5 * 2^23: rounds to integers */
        vi rounded = (vi)shifted - 0x4b400000 + ZERO;
        uint8_t bytes[LANES];
        for (int j = 0; j < LANES; j++) bytes[j] = (uint8_t)rounded[j];
        memcpy(to + i, bytes, n);
    }
    return most <= 3.4e38f ? most / 127.0f : (float)__builtin_nanf("");
}

typedef struct {
    const int8_t *weights;   /* [outputs / 32, width / 4, 32, 4], rounded up to 32 and 64, missing weights 0 */
    const float *scales;     /* [outputs, rounded up] */
    const int32_t *excess;   /* [outputs, rounded up]: ZERO times the sum of an output's weights */
    const float *bias;       /* [outputs, rounded up] */
    int64_t inputs, outputs;
} Layer;

/* Bytes of a row of inputs. */
INLINE int64_t padded_inputs(const Layer *layer) { return (layer->inputs + 63) / 64 * 64; }

/* One output row's half of a block: out [16 or what is left] = (sum - excess) * weight scales * row scale + bias. */
INLINE void finish(const Layer *layer, int64_t first, vi sum, float scale, void *out, int bf16) {
    vi excess;
    memcpy(&excess, layer->excess + first, sizeof excess);
    vf y = __builtin_convertvector(sum - excess, vf) * (load(layer->scales + first, 0) * scale);
    store_first((void *)at(out, first, bf16), y + load(layer->bias + first, 0), layer->outputs - first, bf16);
}

INLINE void rows_of(const Layer *layer, int64_t block, const uint8_t *inputs, const float *scales, int64_t padded,
                    void *out, int rows, int bf16) {
    const int8_t *weights = layer->weights + block * padded * OUTPUTS;
    vi sum[MOST_ROWS][2];
    for (int r = 0; r < rows; r++) sum[r][0] = sum[r][1] = (vi){0};
    for (int64_t i = 0; i < padded; i += 4) {
        for (int r = 0; r < rows; r++) {
            sum[r][0] = multiply4(sum[r][0], inputs + r * padded + i, weights + i * OUTPUTS);
            sum[r][1] = multiply4(sum[r][1], inputs + r * padded + i, weights + i * OUTPUTS + 4 * LANES);
        }
    }
    for (int half = 0; half < 2; half++) {
        const int64_t first = block * OUTPUTS + half * LANES;
        if (first >= layer->outputs) return;
        for (int r = 0; r < rows; r++)
            finish(layer, first, sum[r][half], scales[r], (void *)at(out, r * layer->outputs, bf16), bf16);
    }
}

#if TILES
TILE_PRODUCT(product, _tile_dpbusd)

INLINE void by_tiles(const Layer *layer, const uint8_t *inputs, const float *scales, int64_t padded, void *out,
                     int64_t rows, int64_t begin, int64_t end, int bf16) {
    int32_t sums[TILED_ROWS][OUTPUTS] __attribute__((aligned(64)));
    const int n = shape_evenly(rows);
    for (int64_t block = begin; block < end; block++) {
        const char *weights = (const char *)layer->weights + block * padded * OUTPUTS;
        for (int64_t next = 0; next < rows; next += n) {
            const int64_t done = next + n < rows ? next : rows - n;
            product(weights, (const char *)inputs + done * padded, padded, padded / TILE_BYTES, n, sums, sizeof sums[0],
                    next == 0);
            for (int half = 0; half < 2; half++) {
                const int64_t first = block * OUTPUTS + half * LANES;
                if (first >= layer->outputs) break;
                for (int r = 0; r < n; r++) {
                    vi sum;
                    memcpy(&sum, sums[r] + half * LANES, sizeof sum);
                    finish(layer, first, sum, scales[done + r], (void *)at(out, (done + r) * layer->outputs, bf16), bf16);
                }
            }
        }
    }
    _tile_release();
}
#endif

INLINE void by_rows(const Layer *layer, const uint8_t *inputs, const float *scales, int64_t padded, void *out,
                    int64_t rows, int64_t begin, int64_t end, int bf16) {
    for (int64_t block = begin; block < end; block++) {
        int64_t r = 0;
#define STEP(n) \
    for (; r + n <= rows; r += n) \
        rows_of(layer, block, inputs + r * padded, scales + r, padded, (void *)at(out, r * layer->outputs, bf16), n, bf16)
        STEP(8);
        STEP(4);
        STEP(2);
        STEP(1);
#undef STEP
    }
}

/* Rows x to bytes, and their scales: into scratch, (4 + inputs rounded up to 64) bytes per row. */
void ssd_int8_inputs(const Layer *layer, const void *x, int64_t rows, char *scratch, int64_t bf16) {
    const int64_t padded = padded_inputs(layer);
    float *scales = (float *)scratch;
    uint8_t *inputs = (uint8_t *)(scales + rows);
    for (int64_t r = 0; r < rows; r++)
        if (bf16)
            scales[r] = quantise(at(x, r * layer->inputs, 1), layer->inputs, padded, inputs + r * padded, 1);
        else
            scales[r] = quantise(at(x, r * layer->inputs, 0), layer->inputs, padded, inputs + r * padded, 0);
}

INLINE void blocks(const Layer *layer, const char *scratch, void *out, int64_t rows, int64_t begin, int64_t end, int tiles,
                   int bf16) {
    const int64_t padded = padded_inputs(layer);
    const float *scales = (const float *)scratch;
    const uint8_t *inputs = (const uint8_t *)(scales + rows);
#if TILES
    if (tiles && rows >= FEWEST_TILED) {
        by_tiles(layer, inputs, scales, padded, out, rows, begin, end, bf16);
        return;
    }
#endif
    by_rows(layer, inputs, scales, padded, out, rows, begin, end, bf16);
}

/* The outputs of blocks begin to end - 1, 32 each, of rows in scratch. tiles: whether this process may use them. */
void ssd_int8_blocks(const Layer *layer, const char *scratch, void *out, int64_t rows, int64_t begin, int64_t end,
                     int64_t tiles, int64_t bf16) {
    if (bf16)
        blocks(layer, scratch, out, rows, begin, end, tiles, 1);
    else
        blocks(layer, scratch, out, rows, begin, end, tiles, 0);
}

/* out [T, outputs] = x [T, inputs] W^T + bias. */
void ssd_int8_linear(const Layer *layer, const void *x, void *out, int64_t rows, char *scratch, int64_t threads,
                     int64_t tiles, int64_t bf16) {
    ssd_int8_inputs(layer, x, rows, scratch, bf16);
    SHARE_BLOCKS(blocks_of(layer->outputs), threads,
                 ssd_int8_blocks(layer, scratch, out, rows, first, stop, tiles, bf16))
}
