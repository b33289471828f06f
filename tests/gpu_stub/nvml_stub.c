/*
 * A stand-in for NVIDIA's libnvidia-ml.so.1, steered from outside while it is in use.
 *
 * All state lies in a file that is mapped shared (WATCHDOG_GPU_STUB names it): driver_stub.py
 * writes there, and the next call sees it. `struct state` and driver_stub.py's Structures are
 * the same layout; a size that differs fails the load. Signatures and error codes are those of
 * NVIDIA's public nvml.h, as far as nvidia-ml-py calls them.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "stub_functions.h" /* FN_name for each function, FUNCTIONS: written by driver_stub.py */

#define DEVICES 128
#define PROCESSES 64
#define EVENTS 64

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6,
       INSUFFICIENT_SIZE = 7, TIMEOUT = 10, FUNCTION_NOT_FOUND = 13, GPU_IS_LOST = 15 };
enum { HANG = -1, CRASH = -2, MISSING = -3, ABORT = -4 };

struct process {
    uint32_t pid, graphics, gpu_instance, compute_instance;
    uint64_t memory;
    uint64_t sampled_us; /* time of the newest sample of its use; 0: none */
    uint32_t sm, unused;
};

struct device {
    int32_t present, card; /* card: -1, or whose MIG instance this is */
    int32_t slot;          /* index of the card, or of the instance on its card */
    char uuid[96], name[96], bus[32];
    uint64_t total, used, reserved, reasons;
    uint64_t ecc, ecc_corrected, ecc_aggregate, ecc_corrected_aggregate;
    uint32_t utilization, memory_utilization, temperature, slowdown, shutdown;
    int32_t margin;
    uint32_t fan, power_mw, limit_mw, remap_pending, remap_failed, recovery, mig;
    uint32_t graphics_clock, graphics_clock_max, memory_clock, memory_clock_max, pstate;
    uint32_t pcie_generation, pcie_generation_max, pcie_width, pcie_width_max, rx_kib, tx_kib;
    uint64_t touched; /* calls that named this device */
    uint32_t processes;
    struct process process[PROCESSES];
    int32_t behaviour[FUNCTIONS];
};

struct event {
    uint32_t device;
    uint64_t type, data;
};

struct state {
    uint64_t size; /* of this struct, as driver_stub.py sees it */
    char driver[80], nvml[80];
    int32_t cuda, record_bytes;
    uint64_t written, taken; /* events so far */
    struct event event[EVENTS];
    int32_t behaviour[FUNCTIONS];
    uint32_t delay_us[FUNCTIONS];
    uint64_t calls[FUNCTIONS];
    struct device device[DEVICES];
};

static struct state *state;
static volatile int *volatile nowhere;
static int initialized;

static struct state *mapped(void)
{
    if (state)
        return state;
    const char *path = getenv("WATCHDOG_GPU_STUB");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    struct stat found;
    if (fd < 0 || fstat(fd, &found) || found.st_size != (off_t)sizeof(struct state)) {
        fprintf(stderr, "nvml stub: WATCHDOG_GPU_STUB does not name a state file of %zu bytes\n",
                sizeof(struct state));
        abort();
    }
    state = mmap(NULL, sizeof *state, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (state == MAP_FAILED || state->size != sizeof *state)
        abort();
    return state;
}

/* The word of a behaviour; a hung call returns when the behaviour is taken back. */
static int behave(volatile int32_t *behaviour)
{
    while (*behaviour == HANG)
        usleep(5000);
    if (*behaviour == CRASH)
        *nowhere = 0;
    if (*behaviour == ABORT)
        abort();
    return *behaviour == MISSING ? FUNCTION_NOT_FOUND : *behaviour;
}

static int enter(int function)
{
    struct state *s = mapped();
    __atomic_fetch_add(&s->calls[function], 1, __ATOMIC_RELAXED);
    if (s->delay_us[function]) {
        /* The work of a real driver: the processor is busy meanwhile. */
        struct timespec from, now;
        clock_gettime(CLOCK_MONOTONIC, &from);
        do
            clock_gettime(CLOCK_MONOTONIC, &now);
        while ((now.tv_sec - from.tv_sec) * 1000000L + (now.tv_nsec - from.tv_nsec) / 1000 <
               s->delay_us[function]);
    }
    return behave(&s->behaviour[function]);
}

static int enter_device(int function, struct device *device)
{
    int word = enter(function);
    if (word)
        return word;
    if (!initialized)
        return UNINITIALIZED;
    if (device < state->device || device >= state->device + DEVICES)
        return INVALID_ARGUMENT;
    device->touched++;
    word = behave(&device->behaviour[function]);
    if (word)
        return word;
    return device->present ? SUCCESS : GPU_IS_LOST;
}

#define ENTER(name) do { int w_ = enter(FN_##name); if (w_) return w_; } while (0)
#define ENTER_INIT(name) do { ENTER(name); if (!initialized) return UNINITIALIZED; } while (0)
#define ENTER_DEVICE(name, d) do { int w_ = enter_device(FN_##name, d); if (w_) return w_; } while (0)
#define VALUE(name, type, expression)                     \
    int name(struct device *d, type *out)                 \
    {                                                     \
        ENTER_DEVICE(name, d);                            \
        *out = (type)(expression);                        \
        return SUCCESS;                                   \
    }

static int text(char *to, unsigned size, const char *from)
{
    if (strlen(from) + 1 > size)
        return INSUFFICIENT_SIZE;
    strcpy(to, from);
    return SUCCESS;
}

int nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    ENTER(nvmlInitWithFlags);
    initialized = 1;
    return SUCCESS;
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

int nvmlShutdown(void)
{
    ENTER_INIT(nvmlShutdown);
    initialized = 0;
    return SUCCESS;
}

const char *nvmlErrorString(int code)
{
    static char said[64];
    snprintf(said, sizeof said, "stub error %d", code);
    return said;
}

int nvmlSystemGetDriverVersion(char *out, unsigned size)
{
    ENTER_INIT(nvmlSystemGetDriverVersion);
    return text(out, size, state->driver);
}

int nvmlSystemGetNVMLVersion(char *out, unsigned size)
{
    ENTER(nvmlSystemGetNVMLVersion);
    return text(out, size, state->nvml);
}

int nvmlSystemGetCudaDriverVersion_v2(int *out)
{
    ENTER(nvmlSystemGetCudaDriverVersion_v2);
    *out = state->cuda;
    return SUCCESS;
}

int nvmlSystemGetCudaDriverVersion(int *out) { return nvmlSystemGetCudaDriverVersion_v2(out); }

/* A card that fell off is still counted; one that was taken out (no UUID) is not. */
static struct device *card_at(unsigned index)
{
    for (int i = 0; i < DEVICES; i++)
        if (state->device[i].card < 0 && state->device[i].uuid[0] && index-- == 0)
            return &state->device[i];
    return NULL;
}

int nvmlDeviceGetCount_v2(unsigned *out)
{
    ENTER_INIT(nvmlDeviceGetCount_v2);
    for (*out = 0; card_at(*out); ++*out)
        ;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct device **out)
{
    ENTER_INIT(nvmlDeviceGetHandleByIndex_v2);
    struct device *found = card_at(index);
    if (!found)
        return INVALID_ARGUMENT;
    found->touched++;
    int word = behave(&found->behaviour[FN_nvmlDeviceGetHandleByIndex_v2]);
    if (word)
        return word;
    *out = found;
    return found->present ? SUCCESS : GPU_IS_LOST;
}

static int by(const char *what, size_t field, struct device **out)
{
    for (int i = 0; i < DEVICES; i++) {
        struct device *d = &state->device[i];
        if (d->uuid[0] && !strcasecmp((char *)d + field, what)) {
            d->touched++;
            *out = d;
            return d->present ? SUCCESS : GPU_IS_LOST;
        }
    }
    return NOT_FOUND;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, struct device **out)
{
    ENTER_INIT(nvmlDeviceGetHandleByUUID);
    return by(uuid, __builtin_offsetof(struct device, uuid), out);
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, struct device **out)
{
    ENTER_INIT(nvmlDeviceGetHandleByPciBusId_v2);
    char full[48];
    /* The library takes the short form of the domain too. */
    snprintf(full, sizeof full, "%s%s", strchr(bus, ':') - bus == 4 ? "0000" : "", bus);
    return by(full, __builtin_offsetof(struct device, bus), out);
}

int nvmlDeviceGetIndex(struct device *d, unsigned *out)
{
    ENTER_DEVICE(nvmlDeviceGetIndex, d);
    for (*out = 0; card_at(*out) && card_at(*out) != d; ++*out)
        ;
    return SUCCESS;
}

int nvmlDeviceGetUUID(struct device *d, char *out, unsigned size)
{
    ENTER_DEVICE(nvmlDeviceGetUUID, d);
    return text(out, size, d->uuid);
}

int nvmlDeviceGetName(struct device *d, char *out, unsigned size)
{
    ENTER_DEVICE(nvmlDeviceGetName, d);
    return text(out, size, d->name);
}

struct pci {
    char legacy[16];
    unsigned domain, bus, device, pci_device, pci_subsystem;
    char bus_id[32];
};

int nvmlDeviceGetPciInfo_v3(struct device *d, struct pci *out)
{
    ENTER_DEVICE(nvmlDeviceGetPciInfo_v3, d);
    memset(out, 0, sizeof *out);
    snprintf(out->bus_id, sizeof out->bus_id, "%s", d->bus);
    sscanf(d->bus, "%x:%x:%x", &out->domain, &out->bus, &out->device);
    out->pci_device = 0x233010de;
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(struct device *d, uint64_t *out)
{
    ENTER_DEVICE(nvmlDeviceGetMemoryInfo, d);
    out[0] = d->total;
    out[1] = d->total - d->used - d->reserved;
    out[2] = d->used + d->reserved;
    return SUCCESS;
}

struct memory_v2 {
    unsigned version;
    uint64_t total, reserved, free, used;
};

int nvmlDeviceGetMemoryInfo_v2(struct device *d, struct memory_v2 *out)
{
    ENTER_DEVICE(nvmlDeviceGetMemoryInfo_v2, d);
    out->total = d->total;
    out->reserved = d->reserved;
    out->used = d->used;
    out->free = d->total - d->used - d->reserved;
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(struct device *d, unsigned *out)
{
    ENTER_DEVICE(nvmlDeviceGetUtilizationRates, d);
    out[0] = d->utilization;
    out[1] = d->memory_utilization;
    return SUCCESS;
}

static int coder(int function, struct device *d, unsigned *out, unsigned *period)
{
    int word = enter_device(function, d);
    if (word)
        return word;
    *out = 0;
    *period = 100000;
    return SUCCESS;
}

int nvmlDeviceGetEncoderUtilization(struct device *d, unsigned *out, unsigned *period)
{
    return coder(FN_nvmlDeviceGetEncoderUtilization, d, out, period);
}

int nvmlDeviceGetDecoderUtilization(struct device *d, unsigned *out, unsigned *period)
{
    return coder(FN_nvmlDeviceGetDecoderUtilization, d, out, period);
}

int nvmlDeviceGetTemperature(struct device *d, unsigned sensor, unsigned *out)
{
    (void)sensor;
    ENTER_DEVICE(nvmlDeviceGetTemperature, d);
    *out = d->temperature;
    return SUCCESS;
}

struct temperature {
    unsigned version, sensor;
    int celsius;
};

int nvmlDeviceGetTemperatureV(struct device *d, struct temperature *out)
{
    ENTER_DEVICE(nvmlDeviceGetTemperatureV, d);
    out->celsius = (int)d->temperature;
    return SUCCESS;
}

int nvmlDeviceGetTemperatureThreshold(struct device *d, unsigned which, unsigned *out)
{
    ENTER_DEVICE(nvmlDeviceGetTemperatureThreshold, d);
    *out = which == 0 ? d->shutdown : which == 1 ? d->slowdown : 0;
    return *out ? SUCCESS : NOT_SUPPORTED;
}

struct margin {
    unsigned version;
    int celsius;
};

int nvmlDeviceGetMarginTemperature(struct device *d, struct margin *out)
{
    ENTER_DEVICE(nvmlDeviceGetMarginTemperature, d);
    out->celsius = d->margin;
    return SUCCESS;
}

VALUE(nvmlDeviceGetFanSpeed, unsigned, d->fan)
VALUE(nvmlDeviceGetPowerUsage, unsigned, d->power_mw)
VALUE(nvmlDeviceGetEnforcedPowerLimit, unsigned, d->limit_mw)
VALUE(nvmlDeviceGetPowerManagementLimit, unsigned, d->limit_mw)
VALUE(nvmlDeviceGetPerformanceState, unsigned, d->pstate)
VALUE(nvmlDeviceGetCurrPcieLinkGeneration, unsigned, d->pcie_generation)
VALUE(nvmlDeviceGetMaxPcieLinkGeneration, unsigned, d->pcie_generation_max)
VALUE(nvmlDeviceGetCurrPcieLinkWidth, unsigned, d->pcie_width)
VALUE(nvmlDeviceGetMaxPcieLinkWidth, unsigned, d->pcie_width_max)
VALUE(nvmlDeviceGetCurrentClocksEventReasons, uint64_t, d->reasons)
VALUE(nvmlDeviceGetCurrentClocksThrottleReasons, uint64_t, d->reasons)
VALUE(nvmlDeviceGetPersistenceMode, unsigned, 1)
VALUE(nvmlDeviceGetSupportedEventTypes, uint64_t, 8)
VALUE(nvmlDeviceGetMaxMigDeviceCount, unsigned, d->mig ? 7 : 0)
VALUE(nvmlDeviceIsMigDeviceHandle, unsigned, d->card >= 0)

/* Of a kind of clock or traffic; the graphics clock is also that of the SMs. */
#define CHOICE(name, expression)                                       \
    int name(struct device *d, unsigned kind, unsigned *out)           \
    {                                                                  \
        ENTER_DEVICE(name, d);                                         \
        *out = expression;                                             \
        return SUCCESS;                                                \
    }
CHOICE(nvmlDeviceGetClockInfo, kind == 2 ? d->memory_clock : d->graphics_clock)
CHOICE(nvmlDeviceGetMaxClockInfo, kind == 2 ? d->memory_clock_max : d->graphics_clock_max)
CHOICE(nvmlDeviceGetPcieThroughput, kind == 1 ? d->rx_kib : d->tx_kib)

int nvmlDeviceGetMigMode(struct device *d, unsigned *current, unsigned *pending)
{
    ENTER_DEVICE(nvmlDeviceGetMigMode, d);
    *current = *pending = d->mig;
    return SUCCESS;
}

int nvmlDeviceGetMigDeviceHandleByIndex(struct device *d, unsigned index, struct device **out)
{
    ENTER_DEVICE(nvmlDeviceGetMigDeviceHandleByIndex, d);
    int32_t card = (int32_t)(d - state->device);
    for (int i = 0; i < DEVICES; i++)
        if (state->device[i].uuid[0] && state->device[i].card == card &&
            state->device[i].slot == (int32_t)index) {
            *out = &state->device[i];
            return SUCCESS;
        }
    return NOT_FOUND;
}

/* GPU instances count from 7, as those of the smallest profile do; each has one compute instance. */
VALUE(nvmlDeviceGetGpuInstanceId, unsigned, d->slot + 7)
VALUE(nvmlDeviceGetComputeInstanceId, unsigned, 0)

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(struct device *d, struct device **out)
{
    ENTER_DEVICE(nvmlDeviceGetDeviceHandleFromMigDeviceHandle, d);
    if (d->card < 0)
        return INVALID_ARGUMENT;
    *out = &state->device[d->card];
    return SUCCESS;
}

int nvmlDeviceGetTotalEccErrors(struct device *d, unsigned kind, unsigned counter, uint64_t *out)
{
    ENTER_DEVICE(nvmlDeviceGetTotalEccErrors, d);
    *out = kind == 1 ? (counter ? d->ecc_aggregate : d->ecc)
                     : (counter ? d->ecc_corrected_aggregate : d->ecc_corrected);
    return SUCCESS;
}

int nvmlDeviceGetRemappedRows(struct device *d, unsigned *corrected, unsigned *uncorrected,
                              unsigned *pending, unsigned *failed)
{
    ENTER_DEVICE(nvmlDeviceGetRemappedRows, d);
    *corrected = *uncorrected = 0;
    *pending = d->remap_pending;
    *failed = d->remap_failed;
    return SUCCESS;
}

struct field {
    uint32_t id, scope;
    int64_t timestamp, latency_us;
    uint32_t type, result;
    union {
        unsigned small;
        uint64_t large;
    } value;
};

int nvmlDeviceGetFieldValues(struct device *d, int count, struct field *field)
{
    ENTER_DEVICE(nvmlDeviceGetFieldValues, d);
    for (int i = 0; i < count; i++) {
        field[i].result = SUCCESS;
        field[i].type = 1;
        field[i].value.large = 0;
        switch (field[i].id) {
        case 230:
            field[i].value.small = d->recovery;
            break;
        default:
            field[i].result = NOT_SUPPORTED;
        }
    }
    return SUCCESS;
}

/* Records of 24 bytes; some 535 drivers wrote 32 into an array of 24 (record_bytes). */
static int list(int function, struct device *d, unsigned *count, char *out, unsigned graphics)
{
    int word = enter_device(function, d);
    if (word)
        return word;
    unsigned found = 0, room = out ? *count : 0;
    unsigned bytes = state->record_bytes == 32 ? 32 : 24;
    if (function == FN_nvmlDeviceGetComputeRunningProcesses_v2 ||
        function == FN_nvmlDeviceGetGraphicsRunningProcesses_v2)
        bytes = 24;
    for (unsigned i = 0; i < d->processes && i < PROCESSES; i++) {
        struct process *p = &d->process[i];
        if (p->graphics != graphics)
            continue;
        if (found < room) {
            char *to = out + (size_t)found * bytes;
            memset(to, 0, bytes);
            memcpy(to, &p->pid, 4);
            memcpy(to + 8, &p->memory, 8);
            memcpy(to + 16, &p->gpu_instance, 4);
            memcpy(to + 20, &p->compute_instance, 4);
        }
        found++;
    }
    *count = found;
    return found > room ? INSUFFICIENT_SIZE : SUCCESS;
}

#define LIST(name, graphics)                                    \
    int name(struct device *d, unsigned *count, char *out)      \
    {                                                           \
        return list(FN_##name, d, count, out, graphics);        \
    }
LIST(nvmlDeviceGetComputeRunningProcesses_v3, 0)
LIST(nvmlDeviceGetComputeRunningProcesses_v2, 0)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, 1)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, 1)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, 2)

struct sample {
    uint32_t pid;
    uint64_t at_us;
    uint32_t sm, memory, encoder, decoder;
};

int nvmlDeviceGetProcessUtilization(struct device *d, struct sample *out, unsigned *count,
                                    uint64_t since_us)
{
    ENTER_DEVICE(nvmlDeviceGetProcessUtilization, d);
    unsigned found = 0, room = out ? *count : 0;
    for (unsigned i = 0; i < PROCESSES; i++) {
        struct process *p = &d->process[i];
        if (p->sampled_us <= since_us)
            continue;
        if (found < room)
            out[found] = (struct sample){p->pid, p->sampled_us, p->sm, p->sm / 2, 0, 0};
        found++;
    }
    *count = found;
    if (!found)
        return NOT_FOUND;
    return found > room ? INSUFFICIENT_SIZE : SUCCESS;
}

int nvmlEventSetCreate(void **out)
{
    ENTER_INIT(nvmlEventSetCreate);
    *out = state;
    return SUCCESS;
}

int nvmlEventSetFree(void *set)
{
    (void)set;
    ENTER_INIT(nvmlEventSetFree);
    return SUCCESS;
}

int nvmlDeviceRegisterEvents(struct device *d, uint64_t types, void *set)
{
    (void)set;
    ENTER_DEVICE(nvmlDeviceRegisterEvents, d);
    return types & ~8ull ? NOT_SUPPORTED : SUCCESS;
}

struct event_data {
    struct device *device;
    uint64_t type, data;
    unsigned gpu_instance, compute_instance;
};

int nvmlEventSetWait_v2(void *set, struct event_data *out, unsigned timeout_ms)
{
    (void)set;
    ENTER_INIT(nvmlEventSetWait_v2);
    for (unsigned waited = 0;; waited += 5) {
        if (state->taken < state->written) {
            struct event *e = &state->event[state->taken++ % EVENTS];
            out->device = &state->device[e->device];
            out->type = e->type;
            out->data = e->data;
            out->gpu_instance = out->compute_instance = ~0u;
            return SUCCESS;
        }
        if (waited >= timeout_ms)
            return TIMEOUT;
        usleep(5000);
    }
}
