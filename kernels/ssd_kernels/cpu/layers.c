/* All layers of a decoder in one call: between two functions of a layer nothing but the next one runs, where each step in
 * Python costs the more the colder it finds its caches, and a layer's weights have just passed through them. */
#include <stddef.h>

#include "vector.h"

enum { TILED, INT8 };

typedef struct {
    int64_t kind;      /* TILED (bf16) or INT8 */
    const void *layer; /* the Layer of that kind */
} Linear;

typedef struct {
    const float *attention_norm, *head_norm, *mlp_norm; /* [E]; [H + G, D] or NULL; [E] */
    double attention_floor, head_floor, mlp_floor;
    Linear qkv, out, gate_up, down;
} Part;

typedef struct {
    const Part *parts;
    int64_t layers, width, heads, kv_heads, D, inner;
    int64_t int8_bytes; /* scratch of an int8 layer, per row; 0 if there is none */
    int64_t tiles, bf16;
} Stack;

void ssd_add_norm(float *, const void *, int64_t, const float *, float, void *, int64_t, int64_t, int64_t);
void ssd_rotate(void *, int64_t, const float *, const float *, float, int64_t, int64_t, int64_t, int64_t);
void ssd_gate(const void *, void *, int64_t, int64_t, int64_t);
void ssd_attend(const void *, int64_t, const void *, int64_t, const void *, int64_t, void *, int64_t);
void ssd_int8_linear(const void *, const void *, void *, int64_t, char *, int64_t, int64_t, int64_t);
void ssd_bf16_linear(const void *, const void *, void *, int64_t, int64_t);

typedef struct {
    char *normal, *heads, *attended, *joined, *gated, *inputs;
    int64_t bytes;
} Scratch;

INLINE char *take(Scratch *s, char *base, int64_t bytes) {
    char *at = base + s->bytes;
    s->bytes += (bytes + 63) / 64 * 64;
    return at;
}

static Scratch lay_out(const Stack *stack, int64_t rows, char *base) {
    const int64_t number = width_of(stack->bf16), all = stack->heads + 2 * stack->kv_heads;
    Scratch s = {0};
    s.normal = take(&s, base, rows * stack->width * number);
    s.heads = take(&s, base, rows * all * stack->D * number);
    s.attended = take(&s, base, rows * stack->heads * stack->D * number);
    s.joined = take(&s, base, rows * 2 * stack->inner * number);
    s.gated = take(&s, base, rows * stack->inner * number);
    s.inputs = take(&s, base, rows * stack->int8_bytes);
    return s;
}

/* Bytes of scratch for rows. */
int64_t ssd_layers_scratch(const Stack *stack, int64_t rows) { return lay_out(stack, rows, NULL).bytes; }

/* hidden [T, E] through all layers; delta [T, E] is what the last MLP adds to it. rotation as for ssd_rotate, attention: the
 * plan of the T rows, scratch aligned to 64 bytes. */
void ssd_layers(const Stack *stack, float *hidden, const float *rotation, const void *attention, void *delta, char *scratch,
                int64_t rows, int64_t threads) {
    const int64_t bf16 = stack->bf16, E = stack->width, D = stack->D, H = stack->heads, G = stack->kv_heads;
    const int64_t stride = (H + 2 * G) * D;
    const Scratch s = lay_out(stack, rows, scratch);
#define APPLY(linear, from, to)                                                                        \
    if ((linear).kind == TILED)                                                                        \
        ssd_bf16_linear((linear).layer, from, to, rows, threads);                                      \
    else                                                                                               \
        ssd_int8_linear((linear).layer, from, to, rows, s.inputs, threads, stack->tiles, bf16)
    for (int64_t i = 0; i < stack->layers; i++) {
        const Part *p = stack->parts + i;
        ssd_add_norm(hidden, i ? delta : NULL, bf16, p->attention_norm, p->attention_floor, s.normal, rows, E, bf16);
        APPLY(p->qkv, s.normal, s.heads);
        ssd_rotate(s.heads, stride, rotation, p->head_norm, p->head_floor, rows, H + G, D, bf16);
        ssd_attend(attention, i, s.heads, stride, at(s.heads, H * D, bf16), stride, s.attended, bf16);
        APPLY(p->out, s.attended, delta);
        ssd_add_norm(hidden, delta, bf16, p->mlp_norm, p->mlp_floor, s.normal, rows, E, bf16);
        APPLY(p->gate_up, s.normal, s.joined);
        ssd_gate(s.joined, s.gated, rows, stack->inner, bf16);
        APPLY(p->down, s.gated, delta);
    }
#undef APPLY
}
