/* One Mamba block of one tile of rows, forward and backward; included by lanes.h. */

/* What the block starts from, and the values that its backward pass reads again. */
typedef struct {
    int64_t first;        /* the first step whose output is wanted */
    const float *weights; /* the packed block */
    const float *A;       /* (E, M), times log2(e) */
    vec *residual;        /* [N][L] r */
    vec *inv_rms;         /* [L] */
    vec *normed;          /* [N][L] n */
    vec *x, *z, *u;       /* [E][L] */
    vec *projected;       /* [R + 2M][L] p */
} Tape;

/* Values of the moment, shared by the tile's blocks. */
typedef struct {
    vec *f;                     /* [N][L] the block's output, or going backward g_f */
    vec *gated, *g_gated, *g_u; /* [E][L] gated = y SiLU(z) */
    vec *g_projected;           /* [R + 2M][L] */
    vec *g_normed;              /* [N][L] */
    vec *step, *slope, *weighted, *y, *g_y, *g_step, *g_weighted; /* [L] of one channel */
    vec *h, *decay;                                               /* [L][4] of four states */
} Scratch;

/* c_j of one channel; steps before the first count as zero. */
INLINE TARGET vec convolve(const vec *x, const float *taps, float bias, int64_t W, int64_t j)
{
    vec c = (vec){0} + bias;
    for (int64_t w = j < W - 1 ? W - 1 - j : 0; w < W; w++) c += taps[w] * x[j - W + 1 + w];
    return c;
}

/* out[i][j] += bias[i] for steps j >= first. */
INLINE TARGET void add_bias(vec *out, const float *bias, int64_t outs, int64_t L, int64_t first)
{
    for (int64_t i = 0; i < outs; i++)
        for (int64_t j = first; j < L; j++) out[i * L + j] += bias[i];
}

/* grad[i] += sum_{j >= first} g[i][j]: the gradient of a bias. */
INLINE TARGET void sum_steps(vec *grad, const vec *g, int64_t outs, int64_t L, int64_t first)
{
    for (int64_t i = 0; i < outs; i++)
        for (int64_t j = first; j < L; j++) grad[i] += g[i * L + j];
}

/* From the residual stream to what the scan reads. */
static TARGET void project(const Call *call, const Offsets *at, const Tape *tape)
{
    const int64_t N = call->clients, E = call->channels, M = call->states, L = call->steps;
    const int64_t R = call->rank, W = call->width, first = tape->first;
    const float *weights = tape->weights;

    for (int64_t j = 0; j < L; j++) {
        vec square_sum = {0}, inv_rms;
        for (int64_t n = 0; n < N; n++)
            square_sum += tape->residual[n * L + j] * tape->residual[n * L + j];
        const vec mean_square = square_sum / (float)N + 1e-5f;
        for (int lane = 0; lane < LANES; lane++)
            inv_rms[lane] = call->is_signed ? 1.0f : 1.0f / sqrtf(mean_square[lane]);
        tape->inv_rms[j] = inv_rms;
        for (int64_t n = 0; n < N; n++)
            tape->normed[n * L + j] = tape->residual[n * L + j] * inv_rms * weights[at->norm + n];
    }
    const float *in_proj = weights + at->in_proj, *x_proj = weights + at->x_proj;
    matmul(tape->x, tape->normed, in_proj, E, N, N, 1, L, 0, 0);
    matmul(tape->z, tape->normed, in_proj + E * N, E, N, N, 1, L, first, 0);
    add_bias(tape->z, weights + at->gate_bias, E, L, first);

    for (int64_t e = 0; e < E; e++) {
        const float *taps = weights + at->conv_weight + e * W, bias = weights[at->conv_bias + e];
        for (int64_t j = 0; j < L; j++) {
            const vec c = convolve(tape->x + e * L, taps, bias, W, j);
            tape->u[e * L + j] = call->is_signed ? c : c * sigmoid(c);
        }
    }
    matmul(tape->projected, tape->u, x_proj, R + M, E, E, 1, L, 0, 0);
    matmul(tape->projected + (R + M) * L, tape->u, x_proj + (R + M) * E, M, E, E, 1, L, first, 0);
    add_bias(tape->projected + R * L, weights + at->scan_bias, M, L, 0);
    add_bias(tape->projected + (R + M) * L, weights + at->scan_bias + M, M, L, first);
}

/* The scan's view of channel e: its step sizes (and their slope, the derivative by v), and y
   begun with skip u. */
INLINE TARGET Channel open_channel(const Call *call, const Offsets *at, const Tape *tape,
                                   const Scratch *scratch, int64_t e)
{
    const int64_t L = call->steps, M = call->states, R = call->rank;
    const float *step_proj = tape->weights + at->step_proj + e * R;
    const float skip = tape->weights[at->skip + e];
    const vec *u = tape->u + e * L;
    for (int64_t j = 0; j < L; j++) {
        vec v = (vec){0} + tape->weights[at->step_bias + e];
        for (int64_t r = 0; r < R; r++) v += step_proj[r] * tape->projected[r * L + j];
        scratch->step[j] = softplus(v, &scratch->slope[j]);
        scratch->weighted[j] = scratch->step[j] * u[j];
        scratch->y[j] = skip * u[j];
    }
    return (Channel){
        .L = L,
        .first = tape->first,
        .A = tape->A + e * M,
        .B = tape->projected + R * L,
        .C = tape->projected + (R + M) * L,
        .step = scratch->step,
        .weighted = scratch->weighted,
        .y = scratch->y,
    };
}

/* scratch->f = the block's output at steps >= first, from the projected tape. */
static TARGET void finish(const Call *call, const Offsets *at, const Tape *tape,
                          const Scratch *scratch)
{
    const int64_t N = call->clients, E = call->channels, L = call->steps;
    for (int64_t e = 0; e < E; e++) {
        const Channel channel = open_channel(call, at, tape, scratch, e);
        scan(&channel, call->states);
        for (int64_t j = tape->first; j < L; j++) {
            const vec z = tape->z[e * L + j];
            scratch->gated[e * L + j] = scratch->y[j] * z * sigmoid(z);
        }
    }
    matmul(scratch->f, scratch->gated, tape->weights + at->out_proj, N, E, E, 1, L, tape->first, 0);
}

/* Channel e from g_gated to g_z (in its place), g_u and g_projected; leaves `gated` for the
   gradient of out_proj. */
INLINE TARGET void scan_channel_backward(const Call *call, const Offsets *at, const Tape *tape,
                                         const Scratch *scratch, vec *grad, int64_t e)
{
    const int64_t L = call->steps, M = call->states, R = call->rank, first = tape->first;
    const float *weights = tape->weights, skip = weights[at->skip + e];
    const vec *z = tape->z + e * L, *u = tape->u + e * L;
    vec *g_gated = scratch->g_gated + e * L, *g_z = g_gated;
    vec *g_u = scratch->g_u + e * L, *gated = scratch->gated + e * L;

    for (int64_t j = first; j < L; j++) scratch->g_y[j] = g_gated[j] * z[j] * sigmoid(z[j]);
    for (int64_t j = 0; j < L; j++) scratch->g_step[j] = scratch->g_weighted[j] = (vec){0};
    Channel channel = open_channel(call, at, tape, scratch, e);
    channel.g_y = scratch->g_y;
    channel.g_step = scratch->g_step;
    channel.g_weighted = scratch->g_weighted;
    channel.g_B = scratch->g_projected + R * L;
    channel.g_C = scratch->g_projected + (R + M) * L;
    channel.grad_A = grad + at->A + e * M;
    channel.h = scratch->h;
    channel.decay = scratch->decay;
    scan_backward(&channel, M);

    vec *g_v = scratch->g_step, grad_step_bias = {0}, grad_skip = {0};
    for (int64_t j = 0; j < L; j++) {
        g_u[j] = scratch->g_weighted[j] * scratch->step[j];
        g_v[j] = scratch->slope[j] * (LN_2 * scratch->g_step[j] + scratch->g_weighted[j] * u[j]);
        grad_step_bias += g_v[j];
    }
    grad[at->step_bias + e] += grad_step_bias;
    for (int64_t r = 0; r < R; r++) {
        const float step_proj = weights[at->step_proj + e * R + r];
        const vec *delta = tape->projected + r * L;
        vec *g_delta = scratch->g_projected + r * L, grad_step_proj = {0};
        for (int64_t j = 0; j < L; j++) {
            grad_step_proj += g_v[j] * delta[j];
            g_delta[j] += g_v[j] * step_proj;
        }
        grad[at->step_proj + e * R + r] += grad_step_proj;
    }
    for (int64_t j = first; j < L; j++) {
        const vec s = sigmoid(z[j]), y = scratch->y[j];
        g_u[j] += skip * scratch->g_y[j];
        grad_skip += scratch->g_y[j] * u[j];
        gated[j] = y * z[j] * s;
        g_z[j] = g_gated[j] * y * s * (1.0f + z[j] * (1.0f - s));
    }
    grad[at->skip + e] += grad_skip;
}

/* Channel e from g_u to g_x, in its place: first g_c at every step, then, oldest step first, g_x,
   which needs g_c at its own step and later. */
INLINE TARGET void convolution_backward(const Call *call, const Offsets *at, const Tape *tape,
                                        const Scratch *scratch, vec *grad, int64_t e)
{
    const int64_t L = call->steps, W = call->width;
    const float *taps = tape->weights + at->conv_weight + e * W;
    const float bias = tape->weights[at->conv_bias + e];
    const vec *x = tape->x + e * L;
    vec *g = scratch->g_u + e * L, grad_bias = {0};
    for (int64_t j = 0; j < L; j++) {
        const vec c = convolve(x, taps, bias, W, j), s = sigmoid(c);
        if (!call->is_signed) g[j] *= s * (1.0f + c * (1.0f - s));
        grad_bias += g[j];
    }
    grad[at->conv_bias + e] += grad_bias;
    for (int64_t w = 0; w < W; w++) {
        const int64_t age = W - 1 - w; /* tap w reads the step that is so much older */
        vec grad_tap = {0};
        for (int64_t j = age; j < L; j++) grad_tap += g[j] * x[j - age];
        grad[at->conv_weight + e * W + w] += grad_tap;
    }
    for (int64_t j = 0; j < L; j++) {
        vec g_x = {0};
        for (int64_t age = 0; age < W && j + age < L; age++) g_x += taps[W - 1 - age] * g[j + age];
        g[j] = g_x;
    }
}

/* From g_normed to g_residual, which is added to. */
INLINE TARGET void norm_backward(const Call *call, const Offsets *at, const Tape *tape,
                                 const Scratch *scratch, vec *grad, vec *g_residual)
{
    const int64_t N = call->clients, L = call->steps;
    const float *norm = tape->weights + at->norm;
    for (int64_t j = 0; j < L; j++) {
        const vec inv_rms = tape->inv_rms[j];
        vec along = {0}; /* the part of g_normed along the residual, which the norm takes away */
        for (int64_t n = 0; n < N; n++) {
            const vec g = scratch->g_normed[n * L + j], unit = tape->residual[n * L + j] * inv_rms;
            grad[at->norm + n] += g * unit;
            along += g * norm[n] * unit;
        }
        along = call->is_signed ? (vec){0} : along / (float)N;
        for (int64_t n = 0; n < N; n++) {
            const vec g = scratch->g_normed[n * L + j], unit = tape->residual[n * L + j] * inv_rms;
            g_residual[n * L + j] += inv_rms * (g * norm[n] - unit * along);
        }
    }
}

/* From g_f (scratch->f, steps >= first) to the weights' gradients and, added to g_residual
   [N][L], the derivative by the residual stream as this block's input. */
static TARGET void block_backward(const Call *call, const Offsets *at, const Tape *tape,
                                  const Scratch *scratch, vec *grad, vec *g_residual)
{
    const int64_t N = call->clients, E = call->channels, M = call->states, L = call->steps;
    const int64_t R = call->rank, first = tape->first;
    const float *in_proj = tape->weights + at->in_proj, *x_proj = tape->weights + at->x_proj;
    vec *grad_in_proj = grad + at->in_proj, *grad_x_proj = grad + at->x_proj;
    const vec *g_C = scratch->g_projected + (R + M) * L;

    matmul(scratch->g_gated, scratch->f, tape->weights + at->out_proj, E, N, 1, E, L, first, 0);
    memset(scratch->g_projected, 0, sizeof(vec) * (size_t)((R + 2 * M) * L));
    for (int64_t e = 0; e < E; e++) scan_channel_backward(call, at, tape, scratch, grad, e);
    outer(grad + at->out_proj, scratch->f, scratch->gated, N, E, L, first);

    matmul(scratch->g_u, scratch->g_projected, x_proj, E, R + M, 1, E, L, 0, 1);
    matmul(scratch->g_u, g_C, x_proj + (R + M) * E, E, M, 1, E, L, first, 1);
    outer(grad_x_proj, scratch->g_projected, tape->u, R + M, E, L, 0);
    outer(grad_x_proj + (R + M) * E, g_C, tape->u, M, E, L, first);
    sum_steps(grad + at->scan_bias, scratch->g_projected + R * L, M, L, 0);
    sum_steps(grad + at->scan_bias + M, g_C, M, L, first);

    for (int64_t e = 0; e < E; e++) convolution_backward(call, at, tape, scratch, grad, e);
    const vec *g_x = scratch->g_u, *g_z = scratch->g_gated; /* replaced in place above */
    matmul(scratch->g_normed, g_x, in_proj, N, E, 1, N, L, 0, 0);
    matmul(scratch->g_normed, g_z, in_proj + E * N, N, E, 1, N, L, first, 1);
    outer(grad_in_proj, g_x, tape->normed, E, N, L, 0);
    outer(grad_in_proj + E * N, g_z, tape->normed, E, N, L, first);
    sum_steps(grad + at->gate_bias, g_z, E, L, first);
    norm_backward(call, at, tape, scratch, grad, g_residual);
}
