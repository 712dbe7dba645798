// VGG on Hopper GPUs: a first convolution, 3 x 3 convolutions with bias, ReLU and pooling in one pass, and CroW's sums.
//
// A batch holds pictures of any sizes. Each has a canvas of its own, (rows, columns, channels), as large as the largest
// picture needs; what lies beyond a picture's own border is written as zeros, which is what its convolutions must see there.
// Work is cut into tiles of 16 x 16 places; `Level` says where each picture's tiles begin. No header is needed: NVRTC
// compiles this file as it is, with BN (output channels of a tile), POOL, CEIL, IN8 and OUT8 (eight-bit floats), KEEP
// (all weights stay in shared memory), A_STAGES and B_STAGES (pieces of pictures and weights on their way) set.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

struct alignas(64) TensorMap { u64 words[16]; };  // CUtensorMap: where and how the copy engine finds a tile
struct Level { int start, across, height, width; };  // of one picture: its first tile, tiles in a row, its size here
struct Place { int picture, y, x, height, width; };  // of a tile

#define TILE 16

__device__ Place place_of(const Level* levels, int pictures, int tile) {
    int low = 0, high = pictures - 1;
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (levels[middle].start <= tile) low = middle; else high = middle - 1;
    }
    Level level = levels[low];
    int at = tile - level.start;
    return {low, at / level.across * TILE, at % level.across * TILE, level.height, level.width};
}

__device__ u32 pack(float low, float high) {  // two floats -> two bfloat16
    u32 both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

// --- what Hopper offers: barriers, the copy engine, products of warp groups -----------------------------------------

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

// PRODUCT: product(acc, a, b, add), (64, k) x (k, BN) -> (64, BN); `cuda.py` writes it for BN and the kind of numbers

// --- 3 x 3 convolution, bias, ReLU, and max pooling where POOL says so ----------------------------------------------

#ifdef BN
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
            if (!POOL) {
                #pragma unroll
                for (int j = 0; j < 2; j++)
                    store(out + ((2 * warp + j) * TILE + 8 * i + row) * LINE + (b ^ row) * 16 + pair * 4, narrowed(word[j]));
                continue;
            }
            #pragma unroll
            for (int part = 0; part < parts; part++) kept[b % 2].part[part] = larger(word[0].part[part], word[1].part[part]);
            if (b % 2 == 1) {  // the left neighbour keeps the first word of the two, the right one the second
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
#endif

// --- the first convolution: whole numbers in, 64 channels out --------------------------------------------------------

#ifndef BN
struct Picture { u64 start; int across, down, channel; };  // of its pixels: address, and steps to the next x, y, channel

// Pixels lose the mean's whole part, so bf16 holds them exactly; a fourth channel of ones carries what is after the point.
extern "C" __global__ void __launch_bounds__(256) first(
    const Picture* pictures, int3 mean, const uint2* weights, const float* bias, u16* y, int rows, int columns,
    const Level* levels, int count, int tiles) {
    const int side = TILE + 2, warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = lane / 4, pair = lane % 4;
    __shared__ uint2 pixels[side * side];
    uint2 w[24];  // 3 x 16 inputs (9 places, 4 channels, the rest nothing) to 8 x 8 channels
    for (int i = 0; i < 24; i++) w[i] = weights[i * 32 + lane];
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        Place p = place_of(levels, count, tile);
        Picture picture = pictures[p.picture];
        __syncthreads();
        for (int i = threadIdx.x; i < side * side; i += blockDim.x) {
            int py = p.y + i / side - 1, px = p.x + i % side - 1;
            uint2 four = {0, 0};
            if (py >= 0 && px >= 0 && py < p.height && px < p.width) {
                const u8* pixel = (const u8*)picture.start + (u64)py * picture.down + (u64)px * picture.across;
                four.x = pack((float)((int)pixel[0] - mean.x), (float)((int)pixel[picture.channel] - mean.y));
                four.y = pack((float)((int)pixel[2 * picture.channel] - mean.z), 1.f);
            }
            pixels[i] = four;
        }
        __syncthreads();
        for (int r = 0; r < 2; r++) {
            const int py = 2 * warp + r;
            float acc[8][4] = {};
            #pragma unroll
            for (int s = 0; s < 3; s++) {
                u32 a[4];
                #pragma unroll
                for (int part = 0; part < 4; part++) {  // rows 0 to 7, 8 to 15, then the same with inputs 8 to 15
                    int tap = 4 * s + pair / 2 + 2 * (part / 2);
                    const uint2& four = pixels[(py + tap / 3) * side + row + 8 * (part % 2) + tap % 3];
                    a[part] = tap > 8 ? 0 : pair % 2 ? four.y : four.x;
                }
                #pragma unroll
                for (int b = 0; b < 8; b++)
                    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                        : "+f"(acc[b][0]), "+f"(acc[b][1]), "+f"(acc[b][2]), "+f"(acc[b][3])
                        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(w[8 * s + b].x), "r"(w[8 * s + b].y));
            }
            #pragma unroll
            for (int j = 0; j < 2; j++) {
                int oy = p.y + py, ox = p.x + row + 8 * j;
                bool inside = oy < p.height && ox < p.width;
                u32 out[8];
                #pragma unroll
                for (int b = 0; b < 8; b++) {
                    float2 add = *(const float2*)(bias + 16 * pair + 2 * b);
                    u32 two = pack(fmaxf(acc[b][2 * j] + add.x, 0.f), fmaxf(acc[b][2 * j + 1] + add.y, 0.f));
                    out[b] = inside ? two : 0;
                }
                if (oy < rows && ox < columns) {
                    uint4* to = (uint4*)(y + (((u64)p.picture * rows + oy) * columns + ox) * 64 + 16 * pair);
                    to[0] = make_uint4(out[0], out[1], out[2], out[3]);
                    to[1] = make_uint4(out[4], out[5], out[6], out[7]);
                }
            }
        }
    }
}

// --- CroW's sums: one pass over the map -------------------------------------------------------------------------------

#define K 512
#define CHUNK 64  // places that one block sums; they are cut by the picture alone, so its vector is always the same

// Per chunk of a picture: K weighted sums, K counts of places where a channel fires, and the sum of S' ^ a.
extern "C" __global__ void __launch_bounds__(256) sums(
    const u16* x, int rows, int columns, const Level* levels, int pool, int ceil, int weigh, float a, float root,
    float* partial, int chunks) {
    __shared__ float sum[8][K];
    __shared__ float fires[8][K];
    __shared__ float norms[8];
    const int picture = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    Level level = levels[picture];
    const int height = (level.height + (pool - 1) * ceil) / pool, width = (level.width + (pool - 1) * ceil) / pool;
    float v[16] = {}, q[16] = {}, norm = 0;
    for (int i = 0; i < CHUNK / 8; i++) {
        int place = blockIdx.x * CHUNK + i * 8 + warp;
        if (place >= height * width) break;
        float most[16] = {};
        for (int dy = 0; dy < pool; dy++)
            for (int dx = 0; dx < pool; dx++) {
                int py = place / width * pool + dy, px = place % width * pool + dx;
                if (py >= level.height || px >= level.width) continue;
                const u16* at = x + (((u64)picture * rows + py) * columns + px) * K;
                for (int half = 0; half < 2; half++) {
                    uint4 eight = *(const uint4*)(at + half * 256 + lane * 8);
                    u32 words[4] = {eight.x, eight.y, eight.z, eight.w};
                    #pragma unroll
                    for (int c = 0; c < 4; c++) {
                        most[half * 8 + 2 * c] = fmaxf(most[half * 8 + 2 * c], __uint_as_float(words[c] << 16));
                        most[half * 8 + 2 * c + 1] = fmaxf(most[half * 8 + 2 * c + 1], __uint_as_float(words[c] & 0xFFFF0000u));
                    }
                }
            }
        float total = 0;
        for (int c = 0; c < 16; c++) total += most[c];
        for (int other = 16; other; other /= 2) total += __shfl_xor_sync(~0u, total, other);
        float s = weigh ? (total > 0 ? powf(total, root) : 0.f) : 1.f;
        norm = isinf(a) ? fmaxf(norm, total) : norm + (total > 0 ? powf(total, a) : 0.f);
        for (int c = 0; c < 16; c++) { v[c] += s * most[c]; q[c] += most[c] > 0; }
    }
    for (int c = 0; c < 16; c++) {
        int channel = c / 8 * 256 + lane * 8 + c % 8;
        sum[warp][channel] = v[c];
        fires[warp][channel] = q[c];
    }
    if (lane == 0) norms[warp] = norm;
    __syncthreads();
    float* to = partial + ((u64)picture * chunks + blockIdx.x) * (2 * K + 1);
    for (int c = threadIdx.x; c < K; c += blockDim.x) {
        float total = 0, count = 0;
        for (int other = 0; other < 8; other++) { total += sum[other][c]; count += fires[other][c]; }
        to[c] = total;
        to[K + c] = count;
    }
    if (threadIdx.x == 0) {
        float total = 0;
        for (int other = 0; other < 8; other++) total = isinf(a) ? fmaxf(total, norms[other]) : total + norms[other];
        to[2 * K] = total;
    }
}

// The chunks of a picture together, in their order: K weighted sums, K shares of places, and the sum of S' ^ a.
extern "C" __global__ void __launch_bounds__(K) together(
    const float* partial, int chunks, const Level* levels, int pool, int ceil, int largest, float* result) {
    Level level = levels[blockIdx.x];
    const int places = ((level.height + (pool - 1) * ceil) / pool) * ((level.width + (pool - 1) * ceil) / pool);
    float v = 0, q = 0, norm = 0;
    for (int chunk = 0; chunk < (places + CHUNK - 1) / CHUNK; chunk++) {
        const float* from = partial + ((u64)blockIdx.x * chunks + chunk) * (2 * K + 1);
        v += from[threadIdx.x];
        q += from[K + threadIdx.x];
        norm = largest ? fmaxf(norm, from[2 * K]) : norm + from[2 * K];
    }
    float* to = result + (u64)blockIdx.x * (2 * K + 1);
    to[threadIdx.x] = v;
    to[K + threadIdx.x] = q / places;
    if (threadIdx.x == 0) to[2 * K] = norm;
}

// --- JPEG planes to pixels, digit by digit as libjpeg makes them -----------------------------------------------------

struct File { u64 planes[3], pixels; int pitch[2], width, height, across, down; };  // of one picture

// A halved plane at a pixel: three parts of the nearest sample and one of the next, across and down; at the border itself.
__device__ int blended(const u8* plane, const File& file, int y, int x) {
    const int columns = (file.width + file.across - 1) / file.across, rows = (file.height + file.down - 1) / file.down;
    const int near = x / file.across, column = near + (x % 2 ? 1 : -1), line = y / file.down;
    const u8* row = plane + (u64)line * file.pitch[1];
    if (file.across == 1) return row[near];
    const bool border = column < 0 || column >= columns;
    if (file.down == 1) return border ? row[near] : (3 * row[near] + row[column] + (x % 2 ? 2 : 1)) >> 2;
    const u8* other = plane + (u64)min(max(line + (y % 2 ? 1 : -1), 0), rows - 1) * file.pitch[1];
    const int sum = 3 * row[near] + other[near], round = x % 2 ? 7 : 8;
    return border ? (4 * sum + round) >> 4 : (3 * sum + 3 * row[column] + other[column] + round) >> 4;
}

extern "C" __global__ void __launch_bounds__(256) colours(const File* files) {
    const File file = files[blockIdx.y];
    const int count = file.width * file.height;
    for (int i = blockIdx.x * 256 + threadIdx.x; i < count; i += gridDim.x * 256) {
        const int y = i / file.width, x = i % file.width;
        const int light = ((const u8*)file.planes[0])[(u64)y * file.pitch[0] + x];
        const int blue = blended((const u8*)file.planes[1], file, y, x) - 128;
        const int red = blended((const u8*)file.planes[2], file, y, x) - 128;
        u8* to = (u8*)file.pixels + i;
        to[0] = min(max(light + ((91881 * red + 32768) >> 16), 0), 255);
        to[count] = min(max(light + ((-22554 * blue - 46802 * red + 32768) >> 16), 0), 255);
        to[2 * count] = min(max(light + ((116130 * blue + 32768) >> 16), 0), 255);
    }
}
#endif
