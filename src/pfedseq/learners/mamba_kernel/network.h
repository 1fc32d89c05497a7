/* All blocks of all tiles of a call, forward and backward; included by lanes.h. */

/* Everything a call needs beside its arguments, in one allocation. */
typedef struct {
    void *memory;
    Tape *tapes; /* (blocks) */
    Scratch scratch;
    vec *g_residual; /* [N][L] */
    vec *total;      /* [N] the network's output, or the derivative by it */
    vec *grad;       /* (blocks, size); NULL going forward */
} Workspace;

static TARGET int open_workspace(const Call *call, const Offsets *at, const float *weights,
                                 int with_gradients, Workspace *work)
{
    const int64_t N = call->clients, E = call->channels, M = call->states, L = call->steps;
    const int64_t P = call->rank + 2 * M, blocks = call->blocks;
    const int64_t per_tape = (2 * N + 3 * E + P + 1) * L;
    const int64_t shared = (3 * N + 3 * E + P + 15) * L + N;
    const int64_t of_gradients = with_gradients ? blocks * at->size : 0;
    const int64_t vectors = blocks * per_tape + shared + of_gradients;
    const size_t tape_bytes = sizeof(Tape) * (size_t)blocks, alignment = 64;
    work->memory = malloc(alignment + tape_bytes + sizeof(vec) * (size_t)vectors +
                          sizeof(float) * (size_t)(blocks * E * M));
    if (work->memory == NULL) return 1;
    work->tapes = work->memory;
    const uintptr_t end_of_tapes = (uintptr_t)work->memory + tape_bytes;
    vec *next = (vec *)((end_of_tapes + alignment - 1) / alignment * alignment);
    float *scaled_A = (float *)(next + vectors);

#define TAKE(pointer, count) ((pointer) = next, next += (count))
    Scratch *s = &work->scratch;
    TAKE(s->f, N * L), TAKE(s->g_normed, N * L), TAKE(work->g_residual, N * L);
    TAKE(s->gated, E * L), TAKE(s->g_gated, E * L), TAKE(s->g_u, E * L);
    TAKE(s->g_projected, P * L);
    TAKE(s->step, L), TAKE(s->slope, L), TAKE(s->weighted, L), TAKE(s->y, L), TAKE(s->g_y, L);
    TAKE(s->g_step, L), TAKE(s->g_weighted, L), TAKE(s->h, 4 * L), TAKE(s->decay, 4 * L);
    TAKE(work->total, N);
    TAKE(work->grad, of_gradients);
    for (int64_t b = 0; b < blocks; b++) {
        Tape *tape = work->tapes + b;
        tape->first = b == blocks - 1 ? L - 1 : 0;
        tape->weights = weights + b * at->size;
        tape->A = scaled_A + b * E * M;
        for (int64_t i = 0; i < E * M; i++)
            scaled_A[b * E * M + i] = tape->weights[at->A + i] * LOG2_E;
        TAKE(tape->residual, N * L), TAKE(tape->inv_rms, L), TAKE(tape->normed, N * L);
        TAKE(tape->x, E * L), TAKE(tape->z, E * L), TAKE(tape->u, E * L);
        TAKE(tape->projected, P * L);
    }
#undef TAKE
    memset(work->grad, 0, sizeof(vec) * (size_t)of_gradients);
    return 0;
}

/* The tile's window into the first block's residual stream. */
static TARGET void load_tile(const Call *call, const float *window, int64_t rows, vec *to)
{
    for (int64_t n = 0; n < call->clients; n++)
        for (int64_t j = 0; j < call->steps; j++)
            to[n * call->steps + j] =
                load(window + j * call->step_stride + n * call->client_stride, rows);
}

/* The next block's residual stream: this one's plus the block's output. */
static TARGET void add_output(const Call *call, const Workspace *work, int64_t block)
{
    const Tape *tape = work->tapes + block;
    for (int64_t i = 0; i < call->clients * call->steps; i++)
        tape[1].residual[i] = tape[0].residual[i] + work->scratch.f[i];
}

static TARGET int forward(const Call *call, const float *weights, const float *window,
                          float *output)
{
    const Offsets at = offsets_of(call);
    const int64_t N = call->clients, L = call->steps;
    Workspace work;
    if (open_workspace(call, &at, weights, 0, &work)) return 1;
    for (int64_t row = 0; row < call->rows; row += LANES) {
        const int64_t rows = call->rows - row;
        load_tile(call, window + row, rows, work.tapes[0].residual);
        for (int64_t n = 0; n < N; n++) work.total[n] = (vec){0};
        for (int64_t b = 0; b < call->blocks; b++) {
            project(call, &at, work.tapes + b);
            finish(call, &at, work.tapes + b, &work.scratch);
            for (int64_t n = 0; n < N; n++) work.total[n] += work.scratch.f[n * L + L - 1];
            if (b + 1 < call->blocks) add_output(call, &work, b);
        }
        for (int64_t n = 0; n < N; n++)
            store(output + row + n * call->output_client_stride, work.total[n], rows);
    }
    free(work.memory);
    return 0;
}

static TARGET int backward(const Call *call, const float *weights, const float *window,
                           const float *grad_output, float *grad_weights, float *grad_window)
{
    const Offsets at = offsets_of(call);
    const int64_t N = call->clients, L = call->steps, last = call->blocks - 1;
    const size_t stream_bytes = sizeof(vec) * (size_t)(N * L);
    Workspace work;
    if (open_workspace(call, &at, weights, 1, &work)) return 1;
    for (int64_t row = 0; row < call->rows; row += LANES) {
        const int64_t rows = call->rows - row;
        load_tile(call, window + row, rows, work.tapes[0].residual);
        for (int64_t b = 0; b < last; b++) {
            project(call, &at, work.tapes + b);
            finish(call, &at, work.tapes + b, &work.scratch);
            add_output(call, &work, b);
        }
        project(call, &at, work.tapes + last); /* its backward pass runs the scan itself */

        for (int64_t n = 0; n < N; n++)
            work.total[n] = load(grad_output + row + n * call->output_client_stride, rows);
        memset(work.g_residual, 0, stream_bytes);
        for (int64_t b = last; b >= 0; b--) {
            /* f reaches the output directly at the last step, and through the later blocks. */
            memcpy(work.scratch.f, work.g_residual, stream_bytes);
            for (int64_t n = 0; n < N; n++) work.scratch.f[n * L + L - 1] += work.total[n];
            block_backward(call, &at, work.tapes + b, &work.scratch, work.grad + b * at.size,
                           work.g_residual);
        }
        for (int64_t n = 0; grad_window != NULL && n < N; n++)
            for (int64_t j = 0; j < L; j++)
                store(grad_window + row + j * call->grad_step_stride + n * call->grad_client_stride,
                      work.g_residual[n * L + j], rows);
    }
    for (int64_t i = 0; i < call->blocks * at.size; i++) {
        float sum = 0.0f;
        for (int lane = 0; lane < LANES; lane++) sum += work.grad[i][lane];
        grad_weights[i] = sum;
    }
    free(work.memory);
    return 0;
}
