/* The fused Mamba network, forward and backward, for one number of SIMD lanes.

   Every vector holds one scalar of the reference for LANES rows of D at once, so the code below
   reads like the formulas for a single row. A tile of LANES rows goes through the whole network
   while all its intermediate values stay in cache; nothing is stored between forward and backward.

   For one row, residual stream r (N, L), with first = 0, or L - 1 in the last block, whose earlier
   outputs nobody reads:

     n_j      = r_j * inv_rms_j * norm            inv_rms_j = 1 / sqrt(mean(r_j^2) + 1e-5)
     x_j, z_j = in_proj n_j                       z for j >= first
     c_j      = conv_bias + sum_w conv_weight_w x_{j-W+1+w}
     u_j      = SiLU(c_j)                         SiLU(v) = v sigmoid(v)
     p_j      = x_proj u_j = (delta_j, B_j, C_j)  C for j >= first
     v_j      = step_proj delta_j + step_bias
     step_j   = softplus(v_j)
     h_j      = exp(step_j A) h_{j-1} + step_j u_j B_j             state (E, M), h_{-1} = 0
     y_j      = <C_j, h_j> + skip u_j             j >= first
     f_j      = out_proj (y_j SiLU(z_j))          j >= first
     next r_j = r_j + f_j

   The network's output is the sum over blocks of f_{L-1}. In the backward pass, g_q is the
   derivative of the loss by q, and per state, from the last step to the first,

     g_h     = decay_{j+1} g_h + C_j g_y,j        decay_j = exp(step_j A)
     g_C,j  += h_j g_y,j
     g_B,j  += step_j u_j g_h                     g_weighted,j += B_j g_h   (weighted = step u)
     t       = decay_j h_{j-1} g_h                derivative by the exponent step_j A
     g_A    += step_j t                           g_step,j += A t

   where the h_j and decay_j of one channel and four states at a time are computed again.

   Arrays are laid out [channel][step], each element a vector. Weight gradients are summed over
   tiles as vectors, and over lanes at the end, always in the same order. */

#define vec NAME(vec)
#define ivec NAME(ivec)
typedef float vec __attribute__((vector_size(4 * LANES)));
typedef int32_t ivec __attribute__((vector_size(4 * LANES)));

/* ---- elementary functions: at most a few units in the last place off, NaN in gives NaN out ---- */

INLINE TARGET vec NAME(select)(ivec condition, vec yes, vec no)
{
    return (vec)(((ivec)yes & condition) | ((ivec)no & ~condition));
}
#define select NAME(select)

/* 2^t for t up to 127, with 2^-126 for everything below. Adding 1.5 * 2^23 + 127 rounds t to an
   integer k and leaves the float 2^k's exponent bits, k + 127, at the bottom of the sum; the rest
   is a polynomial on [-1/2, 1/2] of relative error 1e-7. */
INLINE TARGET vec NAME(exp2)(vec t)
{
    const float magic = 12582912.0f + 127.0f;
    t = select(t < -126.0f, (vec){0} - 126.0f, t);
    const vec shifted = t + magic;
    const vec f = t - (shifted - magic);
    const vec power = (vec)((ivec)shifted << 23);
    vec p = f * 0.001326472731307149f + 0.009671512991189957f;
    p = p * f + 0.05550733581185341f;
    p = p * f + 0.24022242426872253f;
    p = p * f + 0.6931470036506653f;
    p = p * f + 1.0f;
    return p * power;
}
#define exp2_lanes NAME(exp2)

#define LOG2_E 1.44269504088896341f
#define LN_2 0.693147180559945309f

/* 1 / (1 + exp(-v)) */
INLINE TARGET vec NAME(sigmoid)(vec v)
{
    vec t = v * -LOG2_E;
    t = select(t > 126.0f, (vec){0} + 126.0f, t);
    return 1.0f / (1.0f + exp2_lanes(t));
}
#define sigmoid NAME(sigmoid)

/* log(1 + exp(v)), and its derivative sigmoid(v), both to full relative accuracy: with
   w = exp(-|v|) and s = w / (2 + w), log(1 + w) = 2 artanh(s). */
INLINE TARGET vec NAME(softplus)(vec v, vec *derivative)
{
    const ivec positive = v > 0.0f;
    const vec w = exp2_lanes(select(positive, -v, v) * LOG2_E);
    const vec s = w / (2.0f + w);
    const vec q = s * s;
    vec p = q * 0.2817833423614502f + 0.27960601449012756f;
    p = p * q + 0.40024909377098083f;
    p = p * q + 0.6666631698608398f;
    p = p * q + 2.0f;
    *derivative = select(positive, (vec){0} + 1.0f, w) / (1.0f + w);
    return p * s + select(positive, v, (vec){0});
}
#define softplus NAME(softplus)

/* ---- products with weight matrices ------------------------------------------------------------

   Both work in blocks of 4 x 3 vectors held in registers; the sizes are constants after inlining. */

INLINE TARGET void NAME(matmul_block)(const int outs, const int steps, vec *out, const vec *in,
                                      const float *weight, int64_t out_stride, int64_t in_stride,
                                      int64_t ins, int64_t L, int accumulate)
{
    vec sum[4][3];
#pragma GCC unroll 4
    for (int o = 0; o < outs; o++)
#pragma GCC unroll 3
        for (int j = 0; j < steps; j++) sum[o][j] = accumulate ? out[o * L + j] : (vec){0};
    for (int64_t i = 0; i < ins; i++) {
#pragma GCC unroll 4
        for (int o = 0; o < outs; o++) {
            const float w = weight[o * out_stride + i * in_stride];
#pragma GCC unroll 3
            for (int j = 0; j < steps; j++) sum[o][j] += w * in[i * L + j];
        }
    }
#pragma GCC unroll 4
    for (int o = 0; o < outs; o++)
#pragma GCC unroll 3
        for (int j = 0; j < steps; j++) out[o * L + j] = sum[o][j];
}

/* out[o][j] (+)= sum_i weight[o, i] in[i][j] for steps j >= first; the strides say how the weight
   lies, so that the same code multiplies by a matrix and by its transpose. */
static TARGET void NAME(matmul)(vec *out, const vec *in, const float *weight, int64_t outs,
                                int64_t ins, int64_t out_stride, int64_t in_stride, int64_t L,
                                int64_t first, int accumulate)
{
#define BLOCK(O, J)                                                                              \
    NAME(matmul_block)(O, J, out + o * L + j, in + j, weight + o * out_stride, out_stride,       \
                       in_stride, ins, L, accumulate)
    int64_t o = 0;
    for (; o + 4 <= outs; o += 4) {
        int64_t j = first;
        for (; j + 3 <= L; j += 3) BLOCK(4, 3);
        for (; j < L; j++) BLOCK(4, 1);
    }
    for (; o < outs; o++) {
        int64_t j = first;
        for (; j + 3 <= L; j += 3) BLOCK(1, 3);
        for (; j < L; j++) BLOCK(1, 1);
    }
#undef BLOCK
}
#define matmul NAME(matmul)

INLINE TARGET void NAME(outer_block)(const int outs, const int ins, vec *grad_weight,
                                     const vec *grad_out, const vec *in, int64_t row_length,
                                     int64_t L, int64_t first)
{
    vec sum[4][3];
#pragma GCC unroll 4
    for (int o = 0; o < outs; o++)
#pragma GCC unroll 3
        for (int i = 0; i < ins; i++) sum[o][i] = grad_weight[o * row_length + i];
    for (int64_t j = first; j < L; j++) {
#pragma GCC unroll 4
        for (int o = 0; o < outs; o++)
#pragma GCC unroll 3
            for (int i = 0; i < ins; i++) sum[o][i] += grad_out[o * L + j] * in[i * L + j];
    }
#pragma GCC unroll 4
    for (int o = 0; o < outs; o++)
#pragma GCC unroll 3
        for (int i = 0; i < ins; i++) grad_weight[o * row_length + i] = sum[o][i];
}

/* grad_weight[o][i] += sum_{j >= first} grad_out[o][j] in[i][j] */
static TARGET void NAME(outer)(vec *grad_weight, const vec *grad_out, const vec *in, int64_t outs,
                               int64_t ins, int64_t L, int64_t first)
{
#define BLOCK(O, I)                                                                              \
    NAME(outer_block)(O, I, grad_weight + o * ins + i, grad_out + o * L, in + i * L, ins, L, first)
    int64_t o = 0;
    for (; o + 4 <= outs; o += 4) {
        int64_t i = 0;
        for (; i + 3 <= ins; i += 3) BLOCK(4, 3);
        for (; i < ins; i++) BLOCK(4, 1);
    }
    for (; o < outs; o++) {
        int64_t i = 0;
        for (; i + 3 <= ins; i += 3) BLOCK(1, 3);
        for (; i < ins; i++) BLOCK(1, 1);
    }
#undef BLOCK
}
#define outer NAME(outer)

/* ---- the selective scan of one channel -------------------------------------------------------- */

/* What the scan of one channel reads and adds to; arrays over steps, B and C [state][step]. */
#define Channel NAME(Channel)
typedef struct {
    int64_t L, first;
    const float *A; /* (M), times log2(e) so that exp(step A) = 2^(step A) */
    const vec *B, *C;
    const vec *step, *weighted; /* (L) step_j and step_j u_j */
    vec *y;                     /* (L) += <C_j, h_j> for j >= first */
    /* Backward only: */
    const vec *g_y;           /* (L) for j >= first */
    vec *g_step, *g_weighted; /* (L) += ; g_step is to be multiplied by ln 2 */
    vec *g_B, *g_C;           /* [state][step] += */
    vec *g_A;                 /* (M) += */
    vec *h, *decay;           /* [step][4] scratch */
} Channel;

INLINE TARGET void NAME(scan_states)(const int states, const Channel *channel, int64_t m)
{
    const int64_t L = channel->L, first = channel->first;
    const vec *B = channel->B + m * L, *C = channel->C + m * L;
    vec h[4];
#pragma GCC unroll 4
    for (int s = 0; s < states; s++) h[s] = channel->weighted[0] * B[s * L];
    for (int64_t j = 0;;) {
        if (j >= first) {
            vec y = channel->y[j];
#pragma GCC unroll 4
            for (int s = 0; s < states; s++) y += C[s * L + j] * h[s];
            channel->y[j] = y;
        }
        if (++j == L) break;
        const vec step = channel->step[j], weighted = channel->weighted[j];
#pragma GCC unroll 4
        for (int s = 0; s < states; s++)
            h[s] = exp2_lanes(step * channel->A[m + s]) * h[s] + weighted * B[s * L + j];
    }
}

static TARGET void NAME(scan)(const Channel *channel, int64_t M)
{
    int64_t m = 0;
    for (; m + 4 <= M; m += 4) NAME(scan_states)(4, channel, m);
    for (; m < M; m++) NAME(scan_states)(1, channel, m);
}
#define scan NAME(scan)

INLINE TARGET void NAME(scan_states_backward)(const int states, const Channel *channel, int64_t m)
{
    const int64_t L = channel->L, first = channel->first;
    const vec *B = channel->B + m * L, *C = channel->C + m * L;
    vec *g_B = channel->g_B + m * L, *g_C = channel->g_C + m * L;
    vec *const saved_h = channel->h, *const saved_decay = channel->decay;
    vec h[4], g_h[4], g_A[4];
#pragma GCC unroll 4
    for (int s = 0; s < states; s++)
        saved_h[s] = h[s] = channel->weighted[0] * B[s * L];
    for (int64_t j = 1; j < L; j++) {
        const vec step = channel->step[j], weighted = channel->weighted[j];
#pragma GCC unroll 4
        for (int s = 0; s < states; s++) {
            const vec decay = exp2_lanes(step * channel->A[m + s]);
            h[s] = decay * h[s] + weighted * B[s * L + j];
            saved_decay[j * 4 + s] = decay;
            saved_h[j * 4 + s] = h[s];
        }
    }
#pragma GCC unroll 4
    for (int s = 0; s < states; s++) g_h[s] = g_A[s] = (vec){0};
    for (int64_t j = L - 1; j >= 0; j--) {
        if (j >= first) {
            const vec g_y = channel->g_y[j];
            vec y = channel->y[j];
#pragma GCC unroll 4
            for (int s = 0; s < states; s++) {
                y += C[s * L + j] * saved_h[j * 4 + s];
                g_C[s * L + j] += g_y * saved_h[j * 4 + s];
                g_h[s] += g_y * C[s * L + j];
            }
            channel->y[j] = y;
        }
        const vec step = channel->step[j], weighted = channel->weighted[j];
        vec g_weighted = channel->g_weighted[j], g_step = channel->g_step[j];
#pragma GCC unroll 4
        for (int s = 0; s < states; s++) {
            g_B[s * L + j] += g_h[s] * weighted;
            g_weighted += g_h[s] * B[s * L + j];
            if (j > 0) {
                g_h[s] *= saved_decay[j * 4 + s];
                const vec t = g_h[s] * saved_h[(j - 1) * 4 + s];
                g_A[s] += t * step;
                g_step += t * channel->A[m + s];
            }
        }
        channel->g_weighted[j] = g_weighted;
        channel->g_step[j] = g_step;
    }
#pragma GCC unroll 4
    for (int s = 0; s < states; s++) channel->g_A[m + s] += g_A[s];
}

static TARGET void NAME(scan_backward)(const Channel *channel, int64_t M)
{
    int64_t m = 0;
    for (; m + 4 <= M; m += 4) NAME(scan_states_backward)(4, channel, m);
    for (; m < M; m++) NAME(scan_states_backward)(1, channel, m);
}
#define scan_backward NAME(scan_backward)

/* ---- one block of one tile ---------------------------------------------------------------------- */

/* A block's values that its backward pass reads again, and the residual stream it starts from. */
#define Tape NAME(Tape)
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

/* Scratch of one tile, shared by its blocks. */
#define Scratch NAME(Scratch)
typedef struct {
    vec *gated, *g_gated, *g_u; /* [E][L] */
    vec *g_projected;           /* [R + 2M][L] */
    vec *g_normed;              /* [N][L] */
    vec *f;                     /* [N][L] a block's output, or the derivative by it */
    vec *step, *slope, *weighted, *y, *g_y, *g_step, *g_weighted; /* [L] of one channel */
    vec *h, *decay;                                               /* [L][4] */
} Scratch;

/* From the residual stream to what the scan reads. */
static TARGET void NAME(project)(const Call *call, const Offsets *at, Tape *tape)
{
    const int64_t N = call->clients, E = call->channels, M = call->states, L = call->steps;
    const int64_t R = call->rank, W = call->width, first = tape->first;
    const float *weights = tape->weights;

    for (int64_t j = 0; j < L; j++) {
        vec square_sum = {0}, inv_rms;
        for (int64_t n = 0; n < N; n++)
            square_sum += tape->residual[n * L + j] * tape->residual[n * L + j];
        const vec mean_square = square_sum / (float)N + 1e-5f;
        for (int lane = 0; lane < LANES; lane++) inv_rms[lane] = 1.0f / sqrtf(mean_square[lane]);
        tape->inv_rms[j] = inv_rms;
        for (int64_t n = 0; n < N; n++)
            tape->normed[n * L + j] =
                tape->residual[n * L + j] * inv_rms * weights[at->norm + n];
    }
    const float *in_proj = weights + at->in_proj, *x_proj = weights + at->x_proj;
    matmul(tape->x, tape->normed, in_proj, E, N, N, 1, L, 0, 0);
    matmul(tape->z, tape->normed, in_proj + E * N, E, N, N, 1, L, first, 0);

    for (int64_t e = 0; e < E; e++) {
        const float *taps = weights + at->conv_weight + e * W;
        const vec *x = tape->x + e * L;
        for (int64_t j = 0; j < L; j++) {
            vec c = (vec){0} + weights[at->conv_bias + e];
            for (int64_t w = j < W - 1 ? W - 1 - j : 0; w < W; w++) c += taps[w] * x[j - W + 1 + w];
            tape->u[e * L + j] = c * sigmoid(c);
        }
    }
    matmul(tape->projected, tape->u, x_proj, R + M, E, E, 1, L, 0, 0);
    matmul(tape->projected + (R + M) * L, tape->u, x_proj + (R + M) * E, M, E, E, 1, L, first, 0);
}
#define project NAME(project)

/* The scan's view of channel e: its step sizes (and their derivative by v, the slope). */
INLINE TARGET Channel NAME(open_channel)(const Call *call, const Offsets *at, const Tape *tape,
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
#define open_channel NAME(open_channel)

/* scratch->f = the block's output at steps >= first, from the projected tape. */
static TARGET void NAME(finish)(const Call *call, const Offsets *at, const Tape *tape,
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
#define finish NAME(finish)

/* From g_f (scratch->f, steps >= first) to the weights' gradients and, added to `g_residual`
   [N][L], the derivative by the residual stream through this block's normalisation. */
static TARGET void NAME(block_backward)(const Call *call, const Offsets *at, const Tape *tape,
                                        const Scratch *scratch, vec *grad, vec *g_residual)
{
    const int64_t N = call->clients, E = call->channels, M = call->states, L = call->steps;
    const int64_t R = call->rank, W = call->width, first = tape->first;
    const float *weights = tape->weights;
    const float *in_proj = weights + at->in_proj, *x_proj = weights + at->x_proj;

    matmul(scratch->g_gated, scratch->f, weights + at->out_proj, E, N, 1, E, L, first, 0);
    memset(scratch->g_projected, 0, sizeof(vec) * (size_t)((R + 2 * M) * L));

    for (int64_t e = 0; e < E; e++) {
        Channel channel = open_channel(call, at, tape, scratch, e);
        const float skip = weights[at->skip + e];
        const vec *u = tape->u + e * L;
        vec *g_u = scratch->g_u + e * L;
        vec *z_to_gated = scratch->gated + e * L, *g_gated_to_g_z = scratch->g_gated + e * L;
        for (int64_t j = first; j < L; j++) {
            const vec z = tape->z[e * L + j];
            scratch->g_y[j] = g_gated_to_g_z[j] * z * sigmoid(z);
        }
        for (int64_t j = 0; j < L; j++) scratch->g_step[j] = scratch->g_weighted[j] = (vec){0};
        channel.g_y = scratch->g_y;
        channel.g_step = scratch->g_step;
        channel.g_weighted = scratch->g_weighted;
        channel.g_B = scratch->g_projected + R * L;
        channel.g_C = scratch->g_projected + (R + M) * L;
        channel.g_A = grad + at->A + e * M;
        channel.h = scratch->h;
        channel.decay = scratch->decay;
        scan_backward(&channel, M);

        for (int64_t j = 0; j < L; j++) {
            g_u[j] = scratch->g_weighted[j] * scratch->step[j];
            const vec g_step = LN_2 * scratch->g_step[j] + scratch->g_weighted[j] * u[j];
            const vec g_v = g_step * scratch->slope[j];
            grad[at->step_bias + e] += g_v;
            for (int64_t r = 0; r < R; r++) {
                grad[at->step_proj + e * R + r] += g_v * tape->projected[r * L + j];
                scratch->g_projected[r * L + j] += g_v * weights[at->step_proj + e * R + r];
            }
        }
        for (int64_t j = first; j < L; j++) {
            const vec z = tape->z[e * L + j], s = sigmoid(z), y = scratch->y[j];
            g_u[j] += skip * scratch->g_y[j];
            grad[at->skip + e] += scratch->g_y[j] * u[j];
            z_to_gated[j] = y * z * s;
            g_gated_to_g_z[j] *= y * s * (1.0f + z * (1.0f - s));
        }
    }
    outer(grad + at->out_proj, scratch->f, scratch->gated, N, E, L, first);

    /* Through x_proj, whose C rows have no derivative before `first`. */
    const vec *g_C = scratch->g_projected + (R + M) * L;
    vec *grad_x_proj = grad + at->x_proj;
    matmul(scratch->g_u, scratch->g_projected, x_proj, E, R + M, 1, E, L, 0, 1);
    matmul(scratch->g_u, g_C, x_proj + (R + M) * E, E, M, 1, E, L, first, 1);
    outer(grad_x_proj, scratch->g_projected, tape->u, R + M, E, L, 0);
    outer(grad_x_proj + (R + M) * E, g_C, tape->u, M, E, L, first);

    /* Through SiLU and the convolution: g_u becomes g_x in place, oldest step first, since g_x at
       a step needs g_c at that step and later ones. */
    for (int64_t e = 0; e < E; e++) {
        const float *taps = weights + at->conv_weight + e * W;
        const vec *x = tape->x + e * L;
        vec *grad_taps = grad + at->conv_weight + e * W, *g = scratch->g_u + e * L;
        for (int64_t j = 0; j < L; j++) {
            vec c = (vec){0} + weights[at->conv_bias + e];
            for (int64_t w = j < W - 1 ? W - 1 - j : 0; w < W; w++) c += taps[w] * x[j - W + 1 + w];
            const vec s = sigmoid(c);
            g[j] *= s * (1.0f + c * (1.0f - s));
            grad[at->conv_bias + e] += g[j];
            for (int64_t w = j < W - 1 ? W - 1 - j : 0; w < W; w++)
                grad_taps[w] += g[j] * x[j - W + 1 + w];
        }
        for (int64_t j = 0; j < L; j++) {
            vec g_x = {0};
            for (int64_t w = W - 1; w >= 0 && j + W - 1 - w < L; w--)
                g_x += taps[w] * g[j + W - 1 - w];
            g[j] = g_x;
        }
    }
    vec *g_normed = scratch->g_normed, *grad_in_proj = grad + at->in_proj;
    matmul(g_normed, scratch->g_u, in_proj, N, E, 1, N, L, 0, 0);
    matmul(g_normed, scratch->g_gated, in_proj + E * N, N, E, 1, N, L, first, 1);
    outer(grad_in_proj, scratch->g_u, tape->normed, E, N, L, 0);
    outer(grad_in_proj + E * N, scratch->g_gated, tape->normed, E, N, L, first);

    for (int64_t j = 0; j < L; j++) {
        const vec inv_rms = tape->inv_rms[j];
        vec along = {0};
        for (int64_t n = 0; n < N; n++) {
            const vec unit = tape->residual[n * L + j] * inv_rms;
            grad[at->norm + n] += g_normed[n * L + j] * unit;
            along += g_normed[n * L + j] * weights[at->norm + n] * unit;
        }
        along /= (float)N;
        for (int64_t n = 0; n < N; n++)
            g_residual[n * L + j] += inv_rms * (g_normed[n * L + j] * weights[at->norm + n] -
                                                tape->residual[n * L + j] * inv_rms * along);
    }
}
#define block_backward NAME(block_backward)

/* ---- all blocks of all tiles of a call ---------------------------------------------------------- */

/* Everything a call needs beside its arguments, in one allocation. */
#define Workspace NAME(Workspace)
typedef struct {
    void *memory;
    Tape *tapes; /* (blocks) */
    Scratch scratch;
    vec *g_residual; /* [N][L] */
    vec *total;      /* [N] sum of the blocks' outputs, or the derivative by it */
    vec *grad;       /* (blocks, size) */
} Workspace;

static TARGET int NAME(open_workspace)(const Call *call, const Offsets *at, const float *weights,
                                       int with_gradients, Workspace *work)
{
    const int64_t N = call->clients, E = call->channels, M = call->states, L = call->steps;
    const int64_t P = call->rank + 2 * M, blocks = call->blocks;
    const int64_t per_tape = (2 * N + 3 * E + P + 1) * L;
    const int64_t shared = (3 * E + P + 3 * N + 7 + 8) * L + N;
    int64_t vectors = blocks * per_tape + shared;
    if (with_gradients) vectors += blocks * at->size;
    const size_t align = 64;
    work->memory = malloc(align + sizeof(vec) * (size_t)vectors +
                          sizeof(float) * (size_t)(blocks * E * M) + sizeof(Tape) * (size_t)blocks);
    if (work->memory == NULL) return 1;
    vec *next = (vec *)(((uintptr_t)work->memory + align - 1) / align * align);
#define TAKE(pointer, count) ((pointer) = next, next += (count))
    Scratch *s = &work->scratch;
    TAKE(s->gated, E * L), TAKE(s->g_gated, E * L), TAKE(s->g_u, E * L);
    TAKE(s->g_projected, P * L), TAKE(s->g_normed, N * L), TAKE(s->f, N * L);
    TAKE(s->step, L), TAKE(s->slope, L), TAKE(s->weighted, L), TAKE(s->y, L), TAKE(s->g_y, L);
    TAKE(s->g_step, L), TAKE(s->g_weighted, L), TAKE(s->h, 4 * L), TAKE(s->decay, 4 * L);
    TAKE(work->g_residual, N * L), TAKE(work->total, N);
    work->grad = NULL;
    if (with_gradients) {
        TAKE(work->grad, blocks * at->size);
        memset(work->grad, 0, sizeof(vec) * (size_t)(blocks * at->size));
    }
    vec *of_tapes = next;
    float *scaled_A = (float *)(of_tapes + blocks * per_tape);
    work->tapes = (Tape *)(void *)(scaled_A + (blocks * E * M + 1) / 2 * 2);
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
    return 0;
}
#define open_workspace NAME(open_workspace)

/* Up to LANES adjacent floats; the lanes of rows that do not exist are zero, and stay harmless:
   their derivatives are zero. */
INLINE TARGET vec NAME(load)(const float *from, int64_t rows)
{
    vec value = {0};
    memcpy(&value, from, sizeof(float) * (size_t)(rows < LANES ? rows : LANES));
    return value;
}
#define load NAME(load)

INLINE TARGET void NAME(store)(float *to, vec value, int64_t rows)
{
    memcpy(to, &value, sizeof(float) * (size_t)(rows < LANES ? rows : LANES));
}
#define store NAME(store)

/* The tile's window into the first block's residual stream. */
static TARGET void NAME(load_tile)(const Call *call, const float *window, int64_t rows, vec *to)
{
    for (int64_t n = 0; n < call->clients; n++)
        for (int64_t j = 0; j < call->steps; j++)
            to[n * call->steps + j] =
                load(window + j * call->step_stride + n * call->client_stride, rows);
}
#define load_tile NAME(load_tile)

/* The next block's residual stream: this one's plus the block's output. */
static TARGET void NAME(add_output)(const Call *call, const Workspace *work, int64_t block)
{
    for (int64_t i = 0; i < call->clients * call->steps; i++)
        work->tapes[block + 1].residual[i] = work->tapes[block].residual[i] + work->scratch.f[i];
}
#define add_output NAME(add_output)

static TARGET int NAME(forward)(const Call *call, const float *weights, const float *window,
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

static TARGET int NAME(backward)(const Call *call, const float *weights, const float *window,
                                 const float *grad_output, float *grad_weights, float *grad_window)
{
    const Offsets at = offsets_of(call);
    const int64_t N = call->clients, L = call->steps, last = call->blocks - 1;
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
        memset(work.g_residual, 0, sizeof(vec) * (size_t)(N * L));
        for (int64_t b = last; b >= 0; b--) {
            /* A block's output reaches the network's output at the last step, and later blocks. */
            memcpy(work.scratch.f, work.g_residual, sizeof(vec) * (size_t)(N * L));
            for (int64_t n = 0; n < N; n++) work.scratch.f[n * L + L - 1] += work.total[n];
            block_backward(call, &at, work.tapes + b, &work.scratch, work.grad + b * at.size,
                           work.g_residual);
        }
        if (grad_window != NULL)
            for (int64_t n = 0; n < N; n++)
                for (int64_t j = 0; j < L; j++)
                    store(grad_window + row + j * call->grad_step_stride +
                              n * call->grad_client_stride,
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

#undef vec
#undef ivec
#undef select
#undef exp2_lanes
#undef LOG2_E
#undef LN_2
#undef sigmoid
#undef softplus
#undef matmul
#undef outer
#undef Channel
#undef scan
#undef scan_backward
#undef Tape
#undef Scratch
#undef project
#undef open_channel
#undef finish
#undef block_backward
#undef Workspace
#undef open_workspace
#undef load
#undef store
#undef load_tile
#undef add_output
