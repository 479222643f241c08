/* Attention of few rows over paged keys and values, read where they lie, and over each row's own tail.
 *
 * A span is a run of rows with one block table. It reads the pages once, BLOCK positions at a time; per key head its
 * rows' queries are the rows of two products with keys and values, with the softmax kept up to date between them. Rows are
 * taken ROWS or twice ROWS at a time, missing ones are computed and dropped. Blocks begin at multiples of BLOCK whatever the span, and a
 * position that a row does not see adds nothing to it: no result depends on the other rows. */
#include <math.h>

#include "vector.h"

#define ROWS 3             /* query rows per step, or twice as many where there are */
#define WIDE (2 * LANES) /* positions, or dimensions, per step */
#define BLOCK 64         /* positions per step of the softmax */

typedef struct {
    int64_t n_rows, n_spans, heads, kv_heads, D, block_size;
    const int64_t *rows;      /* [n_rows, 5]: row of q, kv and out; positions of pages it sees; entry that its kv goes to, of
                               * the tails if it sees any, else of the pages; its tail's first entry; entries it sees */
    const int64_t *spans;     /* [n_spans, 4]: first row, rows, place of its block table in tables, positions read */
    const int64_t *tables;
    void *pages;              /* [layers, page_entries, 2, G, D], bfloat16 or float32 */
    float *tails;             /* [layers, tail_entries, 2, G, D] or NULL */
    int64_t page_entries, tail_entries;
    char *scratch;
} Plan;

enum { ROW, VISIBLE, SLOT, TAIL, OWN, ROW_FIELDS };
enum { FIRST, COUNT, TABLE, LENGTH, SPAN_FIELDS };

/* keys at 32 addresses -> columns [D, 32] float32 */
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

/* Scores of a block to weights e^(score - best); the first ``visible`` count. Returns what earlier weights shrink by. */
INLINE float soften(float *scores, int64_t visible, Seen *seen) {
    const vi count = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    vf best = splat(seen->best), total = {0};
    for (int32_t p = 0; p < BLOCK; p += LANES)
        best = larger(best, choose(count + p < (int32_t)visible, load(scores + p, 0), best));
    const float top = maximum(best), shrink = exponential(splat(seen->best - top))[0];
    for (int32_t p = 0; p < BLOCK; p += LANES) {
        vf x = choose(count + p < (int32_t)visible, exponential(load(scores + p, 0) - top), (vf){0});
        store(scores + p, x, 0);
        total += x;
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
    int64_t rows, padded; /* query rows; the same as a multiple of ROWS */
    float *queries, *out; /* [G, padded, D] */
    float *columns;       /* [D, WIDE] */
    float *scores;        /* [padded, BLOCK] */
    float *shrink;        /* [padded] */
    Seen *seen;           /* [G, padded] */
} Scratch;

INLINE int64_t lay_out(const Plan *plan, const int64_t *span, Scratch *s) {
    const int64_t G = plan->kv_heads, D = plan->D;
    s->rows = span[COUNT] * (plan->heads / G);
    s->padded = (s->rows + ROWS - 1) / ROWS * ROWS;
    s->queries = (float *)plan->scratch;
    s->out = s->queries + G * s->padded * D;
    s->columns = s->out + G * s->padded * D;
    s->scores = s->columns + D * WIDE;
    s->shrink = s->scores + s->padded * BLOCK; /* up to here, all parts but the last begin at cache lines */
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
        s->shrink[m] = soften(s->scores + m * BLOCK, rows[m / group * ROW_FIELDS + VISIBLE] - start,
                              s->seen + g * s->padded + m);
    int64_t m = 0;
    for (; m + 2 * ROWS <= s->padded; m += 2 * ROWS)
        multiply_all_values(s->scores + m * BLOCK, s->shrink + m, values, places, length, out + m * D, D, 2 * ROWS, bf16);
    if (m < s->padded)
        multiply_all_values(s->scores + m * BLOCK, s->shrink + m, values, places, length, out + m * D, D, ROWS, bf16);
}

INLINE void attend_span(const Plan *plan, const int64_t *span, int64_t layer, const void *q, int64_t q_stride, void *to,
                        int bf16) {
    const int64_t D = plan->D, G = plan->kv_heads, group = plan->heads / G, length = span[LENGTH];
    const int64_t *rows = plan->rows + span[FIRST] * ROW_FIELDS, *table = plan->tables + span[TABLE];
    const int64_t entry = 2 * G * D * width_of(bf16), size = plan->block_size;
    const char *pages = (const char *)plan->pages + layer * plan->page_entries * entry;
    const float scale = 1.0f / sqrtf((float)D);
    Scratch s;
    memset(plan->scratch, 0, lay_out(plan, span, &s));
    for (int64_t g = 0; g < G; g++) {
        for (int64_t m = 0; m < s.rows; m++) {
            const int64_t row = rows[m / group * ROW_FIELDS + ROW], i = g * s.padded + m;
            const void *from = at(q, row * q_stride + (g * group + m % group) * D, bf16);
            for (int64_t d = 0; d < D; d += LANES) store(s.queries + i * D + d, load(at(from, d, bf16), bf16) * scale, 0);
            s.seen[i] = (Seen){-INFINITY, 0};
        }
    }
    for (int64_t start = 0; start < length; start += BLOCK) {
        const int64_t n = length - start < BLOCK ? length - start : BLOCK;
        int64_t places[BLOCK];
        for (int64_t p = 0; p < BLOCK; p++) {
            const int64_t position = start + (p < n ? p : n - 1);
            places[p] = (table[position / size] * size + position % size) * entry;
        }
        for (int64_t g = 0; g < G; g++) attend_block(plan, rows, &s, g, pages, places, start, n, bf16);
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
int64_t ssd_scratch(const Plan *plan) {
    int64_t most = 0;
    for (int64_t i = 0; i < plan->n_spans; i++) {
        Scratch s;
        int64_t bytes = lay_out(plan, plan->spans + i * SPAN_FIELDS, &s);
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
    for (int64_t s = 0; s < plan->n_spans; s++) {
        const int64_t *span = plan->spans + s * SPAN_FIELDS;
        if (bf16)
            attend_span(plan, span, layer, q, q_stride, out, 1);
        else
            attend_span(plan, span, layer, q, q_stride, out, 0);
    }
}
