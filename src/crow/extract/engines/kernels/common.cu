// What all kernels begin with. `driver.source` lays it before one of the other files: no header is needed, NVRTC compiles
// the text as it is.
//
// A batch holds pictures of any sizes. Each has a canvas of its own, (rows, columns, channels), as large as the largest
// picture needs; what lies beyond a picture's own border is written as zeros, which is what its convolutions must see there.
// Work is cut into tiles of 16 x 16 places; `Level` says where each picture's tiles begin.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

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
