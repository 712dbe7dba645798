// CroW's sums: one pass over the map.

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
