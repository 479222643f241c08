/* All layers of a decoder in one call: between two functions of a layer nothing but the next one runs, where each step in
 * Python costs the more the colder it finds its caches, and a layer's weights have just passed through them. */
#include <stddef.h>

#include "threads.h"
#include "vector.h"

enum { TILED, INT8 };

typedef struct {
    int64_t kind;      /* TILED (bf16) or INT8 */
    const void *layer; /* the Layer of that kind */
    int64_t outputs;
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
void ssd_int8_inputs(const void *, const void *, int64_t, char *, int64_t);
void ssd_int8_blocks(const void *, const char *, void *, int64_t, int64_t, int64_t, int64_t, int64_t);
void ssd_bf16_blocks(const void *, const void *, void *, int64_t, int64_t, int64_t);

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

/* What the threads of one call share. */
typedef struct {
    const Stack *stack;
    Scratch scratch;
    int64_t rows, threads;
    Meeting meeting;
} Call;

/* The calling thread's share of a layer; when all return from it, the whole of ``to`` is there. */
static void apply(Call *call, const Linear *linear, const void *from, void *to, int64_t me) {
    const int64_t all = blocks_of(linear->outputs), n = call->threads;
    const int64_t first = share(all, me, n), stop = share(all, me + 1, n);
    if (linear->kind == INT8) {
        if (me == 0) ssd_int8_inputs(linear->layer, from, call->rows, call->scratch.inputs, call->stack->bf16);
        meet(&call->meeting, n);
        ssd_int8_blocks(linear->layer, call->scratch.inputs, to, call->rows, first, stop, call->stack->tiles,
                        call->stack->bf16);
    } else {
        meet(&call->meeting, n);
        ssd_bf16_blocks(linear->layer, from, to, call->rows, first, stop);
    }
    meet(&call->meeting, n);
}

static void run(Call *call, float *hidden, const float *rotation, const void *attention, void *delta, int64_t me) {
    const Stack *stack = call->stack;
    const Scratch s = call->scratch;
    const int64_t bf16 = stack->bf16, E = stack->width, D = stack->D, H = stack->heads, G = stack->kv_heads;
    const int64_t stride = (H + 2 * G) * D, rows = call->rows;
    for (int64_t i = 0; i < stack->layers; i++) {
        const Part *p = stack->parts + i;
        if (me == 0)
            ssd_add_norm(hidden, i ? delta : NULL, bf16, p->attention_norm, p->attention_floor, s.normal, rows, E, bf16);
        apply(call, &p->qkv, s.normal, s.heads, me);
        if (me == 0) {
            ssd_rotate(s.heads, stride, rotation, p->head_norm, p->head_floor, rows, H + G, D, bf16);
            ssd_attend(attention, i, s.heads, stride, at(s.heads, H * D, bf16), stride, s.attended, bf16);
        }
        apply(call, &p->out, s.attended, delta, me);
        if (me == 0) ssd_add_norm(hidden, delta, bf16, p->mlp_norm, p->mlp_floor, s.normal, rows, E, bf16);
        apply(call, &p->gate_up, s.normal, s.joined, me);
        if (me == 0) ssd_gate(s.joined, s.gated, rows, stack->inner, bf16);
        apply(call, &p->down, s.gated, delta, me);
    }
}

/* hidden [T, E] through all layers; delta [T, E] is what the last MLP adds to it. rotation as for ssd_rotate, attention: the
 * plan of the T rows, scratch aligned to 64 bytes. Threads share the outputs of linear layers, the first does the rest. */
void ssd_layers(const Stack *stack, float *hidden, const float *rotation, const void *attention, void *delta, char *scratch,
                int64_t rows, int64_t threads) {
    Call call = {.stack = stack, .scratch = lay_out(stack, rows, scratch), .rows = rows, .threads = 1};
    if (threads < 2) {
        run(&call, hidden, rotation, attention, delta, 0);
        return;
    }
#pragma omp parallel num_threads(threads)
    {
#pragma omp single
        call.threads = omp_get_num_threads();
        run(&call, hidden, rotation, attention, delta, omp_get_thread_num());
    }
}
