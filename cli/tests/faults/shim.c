/* Makes a system call fail, in a program that is started with this library preloaded.
 *
 * FAULT_UNDER    a directory: calls on files in it are counted, those on others are not
 * FAULT_CALLS    what is counted: names of calls, separated by commas
 * FAULT_NUMBER   the number of the call that fails, from 1 on; "every": each one, and then succeeds when it is called again
 * FAULT_ERROR    what it fails with: a number of errno; 0: a write that writes half of its bytes
 * FAULT_REPORT   a file that gets the name of the call that failed and its path
 * FAULT_LEAST    of mmap: only calls for so many bytes are counted
 * FAULT_CLOCK    jump: clocks go forth and back: the time of day by years, the other one by hours
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define FILES 1024

static char under[PATH_MAX], calls[256], report[PATH_MAX];
static long number, least;
static int error_number, every, jumps, ready;
static atomic_long count;
/* Which open files are counted, and where they are. */
static char *paths[FILES];
/* Of "every": the last attempt failed, this one succeeds. */
static _Thread_local int again;

__attribute__((constructor)) static void prepare(void) {
    const char *value;
    if ((value = getenv("FAULT_UNDER"))) snprintf(under, sizeof under, "%s", value);
    if ((value = getenv("FAULT_CALLS"))) snprintf(calls, sizeof calls, ",%s,", value);
    if ((value = getenv("FAULT_REPORT"))) snprintf(report, sizeof report, "%s", value);
    if ((value = getenv("FAULT_NUMBER"))) { number = atol(value); every = !strcmp(value, "every"); }
    if ((value = getenv("FAULT_ERROR"))) error_number = atoi(value);
    if ((value = getenv("FAULT_LEAST"))) least = atol(value);
    if ((value = getenv("FAULT_CLOCK"))) jumps = !strcmp(value, "jump");
    ready = 1;
}

#define REAL(name) \
    static __typeof__(&name) real; \
    if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

/* Without the functions that are replaced here. */
static void tell(const char *call, const char *path) {
    char line[PATH_MAX + 64];
    int length = snprintf(line, sizeof line, "%s %s\n", call, path ? path : "");
    int file = syscall(SYS_openat, AT_FDCWD, report, O_WRONLY | O_CREAT | O_APPEND, 0666);
    if (file >= 0) {
        syscall(SYS_write, file, line, (size_t)length);
        syscall(SYS_close, file);
    }
}

static int is_counted(const char *call) {
    char name[64];
    snprintf(name, sizeof name, ",%s,", call);
    return ready && strstr(calls, name) != NULL;
}

static int is_under(const char *path) {
    char here[PATH_MAX];
    if (!path || !under[0]) return 0;
    if (path[0] == '/') return !strncmp(path, under, strlen(under));
    return getcwd(here, sizeof here) && !strncmp(here, under, strlen(under));
}

/* Whether this call is to fail. */
static int fails(const char *call, const char *path) {
    if (!is_counted(call)) return 0;
    if (every) {
        again = !again;
        if (again && report[0]) tell(call, path);
        return again;
    }
    if (number <= 0 || atomic_fetch_add(&count, 1) + 1 != number) return 0;
    tell(call, path);
    return 1;
}

static int fails_path(const char *call, const char *path) { return is_under(path) && fails(call, path); }

static int fails_file(const char *call, int file) {
    return file >= 0 && file < FILES && paths[file] && fails(call, paths[file]);
}

static int refused(void) {
    errno = error_number;
    return -1;
}

static int remember(int file, const char *path) {
    if (file >= 0 && file < FILES && is_under(path)) paths[file] = strdup(path);
    return file;
}

#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        REAL(name); \
        va_list list; \
        va_start(list, flags); \
        mode_t mode = va_arg(list, mode_t); \
        va_end(list); \
        if (fails_path("open", path)) return refused(); \
        return remember(real(path, flags, mode), path); \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name) \
    int name(int directory, const char *path, int flags, ...) { \
        REAL(name); \
        va_list list; \
        va_start(list, flags); \
        mode_t mode = va_arg(list, mode_t); \
        va_end(list); \
        if (directory == AT_FDCWD && fails_path("open", path)) return refused(); \
        int file = real(directory, path, flags, mode); \
        return directory == AT_FDCWD ? remember(file, path) : file; \
    }
OPENAT(openat)
OPENAT(openat64)

ssize_t write(int file, const void *bytes, size_t size) {
    REAL(write);
    if (!fails_file("write", file)) return real(file, bytes, size);
    return error_number ? refused() : real(file, bytes, (size + 1) / 2);
}

#define PWRITE(name, offset_type) \
    ssize_t name(int file, const void *bytes, size_t size, offset_type offset) { \
        REAL(name); \
        if (!fails_file("write", file)) return real(file, bytes, size, offset); \
        return error_number ? refused() : real(file, bytes, (size + 1) / 2, offset); \
    }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

ssize_t writev(int file, const struct iovec *parts, int parts_count) {
    REAL(writev);
    if (!fails_file("write", file)) return real(file, parts, parts_count);
    return error_number ? refused() : real(file, parts, 1);
}

#define ON_FILE(name, label) \
    int name(int file) { \
        REAL(name); \
        return fails_file(label, file) ? refused() : real(file); \
    }
ON_FILE(fsync, "fsync")
ON_FILE(fdatasync, "fsync")

/* The file is closed whatever close says. */
int close(int file) {
    REAL(close);
    int failing = fails_file("close", file);
    if (file >= 0 && file < FILES && paths[file]) {
        free(paths[file]);
        paths[file] = NULL;
    }
    int result = real(file);
    return failing ? refused() : result;
}

#define TRUNCATE(name, offset_type) \
    int name(int file, offset_type length) { \
        REAL(name); \
        return fails_file("ftruncate", file) ? refused() : real(file, length); \
    }
TRUNCATE(ftruncate, off_t)
TRUNCATE(ftruncate64, off64_t)

int rename(const char *from, const char *to) {
    REAL(rename);
    return fails_path("rename", to) ? refused() : real(from, to);
}

int renameat(int from_directory, const char *from, int to_directory, const char *to) {
    REAL(renameat);
    return fails_path("rename", to) ? refused() : real(from_directory, from, to_directory, to);
}

int mkdir(const char *path, mode_t mode) {
    REAL(mkdir);
    return fails_path("mkdir", path) ? refused() : real(path, mode);
}

int unlink(const char *path) {
    REAL(unlink);
    return fails_path("unlink", path) ? refused() : real(path);
}

#define MMAP(name, offset_type) \
    void *name(void *start, size_t size, int access, int kind, int file, offset_type offset) { \
        REAL(name); \
        if ((long)size >= least && fails("mmap", "memory")) { \
            errno = ENOMEM; \
            return MAP_FAILED; \
        } \
        return real(start, size, access, kind, file, offset); \
    }
MMAP(mmap, off_t)
MMAP(mmap64, off64_t)

int posix_memalign(void **place, size_t alignment, size_t size) {
    REAL(posix_memalign);
    if (size >= 1024 && alignment == 64 && fails("posix_memalign", "memory")) return ENOMEM;
    return real(place, alignment, size);
}

int pthread_create(pthread_t *thread, const pthread_attr_t *kind, void *(*begin)(void *), void *argument) {
    REAL(pthread_create);
    return fails("pthread_create", "thread") ? EAGAIN : real(thread, kind, begin, argument);
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    REAL(clock_gettime);
    static atomic_long reads;
    int result = real(clock, time);
    if (jumps && clock == CLOCK_REALTIME) time->tv_sec -= atomic_fetch_add(&reads, 1) % 80 * 31557600L;
    if (jumps && clock == CLOCK_MONOTONIC) time->tv_sec += atomic_fetch_add(&reads, 1) % 3 * 3600;
    return result;
}
