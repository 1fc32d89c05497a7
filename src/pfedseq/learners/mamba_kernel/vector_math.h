/* Vectors, elementary functions and products with weight matrices; included by lanes.h. */

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef int32_t ivec __attribute__((vector_size(4 * LANES)));

/* Up to LANES adjacent floats. The lanes of rows that do not exist are zero, and harmless: the
   derivatives by their outputs are zero as well. */
INLINE TARGET vec load(const float *from, int64_t rows)
{
    vec value = {0};
    if (rows >= LANES)
        memcpy(&value, from, sizeof(vec));
    else
        memcpy(&value, from, sizeof(float) * (size_t)rows);
    return value;
}

INLINE TARGET void store(float *to, vec value, int64_t rows)
{
    if (rows >= LANES)
        memcpy(to, &value, sizeof(vec));
    else
        memcpy(to, &value, sizeof(float) * (size_t)rows);
}

/* ---- elementary functions: within a few units in the last place; NaN in gives NaN out ---------- */

INLINE TARGET vec choose(ivec condition, vec yes, vec no)
{
    return (vec)(((ivec)yes & condition) | ((ivec)no & ~condition));
}

/* 2^t for t up to 127, with 2^-126 for everything below -126. Adding 1.5 * 2^23 + 127 rounds t to
   an integer k and leaves k + 127, the exponent bits of the float 2^k, at the bottom of the sum;
   the rest is a polynomial on [-1/2, 1/2] of relative error 1e-7 and exact at 0. */
INLINE TARGET vec exp2_lanes(vec t)
{
    const float magic = 12582912.0f + 127.0f;
    t = AT_LEAST((vec){0} - 126.0f, t);
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

#define LOG2_E 1.44269504088896341f
#define LN_2 0.693147180559945309f

/* 1 / (1 + exp(-v)) */
INLINE TARGET vec sigmoid(vec v)
{
    const vec t = v * -LOG2_E;
    return 1.0f / (1.0f + exp2_lanes(choose(t > 126.0f, (vec){0} + 126.0f, t)));
}

/* log(1 + exp(v)), and its derivative sigmoid(v), both to full relative accuracy: with
   w = exp(-|v|) and s = w / (2 + w), log(1 + w) = 2 artanh(s), a polynomial in s^2 times s. */
INLINE TARGET vec softplus(vec v, vec *derivative)
{
    const ivec positive = v > 0.0f;
    const vec w = exp2_lanes(choose(positive, -v, v) * LOG2_E);
    const vec s = w / (2.0f + w);
    const vec q = s * s;
    vec p = q * 0.2817833423614502f + 0.27960601449012756f;
    p = p * q + 0.40024909377098083f;
    p = p * q + 0.6666631698608398f;
    p = p * q + 2.0f;
    *derivative = choose(positive, (vec){0} + 1.0f, w) / (1.0f + w);
    return p * s + choose(positive, v, (vec){0});
}

/* ---- products with weight matrices --------------------------------------------------------------

   Both work in blocks of 4 x 3 vectors held in registers; the sizes of a block are constants after
   inlining. */

INLINE TARGET void matmul_block(const int outs, const int steps, vec *out, const vec *in,
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

/* out[o][j] (+)= sum_i weight[o, i] in[i][j] for steps j >= first. The strides say how the weight
   lies, so that the same code multiplies by a matrix and by its transpose. Steps are the outer
   loop: three steps of the input fit in the first-level cache for any N. */
static TARGET void matmul(vec *out, const vec *in, const float *weight, int64_t outs, int64_t ins,
                          int64_t out_stride, int64_t in_stride, int64_t L, int64_t first,
                          int accumulate)
{
#define BLOCK(O, J)                                                                              \
    matmul_block(O, J, out + o * L + j, in + j, weight + o * out_stride, out_stride, in_stride,  \
                 ins, L, accumulate)
    int64_t j = first;
    for (; j + 3 <= L; j += 3) {
        int64_t o = 0;
        for (; o + 4 <= outs; o += 4) BLOCK(4, 3);
        for (; o < outs; o++) BLOCK(1, 3);
    }
    for (; j < L; j++) {
        int64_t o = 0;
        for (; o + 4 <= outs; o += 4) BLOCK(4, 1);
        for (; o < outs; o++) BLOCK(1, 1);
    }
#undef BLOCK
}

INLINE TARGET void outer_block(const int outs, const int ins, vec *grad, const vec *g_out,
                               const vec *in, int64_t row_length, int64_t L, int64_t first)
{
    vec sum[4][3];
#pragma GCC unroll 4
    for (int o = 0; o < outs; o++)
#pragma GCC unroll 3
        for (int i = 0; i < ins; i++) sum[o][i] = grad[o * row_length + i];
    for (int64_t j = first; j < L; j++) {
#pragma GCC unroll 4
        for (int o = 0; o < outs; o++)
#pragma GCC unroll 3
            for (int i = 0; i < ins; i++) sum[o][i] += g_out[o * L + j] * in[i * L + j];
    }
#pragma GCC unroll 4
    for (int o = 0; o < outs; o++)
#pragma GCC unroll 3
        for (int i = 0; i < ins; i++) grad[o * row_length + i] = sum[o][i];
}

/* grad[o][i] += sum_{j >= first} g_out[o][j] in[i][j] */
static TARGET void outer(vec *grad, const vec *g_out, const vec *in, int64_t outs, int64_t ins,
                         int64_t L, int64_t first)
{
#define BLOCK(O, I) outer_block(O, I, grad + o * ins + i, g_out + o * L, in + i * L, ins, L, first)
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
