/* Stands between a program and the C library for the files below one folder. It writes down what is done to them
   (so that a power cut can be played back), ends the program at the n-th such operation, or lets it fail there.
   Loaded by LD_PRELOAD; does nothing until torture_arm is called. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { NOTHING, COUNT, KILL_BEFORE, KILL_AFTER, KILL_HALF, FULL_FROM, BROKEN_FROM };

static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER;
static char root[4096];
static size_t root_length;
static int how = NOTHING, journal = -1;
static long at, seen;
static int64_t clock_shift; /* seconds */
static unsigned char ours[1 << 16];

struct record {
    uint8_t op, pad[3];
    uint32_t first, second; /* bytes that follow */
    uint32_t spare;
    uint64_t inode;
    int64_t offset;
};

#define REAL(name) ({ static void *found; if (!found) found = dlsym(RTLD_NEXT, #name); (__typeof__(&name))found; })

static int below(const char *path) {
    return how && path && !strncmp(path, root, root_length) && (path[root_length] == '/' || !path[root_length]);
}

static const char *full(int folder, const char *path, char *room) {
    if (!how || path[0] == '/' ) return path;
    char link[64];
    if (folder == AT_FDCWD) strcpy(link, "/proc/self/cwd");
    else snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
    ssize_t n = readlink(link, room, 4000);
    if (n < 0 || n + strlen(path) + 2 > 8000) return path;
    room[n] = '/';
    strcpy(room + n + 1, path);
    return room;
}

static void emit(char op, uint64_t inode, int64_t offset, const void *a, size_t first, const void *b, size_t second) {
    if (journal < 0) return;
    struct record head = {.op = op, .first = first, .second = second, .inode = inode, .offset = offset};
    struct iovec parts[3] = {{&head, sizeof head}, {(void *)a, first}, {(void *)b, second}};
    if (REAL(writev)(journal, parts, 3) < 0) raise(SIGABRT);
}

/* Called with the lock held, before an operation; 0: go on, else the errno it fails with. */
static int before(int writes) {
    seen++;
    if (how == KILL_BEFORE && seen == at) kill(getpid(), SIGKILL);
    if (how == FULL_FROM && seen >= at && writes) return ENOSPC;
    if (how == BROKEN_FROM && seen >= at) return EIO;
    return 0;
}
static void after(void) {
    if (how == KILL_AFTER && seen == at) kill(getpid(), SIGKILL);
}

static uint64_t inode_of(int fd) {
    struct stat info;
    return fstat(fd, &info) ? 0 : info.st_ino;
}

/* opening */

static int opened(int folder, const char *path, int flags, mode_t mode, int (*call)(int, const char *, int, ...)) {
    char room[8200];
    const char *whole = full(folder, path, room);
    if (!below(whole)) return call(folder, path, flags, mode);
    pthread_mutex_lock(&one);
    struct stat info;
    int fresh = (flags & O_CREAT) && stat(whole, &info);
    int fails = fresh || (flags & O_TRUNC) ? before(1) : 0, fd = -1;
    if (fails) errno = fails;
    else fd = call(folder, path, flags, mode);
    if (fd >= 0) {
        if (fd < (int)sizeof ours) ours[fd] = 1;
        if (fresh) emit('C', inode_of(fd), 0, whole, strlen(whole), 0, 0);
        else if (flags & O_TRUNC) emit('T', inode_of(fd), 0, 0, 0, 0, 0);
        if (fresh || (flags & O_TRUNC)) after();
    }
    pthread_mutex_unlock(&one);
    return fd;
}
#define MODE mode_t mode = 0; if (flags & (O_CREAT | __O_TMPFILE)) { va_list more; va_start(more, flags); mode = va_arg(more, mode_t); va_end(more); }
int open(const char *path, int flags, ...) { MODE return opened(AT_FDCWD, path, flags, mode, REAL(openat)); }
int open64(const char *path, int flags, ...) { MODE return opened(AT_FDCWD, path, flags, mode, REAL(openat64)); }
int openat(int folder, const char *path, int flags, ...) { MODE return opened(folder, path, flags, mode, REAL(openat)); }
int openat64(int folder, const char *path, int flags, ...) { MODE return opened(folder, path, flags, mode, REAL(openat64)); }
int close(int fd) {
    if (fd >= 0 && fd < (int)sizeof ours) ours[fd] = 0;
    return REAL(close)(fd);
}
static int mine(int fd) { return how && fd >= 0 && fd < (int)sizeof ours && ours[fd]; }

/* content */

static ssize_t written(int fd, const void *data, size_t count, off64_t where) {
    pthread_mutex_lock(&one);
    int fails = before(1);
    ssize_t done = -1;
    if (fails) errno = fails;
    else {
        if (how == KILL_HALF && seen == at) count = (count + 1) / 2;
        done = where < 0 ? REAL(write)(fd, data, count) : REAL(pwrite64)(fd, data, count, where);
        if (done > 0) emit('W', inode_of(fd), where < 0 ? lseek64(fd, 0, SEEK_CUR) - done : where, data, done, 0, 0);
        if (how == KILL_HALF && seen == at) kill(getpid(), SIGKILL);
        after();
    }
    pthread_mutex_unlock(&one);
    return done;
}
ssize_t write(int fd, const void *data, size_t count) {
    return mine(fd) ? written(fd, data, count, -1) : REAL(write)(fd, data, count);
}
ssize_t pwrite(int fd, const void *data, size_t count, off_t where) {
    return mine(fd) ? written(fd, data, count, where) : REAL(pwrite)(fd, data, count, where);
}
ssize_t pwrite64(int fd, const void *data, size_t count, off64_t where) {
    return mine(fd) ? written(fd, data, count, where) : REAL(pwrite64)(fd, data, count, where);
}

static int handled(int fd, char op, off64_t length, int (*call)(int), int (*cut)(int, off64_t)) {
    if (!mine(fd)) return cut ? cut(fd, length) : call(fd);
    pthread_mutex_lock(&one);
    int fails = before(0), answer = -1;
    if (fails) errno = fails;
    else answer = cut ? cut(fd, length) : call(fd);
    if (!answer) emit(op, inode_of(fd), length, 0, 0, 0, 0), after();
    pthread_mutex_unlock(&one);
    return answer;
}
int ftruncate(int fd, off_t length) { return handled(fd, 'T', length, 0, REAL(ftruncate64)); }
int ftruncate64(int fd, off64_t length) { return handled(fd, 'T', length, 0, REAL(ftruncate64)); }
int fsync(int fd) { return handled(fd, 'S', 0, REAL(fsync), 0); }
int fdatasync(int fd) { return handled(fd, 'S', 0, REAL(fdatasync), 0); }

/* names */

static int named(char op, int folder, const char *path, int folder2, const char *path2, int flags, mode_t mode) {
    char room[8200], room2[8200];
    const char *whole = full(folder, path, room), *whole2 = path2 ? full(folder2, path2, room2) : "";
    int counts = below(whole) || (path2 && below(whole2)), fails = 0, answer = -1;
    if (counts) pthread_mutex_lock(&one), fails = before(op == 'M');
    if (fails) errno = fails;
    else if (op == 'R') answer = REAL(renameat)(folder, path, folder2, path2);
    else if (op == 'M') answer = REAL(mkdirat)(folder, path, mode);
    else answer = REAL(unlinkat)(folder, path, flags);
    if (counts) {
        struct stat info = {0};
        if (!answer && op == 'M') stat(whole, &info);
        if (!answer) emit(op, info.st_ino, 0, whole, strlen(whole), whole2, strlen(whole2)), after();
        pthread_mutex_unlock(&one);
    }
    return answer;
}
int rename(const char *a, const char *b) { return named('R', AT_FDCWD, a, AT_FDCWD, b, 0, 0); }
int renameat(int f, const char *a, int g, const char *b) { return named('R', f, a, g, b, 0, 0); }
int unlink(const char *path) { return named('U', AT_FDCWD, path, 0, 0, 0, 0); }
int rmdir(const char *path) { return named('U', AT_FDCWD, path, 0, 0, AT_REMOVEDIR, 0); }
int unlinkat(int folder, const char *path, int flags) { return named('U', folder, path, 0, 0, flags, 0); }
int mkdir(const char *path, mode_t mode) { return named('M', AT_FDCWD, path, 0, 0, 0, mode); }
int mkdirat(int folder, const char *path, mode_t mode) { return named('M', folder, path, 0, 0, 0, mode); }

/* the clock */

int clock_gettime(clockid_t kind, struct timespec *now) {
    int answer = REAL(clock_gettime)(kind, now);
    if (!answer && kind == CLOCK_REALTIME) now->tv_sec += clock_shift;
    return answer;
}

/* for the harness */

void torture_arm(const char *folder, int what, long when, int log) {
    strncpy(root, folder, sizeof root - 1);
    root_length = strlen(root);
    at = when, seen = 0, journal = log, how = what;
}
long torture_seen(void) { return seen; }
void torture_note(const char *text) {
    pthread_mutex_lock(&one);
    emit('A', 0, 0, text, strlen(text), 0, 0);
    pthread_mutex_unlock(&one);
}
void torture_shift_clock(long seconds) { clock_shift = seconds; }
