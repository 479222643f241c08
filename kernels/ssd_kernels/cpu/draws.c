/* Drawing tokens: noise by counter, the race of noise over a law, the largest logit. */
#include "vector.h"

typedef int64_t vl __attribute__((vector_size(64)));
typedef uint64_t vu64 __attribute__((vector_size(64)));
typedef float vf8 __attribute__((vector_size(32)));

#define BLOCKS 8 /* Philox blocks per step, one per 64-bit lane, 32-bit words in them */
#define WORD 0xffffffffLL

INLINE vl product(vl word, int64_t multiplier) {
#ifdef __AVX512F__
    return (vl)_mm512_mul_epu32((__m512i)word, _mm512_set1_epi64(multiplier));
#else
    return (word & WORD) * multiplier;
#endif
}

/* (r + 0.5) 2^-32 of words, rounded once: 2 r + 1 is exact. */
INLINE vf8 uniform(vl words) { return __builtin_convertvector((words & WORD) * 2 + 1, vf8) * 0x1p-33f; }

INLINE vf join(vf8 low, vf8 high) {
    vf x;
    memcpy(&x, &low, sizeof low);
    memcpy((char *)&x + sizeof low, &high, sizeof high);
    return x;
}

/* log y of y in [2^-24, 1], to about 2e-7 relative: 2 atanh((m - 1) / (m + 1)) and the exponent of y = m 2^e. */
INLINE vf logarithm(vf y) {
    const vi bits = (vi)y - 0x3f3504f3; /* sqrt(1/2): m lies between it and sqrt(2) */
    const vf exponent = __builtin_convertvector(bits >> 23, vf), f = (vf)((bits & 0x7fffff) + 0x3f3504f3) - 1.0f;
    const vf s = f / (f + 2.0f), z = s * s;
    vf series = splat(1.0f / 9);
    series = series * z + 1.0f / 7;
    series = series * z + 1.0f / 5;
    series = series * z + 1.0f / 3;
    const vf near = 2.0f * s, small = near * z * series + exponent * 1.42860677e-6f; /* ln 2 in two parts */
    return exponent * 0.693145752f + (near + small);
}

/* E = -log1p(-u) with u at most 1 - 2^-24; the quotient repairs what 1 - u lost. */
INLINE vf exponential_of(vf u) {
    const vf most = splat(0x1.fffffep-1f);
    u = choose(u > most, most, u);
    const vf y = 1.0f - u, lost = 1.0f - y;
    return choose(lost == 0.0f, u, -logarithm(y) * (u / lost));
}

/* out [n]: E of token ids 0 to n - 1 under counter (id >> 2, position, domain, round) and the key's two words. */
void ssd_exponential(int64_t key_low, int64_t key_high, int64_t position, int64_t domain, int64_t round, float *out,
                     int64_t n) {
    const vl index = {0, 1, 2, 3, 4, 5, 6, 7};
    for (int64_t first = 0; 4 * first < n; first += BLOCKS) {
        vl c0 = index + first, c1 = (vl){0} + position, c2 = (vl){0} + domain, c3 = (vl){0} + round;
        uint32_t low = key_low, high = key_high;
        for (int r = 0; r < 10; r++) { /* words carry garbage above bit 31, which a product ignores */
            const vl p0 = product(c0, 0xD2511F53), p1 = product(c2, 0xCD9E8D57);
            c0 = (vl)((vu64)p1 >> 32) ^ c1 ^ low;
            c2 = (vl)((vu64)p0 >> 32) ^ c3 ^ high;
            c1 = p1;
            c3 = p0;
            low += 0x9E3779B9;
            high += 0xBB67AE85;
        }
        const vf even = join(uniform(c0), uniform(c1)), odd = join(uniform(c2), uniform(c3));
        const vf half[2] = {
            exponential_of(SHUFFLE(even, odd, 0, 8, 16, 24, 1, 9, 17, 25, 2, 10, 18, 26, 3, 11, 19, 27)),
            exponential_of(SHUFFLE(even, odd, 4, 12, 20, 28, 5, 13, 21, 29, 6, 14, 22, 30, 7, 15, 23, 31)),
        };
        for (int i = 0; i < 2; i++)
            if (4 * first + i * LANES < n) store_first(out + 4 * first + i * LANES, half[i], n - 4 * first - i * LANES, 0);
    }
}

/* Place of the least value of n, the lowest of equal ones; -1 if one is NaN or the least is not finite. */
INLINE int64_t least(const float *noise, const float *row, int64_t n) {
    vf best = splat(__builtin_inff());
    vi at_step = {0}, nan = {0};
    for (int64_t i = 0; i < n; i += LANES) {
        vf value;
        if (noise)
            value = load_first(noise + i, n - i, 0) / load_first(row + i, n - i, 0);
        else
            value = -load_first(row + i, n - i, 0);
        if (n - i < LANES) {
            const vi lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
            value = choose(lane < (int32_t)(n - i), value, splat(__builtin_inff()));
        }
        nan |= value != value;
        const vi better = value < best;
        best = choose(better, value, best);
        at_step = (better & (int32_t)(i / LANES)) | (~better & at_step);
    }
    int64_t place = -1;
    float winner = __builtin_inff();
    for (int i = 0; i < LANES; i++) {
        const int64_t here = (int64_t)at_step[i] * LANES + i;
        if (nan[i]) return -1;
        if (best[i] < winner || (best[i] == winner && here < place)) {
            winner = best[i];
            place = here;
        }
    }
    return winner > -3.4028235e38f && winner < 3.4028235e38f ? place : -1;
}

/* argmin noise / law of n ids; -1 if there is none. */
int64_t ssd_race(const float *noise, const float *law, int64_t n) { return least(noise, law, n); }

/* argmax of n numbers; -1 if there is none. */
int64_t ssd_largest(const float *row, int64_t n) { return least(0, row, n); }
