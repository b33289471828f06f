/* Clocks that a test moves while a daemon lives by them: LD_PRELOAD, and nanoseconds to add to
   each clock in a file that WATCHDOG_TEST_CLOCKS names. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define CLOCKS 8

static volatile int64_t *added;
static int (*real)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("WATCHDOG_TEST_CLOCKS");
    int fd = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);

    real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    if (fd >= 0) {
        void *map = mmap(NULL, CLOCKS * sizeof *added, PROT_READ, MAP_SHARED, fd, 0);
        if (map != MAP_FAILED)
            added = map;
        close(fd);
    }
}

int clock_gettime(clockid_t id, struct timespec *at)
{
    int status = real(id, at);

    if (status == 0 && added != NULL && id >= 0 && id < CLOCKS) {
        int64_t ns = at->tv_nsec + added[id] % 1000000000;
        at->tv_sec += added[id] / 1000000000 + (ns >= 1000000000) - (ns < 0);
        at->tv_nsec = ns - (ns >= 1000000000) * 1000000000 + (ns < 0) * 1000000000;
    }
    return status;
}
