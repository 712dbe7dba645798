// The first convolution of a VGG: whole numbers in, 64 channels out, bias and ReLU.

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
