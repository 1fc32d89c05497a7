/* The fused Mamba network for the CPU: entry points and the choice of instruction set.

   `lanes.h` is the kernel and states the formulas. It is compiled here once per instruction set,
   each time with another number of lanes, and the caller names the variant it wants (see
   fused_mamba.py). GNU vector extensions are used throughout, so GCC and Clang compile it for any
   processor; the baseline variant is what arm64, and x86-64 without AVX2, use. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#define X86 1
#else
#define X86 0
#endif

#define INLINE static inline __attribute__((always_inline))

/* The sizes of one network and of one call; fused_mamba.py mirrors this struct field by field. */
typedef struct {
    int64_t blocks;   /* Mamba blocks in the network */
    int64_t clients;  /* N: channels of the residual stream */
    int64_t channels; /* E: inner channels of a block */
    int64_t states;   /* M: states per inner channel */
    int64_t rank;     /* R: rank of the step size's projection */
    int64_t width;    /* W: taps of the causal convolution */
    int64_t steps;    /* L */
    int64_t rows;     /* rows of D in this call */
    int64_t is_signed; /* whether the block keeps the sign and size of its input: lanes.h */
    /* A window's element (row, step, client) is at row + step * step_stride + client *
       client_stride: rows are adjacent. So are those of the output, element (row, client), of the
       derivative by it, which has the same strides, and of the derivative by the window. */
    int64_t step_stride, client_stride;
    int64_t output_client_stride;
    int64_t grad_step_stride, grad_client_stride;
} Call;

/* Where each weight of a block begins in the packed block, in the order of `BlockWeights`. */
typedef struct {
    int64_t norm;        /* (N)         */
    int64_t in_proj;     /* (2E, N)     first the rows of x, then those of z */
    int64_t gate_bias;   /* (E)         */
    int64_t conv_weight; /* (E, W)      */
    int64_t conv_bias;   /* (E)         */
    int64_t x_proj;      /* (R + 2M, E) first the rows of delta, then of B, then of C */
    int64_t scan_bias;   /* (2M)        first of B, then of C */
    int64_t step_proj;   /* (E, R)      */
    int64_t step_bias;   /* (E)         */
    int64_t A;           /* (E, M)      negative */
    int64_t skip;        /* (E)         */
    int64_t out_proj;    /* (N, E)      */
    int64_t size;        /* of the whole block */
} Offsets;

static Offsets offsets_of(const Call *call)
{
    const int64_t N = call->clients, E = call->channels, M = call->states;
    const int64_t R = call->rank, W = call->width;
    Offsets at;
    at.norm = 0;
    at.in_proj = at.norm + N;
    at.gate_bias = at.in_proj + 2 * E * N;
    at.conv_weight = at.gate_bias + E;
    at.conv_bias = at.conv_weight + E * W;
    at.x_proj = at.conv_bias + E;
    at.scan_bias = at.x_proj + (R + 2 * M) * E;
    at.step_proj = at.scan_bias + 2 * M;
    at.step_bias = at.step_proj + E * R;
    at.A = at.step_bias + E;
    at.skip = at.A + E * M;
    at.out_proj = at.skip + E;
    at.size = at.out_proj + N * E;
    return at;
}

/* Per variant: LANES, TARGET (the functions' instruction set), NAME (their suffix), and
   AT_LEAST(low, t), the larger of the two, or t where t is NaN. */
#define LANES 4
#define TARGET
#define NAME(name) name##_baseline
#define AT_LEAST(low, t) choose((t) < (low), (low), (t))
#include "lanes.h"
#undef LANES
#undef TARGET
#undef NAME
#undef AT_LEAST

#if X86
#define LANES 8
#define TARGET __attribute__((target("avx2,fma")))
#define NAME(name) name##_avx2
#define AT_LEAST(low, t) ((vec)_mm256_max_ps((__m256)(low), (__m256)(t)))
#include "lanes.h"
#undef LANES
#undef TARGET
#undef NAME
#undef AT_LEAST

#define LANES 16
#define TARGET __attribute__((target("avx512f,avx512dq")))
#define NAME(name) name##_avx512
#define AT_LEAST(low, t) ((vec)_mm512_max_ps((__m512)(low), (__m512)(t)))
#include "lanes.h"
#undef LANES
#undef TARGET
#undef NAME
#undef AT_LEAST
#endif

enum { BASELINE = 0, AVX2 = 1, AVX512 = 2 };

/* The best variant that this processor runs; every lower one runs as well. */
int pfedseq_best_variant(void)
{
#if X86
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq")) return AVX512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return AVX2;
#endif
    return BASELINE;
}

/* The size of `Call`, by which the caller notices a library that is not of its version. */
int pfedseq_call_bytes(void)
{
    return (int)sizeof(Call);
}

/* Numbers below 1e-38 are flushed to zero while the kernel runs: states that decay towards zero
   pass through that range, where some processors are a hundred times slower. NaN is untouched. */
static unsigned flush_tiny_numbers(void)
{
#if X86
    const unsigned before = _mm_getcsr();
    _mm_setcsr(before | 0x8040);
    return before;
#else
    return 0;
#endif
}

static void restore_tiny_numbers(unsigned before)
{
#if X86
    _mm_setcsr(before);
#else
    (void)before;
#endif
}

/* output (N, rows): the sum of the blocks' outputs at the last step. Returns 0, or 1 if memory is
   short. */
int pfedseq_mamba_forward(int variant, const Call *call, const float *weights,
                          const float *window, float *output)
{
    const unsigned before = flush_tiny_numbers();
    int failed;
    switch (variant) {
#if X86
    case AVX512: failed = forward_avx512(call, weights, window, output); break;
    case AVX2: failed = forward_avx2(call, weights, window, output); break;
#endif
    default: failed = forward_baseline(call, weights, window, output);
    }
    restore_tiny_numbers(before);
    return failed;
}

/* grad_weights: as packed as the weights, summed over this call's rows. grad_window: NULL where
   it is not wanted. Returns 0, or 1 if memory is short. */
int pfedseq_mamba_backward(int variant, const Call *call, const float *weights,
                           const float *window, const float *grad_output, float *grad_weights,
                           float *grad_window)
{
    const unsigned before = flush_tiny_numbers();
    int failed;
    switch (variant) {
#if X86
    case AVX512:
        failed = backward_avx512(call, weights, window, grad_output, grad_weights, grad_window);
        break;
    case AVX2:
        failed = backward_avx2(call, weights, window, grad_output, grad_weights, grad_window);
        break;
#endif
    default:
        failed = backward_baseline(call, weights, window, grad_output, grad_weights, grad_window);
    }
    restore_tiny_numbers(before);
    return failed;
}

/* Build tools expect this symbol of an extension module; ours is opened by ctypes instead. */
void *PyInit__mamba_kernel(void);
void *PyInit__mamba_kernel(void)
{
    return NULL;
}
