/*
 * Records, interrupts or refuses a program's operations on the files below one folder.
 *
 * Loaded with LD_PRELOAD. CRASH_ROOT is the folder; operations elsewhere pass through. Each
 * change and each sync is one operation. The program controls the shim by calls that never reach
 * the disk:
 *
 *     unlink("/crash-control/trace PATH")    record operations to this file from now on
 *     unlink("/crash-control/kill N")        SIGKILL at the Nth operation from now
 *     unlink("/crash-control/fail E A B")    operations A to B - 1 fail with errno E
 *     unlink("/crash-control/off")           stop killing and failing
 *     unlink("/crash-mark/TEXT")             a mark among the recorded operations
 *
 * Another process can control it too: while the file CRASH_REFUSE holds an errno, every operation
 * fails with it. -N there means SIGKILL at the Nth operation since. 1000 + N makes syncs, renames
 * and removals take N ms.
 *
 * The trace: "OP ino a b len\n" and len bytes. W write (a: offset), T truncate (a: size),
 * S sync, C create file, M create folder, R rename (two paths, NUL between), U unlink, D rmdir,
 * A mark.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))real(#name))
#define PATH_BYTES (2 * PATH_MAX)

static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER;
static int trace_fd = -1;
static long seen, kill_at, fail_from, fail_to;
static int fail_with;

static void *real(const char *name) { return dlsym(RTLD_NEXT, name); }

static const char *root(void) {
    static const char *found;
    if (!found) { found = getenv("CRASH_ROOT"); if (!found) found = "/nowhere/"; }
    return found;
}

static int below(const char *path) {
    size_t length = strlen(root());
    return strncmp(path, root(), length) == 0 && (path[length] == '/' || path[length] == 0);
}

/* Full path of a name, which may be relative to an open folder. */
static void full(int folder, const char *name, char *out) {
    char link[64];
    ssize_t length;
    if (name[0] == '/') { snprintf(out, PATH_BYTES, "%s", name); return; }
    if (folder == AT_FDCWD) snprintf(link, sizeof link, "/proc/self/cwd");
    else snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
    length = readlink(link, out, PATH_MAX);
    if (length < 0) { out[0] = 0; return; }
    snprintf(out + length, PATH_BYTES - length, "/%s", name);
}

static int fd_below(int fd) {
    char link[64], path[PATH_BYTES];
    ssize_t length;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    length = readlink(link, path, PATH_MAX);
    if (length <= 0) return 0;
    path[length] = 0;
    return below(path);
}

static long inode(int fd) {
    struct stat found;
    return fstat(fd, &found) == 0 ? (long)found.st_ino : 0;
}

static long inode_at(const char *path) {
    struct stat found;
    return lstat(path, &found) == 0 ? (long)found.st_ino : 0;
}

static void put(const void *data, size_t length) {
    const char *at = data;
    while (length) {
        long done = syscall(SYS_write, trace_fd, at, length);
        if (done <= 0) abort();
        at += done;
        length -= done;
    }
}

static void note(char op, long ino, long a, const void *data, size_t length) {
    char head[128];
    if (trace_fd < 0) return;
    put(head, snprintf(head, sizeof head, "%c %ld %ld %zu\n", op, ino, a, length));
    put(data, length);
}

/* The disk's current error: the errno in the file CRASH_REFUSE, if it exists. */
static int refused(void) {
    const char *path = getenv("CRASH_REFUSE");
    char text[16] = "";
    int fd;
    if (!path) return 0;
    fd = syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0) return 0;
    syscall(SYS_read, fd, text, sizeof text - 1);
    syscall(SYS_close, fd);
    return atoi(text);
}

/* Call before an operation: 0 to continue, else errno is set. The caller then holds the lock. */
static int begin(int takes_room) {
    static long since;
    int refusal = refused();
    if (refusal >= 1000) {
        if (!takes_room) usleep(1000 * (refusal - 1000));
        refusal = 0;
    }
    pthread_mutex_lock(&one);
    seen++;
    if (refusal < 0 && ++since == -refusal) kill_at = seen;
    if (refusal < 0) refusal = 0;
    if (refusal && (takes_room || refusal != ENOSPC)) { errno = refusal; return -1; }
    if (kill_at && seen == kill_at) {
        syscall(SYS_kill, getpid(), SIGKILL);
        for (;;) pause();
    }
    /* A full disk refuses only operations that need space. */
    if (fail_with && seen >= fail_from && seen < fail_to && (takes_room || fail_with != ENOSPC)) { errno = fail_with; return -1; }
    return 0;
}

static int end(int result) {
    int kept = errno;
    pthread_mutex_unlock(&one);
    errno = kept;
    return result;
}

static int control(const char *path) {
    const char *text;
    if (strncmp(path, "/crash-mark/", 12) == 0) {
        pthread_mutex_lock(&one);
        note('A', 0, 0, path + 12, strlen(path + 12));
        pthread_mutex_unlock(&one);
        return 1;
    }
    if (strncmp(path, "/crash-control/", 15) != 0) return 0;
    text = path + 15;
    pthread_mutex_lock(&one);
    seen = 0;
    kill_at = fail_with = 0;
    if (strncmp(text, "trace ", 6) == 0)
        trace_fd = syscall(SYS_openat, AT_FDCWD, text + 6, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    else if (sscanf(text, "kill %ld", &kill_at) == 1) { }
    else if (sscanf(text, "fail %d %ld %ld", &fail_with, &fail_from, &fail_to) == 3) { }
    pthread_mutex_unlock(&one);
    return 1;
}

/* Opening is an operation if it creates or truncates a file. */
static int opened(const char *symbol, int folder, const char *name, int flags, mode_t mode) {
    int (*do_openat)(int, const char *, int, ...) = real("openat64");
    char path[PATH_BYTES];
    int fd, made;
    (void)symbol;
    if (!(flags & (O_CREAT | O_TRUNC)) || (flags & O_TMPFILE) == O_TMPFILE)
        return do_openat(folder, name, flags, mode);
    full(folder, name, path);
    if (!below(path)) return do_openat(folder, name, flags, mode);
    made = (flags & O_CREAT) && access(path, F_OK) != 0;
    if (!made && (!(flags & O_TRUNC) || access(path, F_OK) != 0 || (flags & O_EXCL)))
        return do_openat(folder, name, flags, mode);
    if (begin(1)) return end(-1);
    fd = do_openat(folder, name, flags, mode);
    if (fd >= 0) {
        if (made) note('C', inode(fd), 0, path, strlen(path));
        else note('T', inode(fd), 0, "", 0);
    }
    return end(fd);
}

#define MODE(flags) \
    mode_t mode = 0; \
    if ((flags) & O_CREAT) { va_list list; va_start(list, flags); mode = va_arg(list, mode_t); va_end(list); }

int open(const char *path, int flags, ...) { MODE(flags) return opened("open", AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE(flags) return opened("open", AT_FDCWD, path, flags, mode); }
int openat(int folder, const char *path, int flags, ...) { MODE(flags) return opened("openat", folder, path, flags, mode); }
int openat64(int folder, const char *path, int flags, ...) { MODE(flags) return opened("openat", folder, path, flags, mode); }

static ssize_t written(int fd, const void *data, size_t length, long at) {
    ssize_t done;
    if (at < 0) at = (fcntl(fd, F_GETFL) & O_APPEND) ? lseek(fd, 0, SEEK_END) : lseek(fd, 0, SEEK_CUR);
    if (begin(1)) return end(-1);
    done = syscall(SYS_pwrite64, fd, data, length, at);
    if (done > 0) note('W', inode(fd), at, data, done);
    return end(done);
}

ssize_t write(int fd, const void *data, size_t length) {
    ssize_t done;
    long at;
    if (fd < 3 || !fd_below(fd)) return syscall(SYS_write, fd, data, length);
    at = (fcntl(fd, F_GETFL) & O_APPEND) ? lseek(fd, 0, SEEK_END) : lseek(fd, 0, SEEK_CUR);
    done = written(fd, data, length, at);
    if (done > 0) lseek(fd, at + done, SEEK_SET);
    return done;
}

ssize_t pwrite64(int fd, const void *data, size_t length, off64_t at) {
    if (!fd_below(fd)) return syscall(SYS_pwrite64, fd, data, length, at);
    return written(fd, data, length, at);
}
ssize_t pwrite(int fd, const void *data, size_t length, off_t at) { return pwrite64(fd, data, length, at); }

int ftruncate64(int fd, off64_t length) {
    int done;
    if (!fd_below(fd)) return syscall(SYS_ftruncate, fd, length);
    if (begin(0)) return end(-1);
    done = syscall(SYS_ftruncate, fd, length);
    if (done == 0) note('T', inode(fd), length, "", 0);
    return end(done);
}
int ftruncate(int fd, off_t length) { return ftruncate64(fd, length); }

static int synced(int fd, long number) {
    int done;
    if (!fd_below(fd)) return syscall(number, fd);
    if (begin(0)) return end(-1);
    /* Not executed: the trace determines the simulated disk, and real syncs are slow. */
    done = 0;
    note('S', inode(fd), 0, "", 0);
    return end(done);
}
int fsync(int fd) { return synced(fd, SYS_fsync); }
int fdatasync(int fd) { return synced(fd, SYS_fdatasync); }

int mkdirat(int folder, const char *name, mode_t mode) {
    char path[PATH_BYTES];
    int done;
    full(folder, name, path);
    if (!below(path)) return syscall(SYS_mkdirat, folder, name, mode);
    if (begin(1)) return end(-1);
    done = syscall(SYS_mkdirat, folder, name, mode);
    if (done == 0) note('M', inode_at(path), 0, path, strlen(path));
    return end(done);
}
int mkdir(const char *name, mode_t mode) { return mkdirat(AT_FDCWD, name, mode); }

int renameat(int from, const char *name, int to, const char *other) {
    char paths[2 * PATH_BYTES], second[PATH_BYTES];
    size_t length;
    int done;
    full(from, name, paths);
    full(to, other, second);
    if (!below(paths) && !below(second)) return syscall(SYS_renameat, from, name, to, other);
    if (begin(0)) return end(-1);
    done = syscall(SYS_renameat, from, name, to, other);
    length = strlen(paths);
    memcpy(paths + length + 1, second, strlen(second));
    if (done == 0) note('R', 0, 0, paths, length + 1 + strlen(second));
    return end(done);
}
int rename(const char *name, const char *other) { return renameat(AT_FDCWD, name, AT_FDCWD, other); }

int unlinkat(int folder, const char *name, int flags) {
    char path[PATH_BYTES];
    int done;
    if (control(name)) return 0;
    full(folder, name, path);
    if (!below(path)) return syscall(SYS_unlinkat, folder, name, flags);
    if (begin(0)) return end(-1);
    done = syscall(SYS_unlinkat, folder, name, flags);
    if (done == 0) note(flags & AT_REMOVEDIR ? 'D' : 'U', 0, 0, path, strlen(path));
    return end(done);
}
int unlink(const char *name) { return unlinkat(AT_FDCWD, name, 0); }
int rmdir(const char *name) { return unlinkat(AT_FDCWD, name, AT_REMOVEDIR); }
