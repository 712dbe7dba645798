// A 3 x 3 convolution, bias, ReLU, and max pooling where POOL says so, on tensor cores of Hopper.
//
// `convolution.py` lays before it BN (output channels of a tile), POOL, CEIL, IN8 and OUT8 (eight-bit floats), KEEP (all
// weights stay in shared memory), A_STAGES and B_STAGES (pieces of pictures and weights on their way), and
// product(acc, a, b, add), (64, k) x (k, BN) -> (64, BN), for BN and the kind of numbers.

// --- what Hopper offers: barriers, the copy engine, operands of its products ------------------------------------------

struct alignas(64) TensorMap { u64 words[16]; };  // CUtensorMap: where and how the copy engine finds a tile

__device__ u32 shared(const void* pointer) { return (u32)__cvta_generic_to_shared(pointer); }

__device__ void start_barrier(u32 barrier, u32 count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count));
}
__device__ void expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ void arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ void wait(u32 barrier, u32 parity) {
    u32 done;
    do {
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
    } while (!done);
}
__device__ void fetch(const TensorMap& map, u32 to, u32 barrier, int c, int x, int y, int n) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2];"
                 ::"r"(to), "l"(&map), "r"(barrier), "r"(c), "r"(x), "r"(y), "r"(n) : "memory");
}
__device__ void put(const TensorMap& map, u32 from, int c, int x, int y, int n) {
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];"
                 ::"l"(&map), "r"(from), "r"(c), "r"(x), "r"(y), "r"(n) : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
__device__ u64 operand(u32 address, u32 stride) {  // rows of 128 swizzled bytes; `stride` bytes from 8 rows to the next 8
    return (u64)(address >> 4 & 0x3FFF) | (u64)1 << 16 | (u64)(stride >> 4) << 32 | (u64)1 << 62;
}

// --- the convolution --------------------------------------------------------------------------------------------------

#define LINE 128                                   // bytes of one place or one output channel: 64 bf16 or 128 fp8 channels
#define A_BYTES ((TILE + 2) * TILE * LINE)         // a tile and the rows above and below it
#define B_BYTES (BN * LINE)
#define ROUND (OUT8 ? 128 : 64)                    // output channels of one line
#define ROUNDS (BN / ROUND)
#define OUT_BYTES ((POOL ? 4 * 8 : 8 * 16) * LINE)

struct Word { u32 part[OUT8 + 1]; };  // two bf16 channels at one place, or four that will be fp8

__device__ u32 larger(u32 one, u32 other) {
    u32 both;
    asm("max.bf16x2 %0, %1, %2;" : "=r"(both) : "r"(one), "r"(other));
    return both;
}
__device__ u32 narrowed(Word word) {  // as it is stored
    u32 result = word.part[0];
    if (OUT8) {
        u16 half[2];
        for (int i = 0; i < OUT8 + 1; i++)
            asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(half[i])
                : "f"(__uint_as_float(word.part[i] & 0xFFFF0000u)), "f"(__uint_as_float(word.part[i] << 16)));
        result = half[0] | (u32)half[1] << 16;
    }
    return result;
}
__device__ void store(u32 address, u32 word) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(word) : "memory");
}

// One line of channels of a group's 8 x 16 places: scale, bias, ReLU, nothing beyond the border; pooled where POOL says so.
__device__ void write_round(float (&acc)[2][BN / 2], u32 out, int round, const float2* scale_and_bias, Place p, int top,
                            int warp, int row, int pair) {
    const int parts = OUT8 + 1;
    #pragma unroll
    for (int i = 0; i < 2; i++) {
        Word kept[2];  // of two neighbouring words, before they are pooled across
        const int x = p.x + 8 * i + row;
        #pragma unroll
        for (int b = 0; b < 8; b++) {
            Word word[2];  // at rows `top` and `top + 1`
            #pragma unroll
            for (int part = 0; part < parts; part++) {
                const int at = (8 * round + b) * parts + part;
                float4 f = *(const float4*)(scale_and_bias + 8 * at + 2 * pair);
                #pragma unroll
                for (int j = 0; j < 2; j++) {
                    bool inside = x < p.width && top + j < p.height;
                    float first = fmaxf(acc[i][4 * at + 2 * j] * f.x + f.y, 0.f);
                    float second = fmaxf(acc[i][4 * at + 2 * j + 1] * f.z + f.w, 0.f);
                    word[j].part[part] = inside ? pack(first, second) : 0;
                }
            }
            if (!POOL)
                #pragma unroll
                for (int j = 0; j < 2; j++)
                    store(out + ((2 * warp + j) * TILE + 8 * i + row) * LINE + (b ^ row) * 16 + pair * 4, narrowed(word[j]));
            if (POOL)
                #pragma unroll
                for (int part = 0; part < parts; part++) kept[b % 2].part[part] = larger(word[0].part[part], word[1].part[part]);
            if (POOL && b % 2 == 1) {  // the left neighbour keeps the first word of the two, the right one the second
                const int odd = row % 2, which = b - 1 + odd, place = warp * 8 + 4 * i + row / 2;
                bool inside = p.x / 2 + 4 * i + row / 2 < (p.width + CEIL) / 2 && top / 2 < (p.height + CEIL) / 2;
                Word whole;
                #pragma unroll
                for (int part = 0; part < parts; part++) {
                    u32 other = __shfl_xor_sync(~0u, odd ? kept[0].part[part] : kept[1].part[part], 4);
                    whole.part[part] = inside ? larger(odd ? kept[1].part[part] : kept[0].part[part], other) : 0;
                }
                store(out + place * LINE + (which ^ place % 8) * 16 + pair * 4, narrowed(whole));
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(384, 1) convolve(
    const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap w, const __grid_constant__ TensorMap y,
    const float2* scale_and_bias, const Level* levels, int pictures, int tiles, int blocks, int steps) {
    extern __shared__ u8 raw[];
    __shared__ alignas(8) u64 barriers[2 * (A_STAGES + B_STAGES)];
    __shared__ Level table[256];
    u32 memory = (shared(raw) + 1023) & ~1023u;
    u32 a = memory, b = a + A_STAGES * A_BYTES, out = b + B_STAGES * B_BYTES;
    u32 a_full = shared(barriers), a_empty = a_full + 8 * A_STAGES;
    u32 b_full = a_empty + 8 * A_STAGES, b_empty = b_full + 8 * B_STAGES;
    if (threadIdx.x == 0) {
        for (int s = 0; s < A_STAGES; s++) { start_barrier(a_full + 8 * s, 1); start_barrier(a_empty + 8 * s, 8); }
        for (int s = 0; s < B_STAGES; s++) { start_barrier(b_full + 8 * s, 1); start_barrier(b_empty + 8 * s, 8); }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    for (int i = threadIdx.x; i < pictures; i += blockDim.x) table[i] = levels[i];
    __syncthreads();

    if (threadIdx.x < 128) {  // one thread fetches for all
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x != 0) return;
        int ai = 0, bi = 0;
        u32 a_turn = 1, b_turn = 1;  // the first round finds all stages empty
        for (int t = blockIdx.x; t < tiles; t += gridDim.x) {
            Place p = place_of(table, pictures, t / blocks);
            if (p.y >= p.height || p.x >= p.width) continue;
            for (int c = 0; c < steps; c++)
                for (int dx = 0; dx < 3; dx++) {
                    wait(a_empty + 8 * ai, a_turn);
                    expect(a_full + 8 * ai, A_BYTES);
                    fetch(x, a + ai * A_BYTES, a_full + 8 * ai, c * (IN8 ? 128 : 64), p.x + dx - 1, p.y - 1, p.picture);
                    if (++ai == A_STAGES) { ai = 0; a_turn ^= 1; }
                    for (int dy = 0; dy < 3 && !(KEEP && b_turn == 0); dy++) {
                        if (!KEEP) wait(b_empty + 8 * bi, b_turn);
                        expect(b_full + 8 * bi, B_BYTES);
                        fetch(w, b + bi * B_BYTES, b_full + 8 * bi, c * (IN8 ? 128 : 64), t % blocks * BN, dy * 3 + dx, 0);
                        if (++bi == B_STAGES) { bi = 0; b_turn ^= 1; }
                    }
                }
        }
        return;
    }

    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    const int group = threadIdx.x / 128 - 1, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    const int row = lane / 4, pair = lane % 4;
    out += group * ROUNDS * OUT_BYTES;
    float acc[2][BN / 2];  // two halves of 8 x 8 places; [4 b + 2 j + e] is channel 8 b + 2 pair + e at row 2 warp + j
    int ai = 0, bi = 0;
    u32 a_turn = 0, b_turn = 0;
    for (int t = blockIdx.x; t < tiles; t += gridDim.x) {
        Place p = place_of(table, pictures, t / blocks);
        if (p.y < p.height && p.x < p.width) {
            int done = -1, done_a = -1;  // stages whose products may still be running
            for (int step = 0; step < 3 * steps; step++) {
                wait(a_full + 8 * ai, a_turn);
                for (int dy = 0; dy < 3; dy++) {
                    wait(b_full + 8 * bi, KEEP ? 0 : b_turn);
                    u64 left = operand(a + ai * A_BYTES + (8 * group + dy) * TILE * LINE, TILE * LINE);
                    u64 right = operand(b + bi * B_BYTES, 8 * LINE);
                    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
                    for (int k = 0; k < 4; k++)
                        for (int i = 0; i < 2; i++)
                            product(acc[i], left + 2 * k + 64 * i, right + 2 * k, step + dy + k != 0);
                    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
                    asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
                    if (lane == 0 && done >= 0 && !KEEP) arrive(b_empty + 8 * done);
                    if (lane == 0 && done_a >= 0) arrive(a_empty + 8 * done_a);
                    done = bi;
                    done_a = dy == 2 ? ai : -1;
                    if (++bi == B_STAGES) { bi = 0; b_turn ^= 1; }
                }
                if (++ai == A_STAGES) { ai = 0; a_turn ^= 1; }
            }
            asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
            #pragma unroll
            for (int i = 0; i < BN; i++) asm volatile("" : "+f"(acc[i % 2][i / 2])::"memory");  // not read before that
            if (lane == 0 && !KEEP) arrive(b_empty + 8 * done);
            if (lane == 0) arrive(a_empty + 8 * done_a);
        }
        const int channel = t % blocks * BN, top = p.y + 8 * group + 2 * warp;
        for (int r = 0; r < ROUNDS; r++) {
            u32 here = out + r * OUT_BYTES;
            if (threadIdx.x % 128 == 0) asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(ROUNDS - 1) : "memory");
            asm volatile("bar.sync %0, 128;" ::"r"(1 + group) : "memory");
            write_round(acc, here, r, scale_and_bias + channel, p, top, warp, row, pair);
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
            asm volatile("bar.sync %0, 128;" ::"r"(1 + group) : "memory");
            if (threadIdx.x % 128 == 0) {
                if (POOL) put(y, here, channel + r * ROUND, p.x / 2, p.y / 2 + 4 * group, p.picture);
                else put(y, here, channel + r * ROUND, p.x, p.y + 8 * group, p.picture);
            }
        }
    }
    if (threadIdx.x % 128 == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
