// JPEG planes to pixels, digit by digit as libjpeg makes them.

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
