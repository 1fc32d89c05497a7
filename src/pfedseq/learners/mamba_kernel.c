/* The fused Mamba network for the CPU: entry points and the choice of instruction set.

   `mamba_kernel_lanes.h` is the kernel. It is compiled here once per instruction set, each time
   with another number of lanes, and the caller names the variant it wants (see fused_mamba.py).
   GNU vector extensions are used throughout, so GCC and Clang compile it on any processor; the
   baseline variant is what x86-64 without AVX2, and arm64, use. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#define HAS_X86_VARIANTS 1
#else
#define HAS_X86_VARIANTS 0
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
    int64_t conv_weight; /* (E, W)      */
    int64_t conv_bias;   /* (E)         */
    int64_t x_proj;      /* (R + 2M, E) first the rows of delta, then of B, then of C */
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
    at.conv_weight = at.in_proj + 2 * E * N;
    at.conv_bias = at.conv_weight + E * W;
    at.x_proj = at.conv_bias + E;
    at.step_proj = at.x_proj + (R + 2 * M) * E;
    at.step_bias = at.step_proj + E * R;
    at.A = at.step_bias + E;
    at.skip = at.A + E * M;
    at.out_proj = at.skip + E;
    at.size = at.out_proj + N * E;
    return at;
}

/* Numbers below 1e-38 are flushed to zero while the kernel runs: states that decay towards zero
   pass through that range, where some processors are a hundred times slower. NaN is untouched. */
static uint32_t flush_tiny_numbers(void)
{
#if HAS_X86_VARIANTS
    const uint32_t before = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(before | 0x8040);
    return before;
#else
    return 0;
#endif
}

static void restore_tiny_numbers(uint32_t before)
{
#if HAS_X86_VARIANTS
    __builtin_ia32_ldmxcsr(before);
#else
    (void)before;
#endif
}

#define LANES 4
#define TARGET
#define NAME(name) name##_baseline
#include "mamba_kernel_lanes.h"
#undef LANES
#undef TARGET
#undef NAME

#if HAS_X86_VARIANTS
#define LANES 8
#define TARGET __attribute__((target("avx2,fma")))
#define NAME(name) name##_avx2
#include "mamba_kernel_lanes.h"
#undef LANES
#undef TARGET
#undef NAME

#define LANES 16
#define TARGET __attribute__((target("avx512f,avx512dq")))
#define NAME(name) name##_avx512
#include "mamba_kernel_lanes.h"
#undef LANES
#undef TARGET
#undef NAME
#endif

enum { BASELINE = 0, AVX2 = 1, AVX512 = 2 };

/* The best variant that this processor runs; every lower one runs as well. */
int pfedseq_best_variant(void)
{
#if HAS_X86_VARIANTS
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq")) return AVX512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return AVX2;
#endif
    return BASELINE;
}

/* output (N, rows): the sum of the blocks' outputs at the last step. Returns 0, or 1 if memory is
   short. */
int pfedseq_mamba_forward(int variant, const Call *call, const float *weights,
                          const float *window, float *output)
{
    const uint32_t before = flush_tiny_numbers();
    int failed;
    switch (variant) {
#if HAS_X86_VARIANTS
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
    const uint32_t before = flush_tiny_numbers();
    int failed;
    switch (variant) {
#if HAS_X86_VARIANTS
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
