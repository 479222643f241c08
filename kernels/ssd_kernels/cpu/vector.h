/* Vectors of 16 floats, in the compiler's own vector extension: the order of every sum is written down, so a row's
 * result never depends on how many rows run beside it. bf16 flags are compile-time constants where these are used. */
#ifndef SSD_VECTOR_H
#define SSD_VECTOR_H

#include <stdint.h>
#include <string.h>
#ifdef __AVX512F__
#include <immintrin.h>
#endif

#define LANES 16
#define INLINE static inline __attribute__((always_inline))

typedef float vf __attribute__((vector_size(64)));
typedef int32_t vi __attribute__((vector_size(64)));
typedef uint32_t vu __attribute__((vector_size(64)));
typedef uint16_t vh __attribute__((vector_size(32)));

#ifdef __clang__
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (vi){__VA_ARGS__})
#endif

INLINE vf splat(float x) { return x - (vf){0}; }

INLINE vf choose(vi mask, vf yes, vf no) { return (vf)((mask & (vi)yes) | (~mask & (vi)no)); }

/* a > b ? a : b, and a < b ? a : b: b where one is NaN */
#ifdef __AVX512F__
INLINE vf larger(vf a, vf b) { return (vf)_mm512_max_ps((__m512)a, (__m512)b); }
INLINE vf smaller(vf a, vf b) { return (vf)_mm512_min_ps((__m512)a, (__m512)b); }
#else
INLINE vf larger(vf a, vf b) { return choose(a > b, a, b); }
INLINE vf smaller(vf a, vf b) { return choose(a < b, a, b); }
#endif

INLINE int64_t width_of(int bf16) { return bf16 ? 2 : 4; }

INLINE const void *at(const void *base, int64_t index, int bf16) { return (const char *)base + index * width_of(bf16); }

#ifdef __AVX512F__ /* one instruction each, where GCC 12 makes four of __builtin_convertvector */
INLINE vu widen(vh x) { return (vu)_mm512_cvtepu16_epi32((__m256i)x); }
INLINE vh narrow(vu x) { return (vh)_mm512_cvtepi32_epi16((__m512i)x); }
#else
INLINE vu widen(vh x) { return __builtin_convertvector(x, vu); }
INLINE vh narrow(vu x) { return __builtin_convertvector(x, vh); }
#endif

INLINE vf load(const void *p, int bf16) {
    vf x;
    if (bf16) {
        vh half;
        memcpy(&half, p, sizeof half);
        return (vf)(widen(half) << 16);
    }
    memcpy(&x, p, sizeof x);
    return x;
}

INLINE void store(void *p, vf x, int bf16) {
    if (bf16) { /* to the nearest, ties to even; a NaN stays one; below 2^-126 zero where the processor says so */
#ifdef __AVX512BF16__
        const vh half = (vh)_mm512_cvtneps_pbh((__m512)x);
#else
        vu bits = (vu)x, rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16, quiet = (bits >> 16) | 0x40;
        vu nan = (vu)(x != x);
        vh half = narrow((nan & quiet) | (~nan & rounded));
#endif
        memcpy(p, &half, sizeof half);
    } else {
        memcpy(p, &x, sizeof x);
    }
}

/* The first n of LANES numbers, zeros behind them. */
INLINE vf load_first(const void *p, int64_t n, int bf16) {
    if (n >= LANES) return load(p, bf16);
    char padded[64] = {0};
    memcpy(padded, p, n * width_of(bf16));
    return load(padded, bf16);
}

INLINE void store_first(void *p, vf x, int64_t n, int bf16) {
    if (n >= LANES) {
        store(p, x, bf16);
    } else {
        char padded[64];
        store(padded, x, bf16);
        memcpy(p, padded, n * width_of(bf16));
    }
}

/* Lanes 8 to 15 on 0 to 7, then 4 to 7 on 0 to 3, and so on: one number. */
#define FOLD(OPERATION)                                                                                     \
    x = OPERATION(x, SHUFFLE(x, x, 8, 9, 10, 11, 12, 13, 14, 15, 8, 9, 10, 11, 12, 13, 14, 15));             \
    x = OPERATION(x, SHUFFLE(x, x, 4, 5, 6, 7, 4, 5, 6, 7, 4, 5, 6, 7, 4, 5, 6, 7));                         \
    x = OPERATION(x, SHUFFLE(x, x, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3));                         \
    return OPERATION(x, SHUFFLE(x, x, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1))[0];

INLINE vf plus(vf a, vf b) { return a + b; }

INLINE float sum(vf x) { FOLD(plus) }

INLINE float maximum(vf x) { FOLD(larger) }

/* e^x to about 1e-7 relative for x in [-87, 88]; beyond, the value at the border. */
INLINE vf exponential(vf x) {
    const vf low = splat(-87.0f), high = splat(88.0f), shift = splat(12582912.0f); /* 1.5 * 2^23: rounds to integers */
    x = smaller(high, larger(low, x));
    vf shifted = x * 1.44269504f + shift, n = shifted - shift;
    vf r = x - n * 0.693359375f + n * 2.12194440e-4f; /* ln 2 in two parts, the first with few bits */
    vf y = splat(1.0f / 5040);
    y = y * r + 1.0f / 720;
    y = y * r + 1.0f / 120;
    y = y * r + 1.0f / 24;
    y = y * r + 1.0f / 6;
    y = y * r + 0.5f;
    y = y * r + 1.0f;
    y = y * r + 1.0f;
    return y * (vf)(((vi)shifted - 0x4b400000 + 127) << 23);
}

#endif
