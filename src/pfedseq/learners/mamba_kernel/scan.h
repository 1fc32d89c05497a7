/* The selective scan of one channel, forward and backward; included by lanes.h.

   Backward, per state and from the last step to the first, with decay_j = exp(step_j A) and
   weighted_j = step_j u_j:

     g_h         += C_j g_y,j
     g_C,j       += h_j g_y,j
     g_B,j       += weighted_j g_h
     g_weighted,j += B_j g_h
     g_h          = decay_j g_h                  from here on the derivative by h_{j-1}
     grad_A      += step_j h_{j-1} g_h
     g_step,j    += A h_{j-1} g_h

   The h_j and decay_j are computed again, for four states of the channel at a time. */

typedef struct {
    int64_t L, first;
    const float *A;             /* (M), times log2(e), so that exp(step A) = 2^(step A) */
    const vec *B, *C;           /* [M][L] */
    const vec *step, *weighted; /* (L) */
    vec *y;                     /* (L) <C_j, h_j> is added for j >= first */
    /* Backward only: all but g_y are added to. */
    const vec *g_y;           /* (L) for j >= first */
    vec *g_step, *g_weighted; /* (L) g_step comes out divided by ln 2, since A is scaled */
    vec *g_B, *g_C;           /* [M][L] */
    vec *grad_A;              /* (M) */
    vec *h, *decay;           /* [L][4] scratch */
} Channel;

/* States m to m + states - 1. The first step needs no decay. */
INLINE TARGET void scan_states(const int states, const Channel *channel, int64_t m)
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

static TARGET void scan(const Channel *channel, int64_t M)
{
    int64_t m = 0;
    for (; m + 4 <= M; m += 4) scan_states(4, channel, m);
    for (; m < M; m++) scan_states(1, channel, m);
}

INLINE TARGET void scan_states_backward(const int states, const Channel *channel, int64_t m)
{
    const int64_t L = channel->L, first = channel->first;
    const vec *B = channel->B + m * L, *C = channel->C + m * L;
    vec *g_B = channel->g_B + m * L, *g_C = channel->g_C + m * L;
    vec h[4], g_h[4], grad_A[4];

#pragma GCC unroll 4
    for (int s = 0; s < states; s++) channel->h[s] = h[s] = channel->weighted[0] * B[s * L];
    for (int64_t j = 1; j < L; j++) {
        const vec step = channel->step[j], weighted = channel->weighted[j];
#pragma GCC unroll 4
        for (int s = 0; s < states; s++) {
            const vec decay = exp2_lanes(step * channel->A[m + s]);
            h[s] = decay * h[s] + weighted * B[s * L + j];
            channel->decay[j * 4 + s] = decay;
            channel->h[j * 4 + s] = h[s];
        }
    }
#pragma GCC unroll 4
    for (int s = 0; s < states; s++) g_h[s] = grad_A[s] = (vec){0};
    for (int64_t j = L - 1;; j--) {
        if (j >= first) {
            const vec g_y = channel->g_y[j];
            vec y = channel->y[j];
#pragma GCC unroll 4
            for (int s = 0; s < states; s++) {
                const vec C_j = C[s * L + j], h_j = channel->h[j * 4 + s];
                y += C_j * h_j;
                g_C[s * L + j] += g_y * h_j;
                g_h[s] += g_y * C_j;
            }
            channel->y[j] = y;
        }
        const vec weighted = channel->weighted[j];
        vec g_weighted = channel->g_weighted[j];
#pragma GCC unroll 4
        for (int s = 0; s < states; s++) {
            g_weighted += g_h[s] * B[s * L + j];
            g_B[s * L + j] += g_h[s] * weighted;
        }
        channel->g_weighted[j] = g_weighted;
        if (j == 0) break;

        const vec step = channel->step[j];
        vec g_step = channel->g_step[j];
#pragma GCC unroll 4
        for (int s = 0; s < states; s++) {
            g_h[s] *= channel->decay[j * 4 + s];
            const vec g_exponent = g_h[s] * channel->h[(j - 1) * 4 + s];
            grad_A[s] += g_exponent * step;
            g_step += g_exponent * channel->A[m + s];
        }
        channel->g_step[j] = g_step;
    }
#pragma GCC unroll 4
    for (int s = 0; s < states; s++) channel->grad_A[m + s] += grad_A[s];
}

static TARGET void scan_backward(const Channel *channel, int64_t M)
{
    int64_t m = 0;
    for (; m + 4 <= M; m += 4) scan_states_backward(4, channel, m);
    for (; m < M; m++) scan_states_backward(1, channel, m);
}
