/* What happens to rows between two matrix products: residual sum and norm, rotation of heads, gated activation. */
#include <math.h>

#include "vector.h"

/* hidden [T, E] += delta [T, E] (or nothing, if NULL); out [T, E] = hidden / sqrt(sum of squares + floor) * weight. */
INLINE void add_norm(float *hidden, const void *delta, int delta_bf16, const float *weight, float floor, void *out,
                     int64_t rows, int64_t width, int bf16) {
    for (int64_t row = 0; row < rows; row++) {
        float *x = hidden + row * width;
        vf squares = {0};
        for (int64_t i = 0; i < width; i += LANES) {
            vf value = load_first(x + i, width - i, 0);
            if (delta) {
                value += load_first(at(delta, row * width + i, delta_bf16), width - i, delta_bf16);
                store_first(x + i, value, width - i, 0);
            }
            squares += value * value;
        }
        float scale = 1.0f / sqrtf(sum(squares) + floor);
        for (int64_t i = 0; i < width; i += LANES) {
            vf y = load_first(x + i, width - i, 0) * scale * load_first(weight + i, width - i, 0);
            store_first((void *)at(out, row * width + i, bf16), y, width - i, bf16);
        }
    }
}

void ssd_add_norm(float *hidden, const void *delta, int64_t delta_bf16, const float *weight, float floor, void *out,
                  int64_t rows, int64_t width, int64_t bf16) {
    if (bf16 && delta_bf16)
        add_norm(hidden, delta, 1, weight, floor, out, rows, width, 1);
    else if (bf16)
        add_norm(hidden, delta, 0, weight, floor, out, rows, width, 1);
    else if (delta_bf16)
        add_norm(hidden, delta, 1, weight, floor, out, rows, width, 0);
    else
        add_norm(hidden, delta, 0, weight, floor, out, rows, width, 0);
}

/* The first ``heads`` heads of each row (rows are ``stride`` numbers apart), in place: normalised with weight
 * [heads, D] unless that is NULL, then each pair of neighbours rotated by (cos, sin) pairs rotation [T, D]. */
INLINE void rotate(void *data, int64_t stride, const float *rotation, const float *weight, float floor, int64_t rows,
                   int64_t heads, int64_t D, int bf16) {
    const vf sign = {-1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1};
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t head = 0; head < heads; head++) {
            char *x = (char *)at(data, row * stride + head * D, bf16);
            float scale = 1.0f;
            if (weight) {
                vf squares = {0};
                for (int64_t i = 0; i < D; i += LANES) {
                    vf value = load_first(at(x, i, bf16), D - i, bf16);
                    squares += value * value;
                }
                scale = 1.0f / sqrtf(sum(squares) + floor);
            }
            for (int64_t i = 0; i < D; i += LANES) {
                vf value = load_first(at(x, i, bf16), D - i, bf16);
                if (weight) value = value * scale * load_first(weight + head * D + i, D - i, 0);
                vf turn = load_first(rotation + row * D + i, D - i, 0);
                vf cosine = SHUFFLE(turn, turn, 0, 0, 2, 2, 4, 4, 6, 6, 8, 8, 10, 10, 12, 12, 14, 14);
                vf sine = SHUFFLE(turn, turn, 1, 1, 3, 3, 5, 5, 7, 7, 9, 9, 11, 11, 13, 13, 15, 15);
                vf other = SHUFFLE(value, value, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
                store_first((void *)at(x, i, bf16), value * cosine + other * (sine * sign), D - i, bf16);
            }
        }
    }
}

void ssd_rotate(void *data, int64_t stride, const float *rotation, const float *weight, float floor, int64_t rows,
                int64_t heads, int64_t D, int64_t bf16) {
    if (bf16)
        rotate(data, stride, rotation, weight, floor, rows, heads, D, 1);
    else
        rotate(data, stride, rotation, weight, floor, rows, heads, D, 0);
}

/* out [T, I] = silu(gate) * up of joined [T, 2 I] = [gate, up]. */
INLINE void gate(const void *joined, void *out, int64_t rows, int64_t width, int bf16) {
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t i = 0; i < width; i += LANES) {
            vf g = load_first(at(joined, 2 * row * width + i, bf16), width - i, bf16);
            vf up = load_first(at(joined, (2 * row + 1) * width + i, bf16), width - i, bf16);
            store_first((void *)at(out, row * width + i, bf16), g / (1.0f + exponential(-g)) * up, width - i, bf16);
        }
    }
}

void ssd_gate(const void *joined, void *out, int64_t rows, int64_t width, int64_t bf16) {
    if (bf16)
        gate(joined, out, rows, width, 1);
    else
        gate(joined, out, rows, width, 0);
}
