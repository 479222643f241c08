/* Attention of few rows over paged keys and values, read where they lie, and over each row's own tail.
 *
 * A span is a run of rows with one block table. It reads the pages once, BLOCK positions at a time; per key head its
 * rows' queries are the rows of two products with keys and values, with the softmax kept up to date between them. Rows are
 * taken ROWS or twice ROWS at a time, missing ones are computed and dropped. Blocks begin at multiples of BLOCK whatever the span, and a
 * position that a row does not see adds nothing to it: no result depends on the other rows. */
#include <math.h>

#include "attention_tiles.h"
#include "vector.h"

#define ROWS 3 /* query rows per step, or twice as many where there are */

typedef struct {
    int64_t n_rows, n_spans, heads, kv_heads, D, block_size;
    const int64_t *rows;      /* [n_rows, 5]: row of q, kv and out; positions of pages it sees; entry that its kv goes to, of
                               * the tails if it sees any, else of the pages; its tail's first entry; entries it sees */
    const int64_t *spans;     /* [n_spans, 4]: first row, rows, place of its block table in tables, positions read */
    const int64_t *tables;
    void *pages;              /* [layers, page_entries, 2, G, D], bfloat16 or float32 */
    float *tails;             /* [layers, tail_entries, 2, G, D] or NULL */
    int64_t page_entries, tail_entries;
    int64_t tiles; /* whether this process may use them */
    char *scratch;
} Plan;

enum { ROW, VISIBLE, SLOT, TAIL, OWN, ROW_FIELDS };
enum { FIRST, COUNT, TABLE, LENGTH, SPAN_FIELDS };

/* keys at 32 addresses -> columns [D, 32] float32 */
INLINE void columns(const char *keys, const int64_t *places, int64_t D, float *out, int bf16) {
    const int64_t words = bf16 ? D / 2 : D; /* of 32 bits per key */
    for (int side = 0; side < 2; side++) {
        for (int64_t word = 0; word < words; word += LANES) {
            const int64_t n = words - word < LANES ? words - word : LANES; /* 8 where D is an odd multiple of 16 */
            vu x[LANES];
            for (int i = 0; i < LANES; i++) {
                const char *key = keys + places[side * LANES + i] + 4 * word;
                if (n == LANES) {
                    memcpy(&x[i], key, 64);
                } else {
                    x[i] = (vu){0};
                    memcpy(&x[i], key, 32);
                }
            }
            transpose16(x);
            for (int i = 0; i < n; i++) {
                float *to = out + (bf16 ? 2 : 1) * (word + i) * WIDE + side * LANES;
                if (bf16) {
                    store(to, (vf)(x[i] << 16), 0);
                    store(to + WIDE, (vf)(x[i] & 0xffff0000), 0);
                } else {
                    store(to, (vf)x[i], 0);
                }
            }
        }
    }
}

/* scores [rows, 32] = q [rows, D] x columns [D, 32]; rows: ROWS or twice that */
INLINE void multiply_keys(const float *q, const float *columns, int64_t D, float *scores, int rows) {
    vf total[2 * ROWS][2];
    for (int r = 0; r < rows; r++) total[r][0] = total[r][1] = (vf){0};
    for (int64_t d = 0; d < D; d++) {
        const vf left = load(columns + d * WIDE, 0), right = load(columns + d * WIDE + LANES, 0);
        for (int r = 0; r < rows; r++) {
            total[r][0] += q[r * D + d] * left;
            total[r][1] += q[r * D + d] * right;
        }
    }
    for (int r = 0; r < rows; r++) {
        store(scores + r * BLOCK, total[r][0], 0);
        store(scores + r * BLOCK + LANES, total[r][1], 0);
    }
}

/* out [rows, 16 or 32 of D] = out * shrink + weights [rows, length] x that many dimensions of the values */
INLINE void multiply_values(const float *weights, const float *shrink, const char *values, const int64_t *places,
                            int64_t length, float *out, int64_t D, int halves, int rows, int bf16) {
    vf total[2 * ROWS][2];
    for (int r = 0; r < rows; r++)
        for (int h = 0; h < halves; h++) total[r][h] = load(out + r * D + h * LANES, 0) * shrink[r];
    for (int64_t p = 0; p < length; p++) {
        const char *value = values + places[p];
        vf part[2];
        for (int h = 0; h < halves; h++) part[h] = load(at(value, h * LANES, bf16), bf16);
        for (int r = 0; r < rows; r++)
            for (int h = 0; h < halves; h++) total[r][h] += weights[r * BLOCK + p] * part[h];
    }
    for (int r = 0; r < rows; r++)
        for (int h = 0; h < halves; h++) store(out + r * D + h * LANES, total[r][h], 0);
}

/* All dimensions of the values. */
INLINE void multiply_all_values(const float *weights, const float *shrink, const char *values, const int64_t *places,
                                int64_t length, float *out, int64_t D, int rows, int bf16) {
    int64_t d = 0;
    for (; d + WIDE <= D; d += WIDE)
        multiply_values(weights, shrink, at(values, d, bf16), places, length, out + d, D, 2, rows, bf16);
    if (d < D) multiply_values(weights, shrink, at(values, d, bf16), places, length, out + d, D, 1, rows, bf16);
}

INLINE float dot(const float *a, const float *b, int64_t D) {
    vf total = {0};
    for (int64_t d = 0; d < D; d += LANES) total += load(a + d, 0) * load(b + d, 0);
    return sum(total);
}

/* Softmax, block by block: what a row has seen so far. */
typedef struct {
    float best, sum; /* largest score; sum of e^(score - best) */
} Seen;

/* Scores of a block times scale to weights e^(score - best), bf16 or in place; the first ``visible`` count. Returns what
 * earlier weights shrink by. */
INLINE float soften(const float *scores, float scale, int64_t visible, Seen *seen, void *weights, int bf16) {
    const vi count = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    vf x[BLOCK / LANES], best = splat(seen->best), total = {0};
    for (int32_t i = 0; i < BLOCK / LANES; i++) {
        x[i] = load(scores + i * LANES, 0) * scale;
        if (visible < BLOCK) x[i] = choose(count + i * LANES < (int32_t)visible, x[i], splat(-INFINITY));
        best = larger(best, x[i]);
    }
    const float top = maximum(best), shrink = exponential(splat(seen->best - top))[0];
    for (int32_t i = 0; i < BLOCK / LANES; i++) {
        vf weight = exponential(x[i] - top);
        if (visible < BLOCK) weight = choose(count + i * LANES < (int32_t)visible, weight, (vf){0});
        store((void *)at(weights, i * LANES, bf16), weight, bf16);
        total += bf16 ? load(at(weights, i * LANES, 1), 1) : weight; /* the sum is of what will be multiplied */
    }
    *seen = (Seen){top, seen->sum * shrink + sum(total)};
    return shrink;
}

/* One entry of a row's tail joins what the row has seen. */
INLINE void join(const float *q, const float *key, const float *value, float *out, int64_t D, Seen *seen) {
    const float score = dot(q, key, D), top = score > seen->best ? score : seen->best;
    const float shrink = exponential(splat(seen->best - top))[0], weight = exponential(splat(score - top))[0];
    for (int64_t d = 0; d < D; d += LANES) store(out + d, load(out + d, 0) * shrink + weight * load(value + d, 0), 0);
    *seen = (Seen){top, seen->sum * shrink + weight};
}

/* Where a span's working memory lies in the plan's scratch; counts are per key head. */
typedef struct {
    int64_t rows, padded; /* query rows; the same as a multiple of ROWS, or of a tile's rows */
    float *queries, *out; /* [G, padded, D] */
    float *columns;       /* [D, WIDE] */
    float *scores;        /* [padded, BLOCK] */
    uint16_t *narrow;     /* [G, padded, D]: the queries in bf16, if tiles are used */
    uint32_t *keys, *values; /* one block of one head as tiles, if they are used */
    float *shrink;        /* [padded] */
    Seen *seen;           /* [G, padded] */
} Scratch;

/* Whether products are computed by tiles: for every row of a forward alike. */
INLINE int tiled(const Plan *plan, int bf16) { return TILES && bf16 && plan->tiles && plan->D % WIDE == 0; }

INLINE int64_t lay_out(const Plan *plan, const int64_t *span, int tiles, Scratch *s) {
    const int64_t G = plan->kv_heads, D = plan->D, of = tiles ? TILE_ROWS : ROWS;
    s->rows = span[COUNT] * (plan->heads / G);
    s->padded = (s->rows + of - 1) / of * of;
    s->queries = (float *)plan->scratch;
    s->out = s->queries + G * s->padded * D;
    s->columns = s->out + G * s->padded * D;
    s->keys = (uint32_t *)s->columns; /* [BLOCK, D / 2], as many bytes */
    s->scores = s->columns + D * WIDE;
    s->values = (uint32_t *)(s->scores + s->padded * BLOCK);
    s->narrow = (uint16_t *)(s->values + (tiles ? D / 2 * BLOCK : 0));
    s->shrink = (float *)(s->narrow + (tiles ? G * s->padded * D : 0)); /* all parts up to here begin at cache lines */
    s->seen = (Seen *)(s->shrink + s->padded);
    return (char *)(s->seen + G * s->padded) - plan->scratch;
}

/* Rows of one key head over one block of pages. */
INLINE void attend_block(const Plan *plan, const int64_t *rows, const Scratch *s, int64_t g, const char *pages,
                         const int64_t *places, int64_t start, int64_t length, int bf16) {
    const int64_t D = plan->D, group = plan->heads / plan->kv_heads;
    const char *keys = at(pages, g * D, bf16), *values = at(keys, plan->kv_heads * D, bf16);
    const float *queries = s->queries + g * s->padded * D;
    float *out = s->out + g * s->padded * D;
    for (int64_t p = 0; p < length; p += WIDE) {
        columns(keys, places + p, D, s->columns, bf16);
        int64_t m = 0;
        for (; m + 2 * ROWS <= s->padded; m += 2 * ROWS)
            multiply_keys(queries + m * D, s->columns, D, s->scores + m * BLOCK + p, 2 * ROWS);
        if (m < s->padded) multiply_keys(queries + m * D, s->columns, D, s->scores + m * BLOCK + p, ROWS);
    }
    for (int64_t m = 0; m < s->rows; m++)
        s->shrink[m] = soften(s->scores + m * BLOCK, 1.0f, rows[m / group * ROW_FIELDS + VISIBLE] - start,
                              s->seen + g * s->padded + m, s->scores + m * BLOCK, 0);
    int64_t m = 0;
    for (; m + 2 * ROWS <= s->padded; m += 2 * ROWS)
        multiply_all_values(s->scores + m * BLOCK, s->shrink + m, values, places, length, out + m * D, D, 2 * ROWS, bf16);
    if (m < s->padded)
        multiply_all_values(s->scores + m * BLOCK, s->shrink + m, values, places, length, out + m * D, D, ROWS, bf16);
}

#if TILES
/* The same by tiles: bf16 queries, keys and weights, float32 sums. */
INLINE void attend_block_tiled(const Plan *plan, const int64_t *rows, const Scratch *s, int64_t g, const char *pages,
                               const int64_t *places, int64_t start, int64_t length) {
    const int64_t D = plan->D, group = plan->heads / plan->kv_heads;
    const char *keys = at(pages, g * D, 1), *values = at(keys, plan->kv_heads * D, 1);
    const int halves = length > WIDE ? 2 : 1;
    const float scale = 1.0f / sqrtf((float)D);
    float scores[TILED_ROWS][BLOCK] __attribute__((aligned(64))), sums[TILED_ROWS][WIDE] __attribute__((aligned(64)));
    uint16_t weights[TILED_ROWS][BLOCK] __attribute__((aligned(64)));
    memset(scores, 0, sizeof scores);
    memset(weights, 0, sizeof weights);
    key_tiles(keys, places, D, halves, s->keys);
    value_tiles(values, places, D, halves, s->values);
    for (int64_t m = 0; m < s->padded; m += TILED_ROWS) {
        const int n = s->padded - m < TILED_ROWS ? TILE_ROWS : TILED_ROWS;
        const int64_t first = g * s->padded + m;
        for (int h = 0; h < halves; h++)
            tile_product((char *)(s->keys + h * D / 2 * WIDE), (char *)(s->narrow + first * D), 2 * D, D / WIDE, n,
                         scores[0] + h * WIDE, sizeof scores[0], 0);
        for (int r = 0; r < n && m + r < s->rows; r++)
            s->shrink[m + r] = soften(scores[r], scale, rows[(m + r) / group * ROW_FIELDS + VISIBLE] - start,
                                      s->seen + first + r, weights[r], 1);
        for (int64_t d = 0; d < D; d += WIDE) {
            tile_product((char *)(s->values + d * halves * LANES), (char *)weights, sizeof weights[0], halves, n, sums,
                         sizeof sums[0], 0);
            for (int r = 0; r < n && m + r < s->rows; r++) {
                float *out = s->out + (first + r) * D + d;
                for (int i = 0; i < WIDE; i += LANES)
                    store(out + i, load(out + i, 0) * s->shrink[m + r] + load(sums[r] + i, 0), 0);
            }
        }
    }
}
#endif

/* Where the keys of n positions from start on lie in the pages of a layer; behind them the last one again. */
INLINE void locate(const int64_t *table, int64_t size, int64_t entry, int64_t start, int64_t n, int64_t *places) {
    int64_t page = start / size, within = start % size;
    for (int64_t p = 0; p < BLOCK; p++) {
        places[p] = p < n ? (table[page] * size + within) * entry : places[p - 1];
        if (++within == size) page++, within = 0;
    }
}

/* Ask for the keys and values of positions first to stop - 1 of a block: they come while the block before is computed. */
INLINE void fetch(const char *pages, const int64_t *places, int64_t entry, int64_t first, int64_t stop) {
    for (int64_t p = first; p < stop; p++)
        for (int64_t byte = 0; byte < entry; byte += 64) __builtin_prefetch(pages + places[p] + byte);
}

INLINE void attend_span(const Plan *plan, const int64_t *span, int64_t layer, const void *q, int64_t q_stride, void *to,
                        int bf16, int tiles) {
    const int64_t D = plan->D, G = plan->kv_heads, group = plan->heads / G, length = span[LENGTH];
    const int64_t *rows = plan->rows + span[FIRST] * ROW_FIELDS, *table = plan->tables + span[TABLE];
    const int64_t entry = 2 * G * D * width_of(bf16), size = plan->block_size;
    const char *pages = (const char *)plan->pages + layer * plan->page_entries * entry;
    const float scale = 1.0f / sqrtf((float)D);
    Scratch s;
    memset(plan->scratch, 0, lay_out(plan, span, tiles, &s));
    for (int64_t g = 0; g < G; g++) {
        for (int64_t m = 0; m < s.rows; m++) {
            const int64_t row = rows[m / group * ROW_FIELDS + ROW], i = g * s.padded + m;
            const void *from = at(q, row * q_stride + (g * group + m % group) * D, bf16);
            for (int64_t d = 0; d < D; d += LANES) store(s.queries + i * D + d, load(at(from, d, bf16), bf16) * scale, 0);
            if (tiles) memcpy(s.narrow + i * D, from, 2 * D);
            s.seen[i] = (Seen){-INFINITY, 0};
        }
    }
    int64_t places[2][BLOCK]; /* of this block and of the next */
    locate(table, size, entry, 0, length < BLOCK ? length : BLOCK, places[0]);
    for (int64_t start = 0, odd = 0; start < length; start += BLOCK, odd = !odd) {
        const int64_t left = length - start, n = left < BLOCK ? left : BLOCK, then = left - n < BLOCK ? left - n : BLOCK;
        if (then) locate(table, size, entry, start + BLOCK, then, places[!odd]);
        for (int64_t g = 0; g < G; g++) {
            fetch(pages, places[!odd], entry, then * g / G, then * (g + 1) / G);
#if TILES
            if (tiles) {
                attend_block_tiled(plan, rows, &s, g, pages, places[odd], start, n);
                continue;
            }
#endif
            attend_block(plan, rows, &s, g, pages, places[odd], start, n, bf16);
        }
    }
    for (int64_t i = 0; i < G * s.padded; i++) {
        const int64_t g = i / s.padded, m = i % s.padded, *row = rows + m / group * ROW_FIELDS;
        if (m >= s.rows) continue;
        float *out = s.out + i * D;
        for (int64_t e = 0; e < row[OWN]; e++) {
            const float *key = plan->tails + ((layer * plan->tail_entries + row[TAIL] + e) * 2 * G + g) * D;
            join(s.queries + i * D, key, key + G * D, out, D, s.seen + i);
        }
        const float share = 1.0f / s.seen[i].sum;
        void *result = (void *)at(to, (row[ROW] * plan->heads + g * group + m % group) * D, bf16);
        for (int64_t d = 0; d < D; d += LANES) store((void *)at(result, d, bf16), load(out + d, 0) * share, bf16);
    }
}

/* Keys and values [T, 2, G, D] into the entries that the plan names. */
INLINE void write(const Plan *plan, int64_t layer, const void *kv, int64_t stride, int bf16) {
    const int64_t size = 2 * plan->kv_heads * plan->D;
    for (int64_t i = 0; i < plan->n_rows; i++) {
        const int64_t *row = plan->rows + i * ROW_FIELDS;
        const void *from = at(kv, row[ROW] * stride, bf16);
        if (!row[OWN]) {
            memcpy((char *)plan->pages + (layer * plan->page_entries + row[SLOT]) * size * width_of(bf16), from,
                   size * width_of(bf16));
        } else {
            float *to = plan->tails + (layer * plan->tail_entries + row[SLOT]) * size;
            for (int64_t j = 0; j < size; j += LANES) store(to + j, load(at(from, j, bf16), bf16), 0);
        }
    }
}

/* Bytes of scratch that the plan needs. */
int64_t ssd_scratch(const Plan *plan, int64_t bf16) {
    int64_t most = 0;
    for (int64_t i = 0; i < plan->n_spans; i++) {
        Scratch s;
        int64_t bytes = lay_out(plan, plan->spans + i * SPAN_FIELDS, tiled(plan, bf16), &s);
        if (bytes > most) most = bytes;
    }
    return most;
}

/* Write keys and values of layer ``layer``, then attend: out [T, H * D] of q [T, H, D], for the rows of the plan. */
void ssd_attend(const Plan *plan, int64_t layer, const void *q, int64_t q_stride, const void *kv, int64_t kv_stride,
                void *out, int64_t bf16) {
    if (bf16)
        write(plan, layer, kv, kv_stride, 1);
    else
        write(plan, layer, kv, kv_stride, 0);
    const int tiles = tiled(plan, bf16);
#if TILES
    if (tiles) shape_tiles(TILED_ROWS);
#endif
    for (int64_t s = 0; s < plan->n_spans; s++) {
        const int64_t *span = plan->spans + s * SPAN_FIELDS;
        if (tiles)
            attend_span(plan, span, layer, q, q_stride, out, 1, 1);
        else if (bf16)
            attend_span(plan, span, layer, q, q_stride, out, 1, 0);
        else
            attend_span(plan, span, layer, q, q_stride, out, 0, 0);
    }
#if TILES
    if (tiles) _tile_release();
#endif
}
