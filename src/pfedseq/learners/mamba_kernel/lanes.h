/* The fused Mamba network, forward and backward, for one number of SIMD lanes.

   Every vector holds one scalar of the formulas for LANES rows of D at once, so the code reads like
   the formulas for a single row. A tile of LANES rows goes through the whole network while all its
   intermediate values stay in cache; nothing is stored between forward and backward.

   For one row with residual stream r (N, L), and first = 0, or L - 1 in the last block, whose
   earlier outputs nobody reads:

     n_j      = r_j * inv_rms_j * norm            inv_rms_j = 1 / sqrt(mean(r_j^2) + 1e-5)
     x_j      = in_proj n_j                       its first E rows
     z_j      = in_proj n_j + gate_bias           the others, for j >= first
     c_j      = conv_bias + sum_w conv_weight_w x_{j-W+1+w}
     u_j      = SiLU(c_j)                         SiLU(v) = v sigmoid(v)
     p_j      = x_proj u_j + (0, scan_bias) = (delta_j, B_j, C_j)      C for j >= first
     v_j      = step_proj delta_j + step_bias
     step_j   = softplus(v_j)
     h_j      = exp(step_j A) h_{j-1} + step_j u_j B_j       state (E, M), zero before step 0
     y_j      = <C_j, h_j> + skip u_j             j >= first
     f_j      = out_proj (y_j SiLU(z_j))          j >= first
     next r_j = r_j + f_j

   The network's output is the sum over its blocks of f_{L-1}. In a signed network inv_rms = 1 and
   u = c: what comes in keeps its size and its sign.

   Names: g_q is the derivative of the loss by a value q, grad that by the weights. Arrays over
   channels and steps are laid out [channel][step], each element a vector. Weight gradients are
   summed over tiles as vectors, and over lanes at the end, always in the same order. */

#define vec NAME(vec)
#define ivec NAME(ivec)
#define choose NAME(choose)
#define exp2_lanes NAME(exp2_lanes)
#define sigmoid NAME(sigmoid)
#define softplus NAME(softplus)
#define load NAME(load)
#define store NAME(store)
#define matmul_block NAME(matmul_block)
#define matmul NAME(matmul)
#define outer_block NAME(outer_block)
#define outer NAME(outer)
#define Channel NAME(Channel)
#define scan_states NAME(scan_states)
#define scan NAME(scan)
#define scan_states_backward NAME(scan_states_backward)
#define scan_backward NAME(scan_backward)
#define Tape NAME(Tape)
#define Scratch NAME(Scratch)
#define convolve NAME(convolve)
#define add_bias NAME(add_bias)
#define sum_steps NAME(sum_steps)
#define project NAME(project)
#define open_channel NAME(open_channel)
#define finish NAME(finish)
#define scan_channel_backward NAME(scan_channel_backward)
#define convolution_backward NAME(convolution_backward)
#define norm_backward NAME(norm_backward)
#define block_backward NAME(block_backward)
#define Workspace NAME(Workspace)
#define open_workspace NAME(open_workspace)
#define load_tile NAME(load_tile)
#define add_output NAME(add_output)
#define forward NAME(forward)
#define backward NAME(backward)

#include "vector_math.h"

#include "scan.h"

#include "block.h"

#include "network.h"

#undef vec
#undef ivec
#undef choose
#undef exp2_lanes
#undef sigmoid
#undef softplus
#undef load
#undef store
#undef matmul_block
#undef matmul
#undef outer_block
#undef outer
#undef Channel
#undef scan_states
#undef scan
#undef scan_states_backward
#undef scan_backward
#undef Tape
#undef Scratch
#undef convolve
#undef add_bias
#undef sum_steps
#undef project
#undef open_channel
#undef finish
#undef scan_channel_backward
#undef convolution_backward
#undef norm_backward
#undef block_backward
#undef Workspace
#undef open_workspace
#undef load_tile
#undef add_output
#undef forward
#undef backward
