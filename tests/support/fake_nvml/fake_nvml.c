/* A stand-in for NVIDIA's libnvidia-ml.so.1, for machines without a GPU.
 *
 * It answers from the text file that FAKE_NVML_STATE names, read anew at each call. A line is a
 * word and key=value pairs; a value with spaces stands in double quotes:
 *
 *   driver version=550.54
 *   gpu uuid=GPU-1 name="NVIDIA A2" total_mb=16384 used_mb=100
 *   process gpu=0 pid=4242 used_mb=2048
 *   xid gpu=0 code=79             delivered once to each event set that registered the GPU for it
 *   error call=memory gpu=0 code=15     gpu is optional; calls: init count handle name uuid memory
 *                                       processes pci driver events wait
 *
 * The GPUs are numbered in the order of their lines. Without the file: "Driver Not Loaded".
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef int result_t;
typedef void *device_t;
typedef unsigned long long u64;

enum {
    SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9, TIMEOUT = 10, VERSION_MISMATCH = 25
};

enum { LINE = 512, XID_EVENT = 8, MEMORY_V2 = 0x02000028, EVERY_GPU = -1 };

typedef struct { u64 total, free, used; } memory_t;
typedef struct { unsigned version; u64 total, reserved, free, used; } memory_v2_t;
typedef struct { unsigned pid; u64 used; unsigned gpu_instance, compute_instance; } process_t;
typedef struct {
    char legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
} pci_t;
typedef struct { device_t device; u64 type, data; unsigned gpu_instance, compute_instance; } event_t;
typedef struct { u64 registered; int delivered; } event_set_t;

static int users;

/* The n-th line that starts with `word`; 0 when there are fewer, or no file. */
static int line_of(const char *word, int n, char *line)
{
    const char *path = getenv("FAKE_NVML_STATE");
    FILE *file = path ? fopen(path, "r") : NULL;
    size_t length = strlen(word);
    int found = 0;
    while (file && !found && fgets(line, LINE, file))
        found = !strncmp(line, word, length) && line[length] == ' ' && n-- == 0;
    if (file)
        fclose(file);
    return found;
}

/* The value of a key; 0 and an empty text when the line lacks it. */
static int text_of(const char *line, const char *key, char *value)
{
    char wanted[64];
    const char *at;
    char end = ' ';
    snprintf(wanted, sizeof wanted, " %s=", key);
    *value = 0;
    if (!(at = strstr(line, wanted)))
        return 0;
    at += strlen(wanted);
    if (*at == '"')
        end = *at++;
    while (*at && *at != end && *at != '\n')
        *value++ = *at++;
    *value = 0;
    return 1;
}

static long number_of(const char *line, const char *key, long otherwise)
{
    char value[LINE];
    return text_of(line, key, value) ? strtol(value, NULL, 10) : otherwise;
}

static int gpu_count(void)
{
    char line[LINE];
    int n = 0;
    while (line_of("gpu", n, line))
        n++;
    return n;
}

/* The first `error` line for this call and GPU, else SUCCESS. */
static result_t error_of(const char *call, long gpu)
{
    char line[LINE], value[LINE];
    for (int n = 0; line_of("error", n, line); n++) {
        long for_gpu = number_of(line, "gpu", EVERY_GPU);
        if (text_of(line, "call", value) && !strcmp(value, call)
            && (for_gpu == EVERY_GPU || for_gpu == gpu))
            return (result_t)number_of(line, "code", 999);
    }
    return SUCCESS;
}

/* A device's number, from its handle, with its line; every call on a device starts here. */
static result_t open_device(device_t device, const char *call, long *gpu, char *line)
{
    *gpu = (long)device - 1;
    if (!users)
        return UNINITIALIZED;
    if (*gpu < 0 || !line_of("gpu", (int)*gpu, line))
        return INVALID_ARGUMENT;
    return error_of(call, *gpu);
}

static result_t copy_text(const char *text, char *target, unsigned length)
{
    if (strlen(text) >= length)
        return INSUFFICIENT_SIZE;
    strcpy(target, text);
    return SUCCESS;
}

static result_t copy_value(device_t device, const char *key, char *target, unsigned length)
{
    char line[LINE], value[LINE];
    long gpu;
    result_t result = open_device(device, key, &gpu, line);
    text_of(line, key, value);
    return result ? result : copy_text(value, target, length);
}

result_t nvmlInitWithFlags(unsigned flags)
{
    const char *path = getenv("FAKE_NVML_STATE");
    FILE *file = path ? fopen(path, "r") : NULL;
    result_t result;
    (void)flags;
    if (!file)
        return DRIVER_NOT_LOADED;
    fclose(file);
    result = error_of("init", EVERY_GPU);
    users += result == SUCCESS;
    return result;
}

result_t nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
result_t nvmlInit(void) { return nvmlInitWithFlags(0); }

result_t nvmlShutdown(void)
{
    if (!users)
        return UNINITIALIZED;
    users--;
    return SUCCESS;
}

const char *nvmlErrorString(result_t result)
{
    switch (result) {
    case SUCCESS: return "Success";
    case UNINITIALIZED: return "Uninitialized";
    case INVALID_ARGUMENT: return "Invalid Argument";
    case 3: return "Not Supported";
    case 4: return "Insufficient Permissions";
    case NOT_FOUND: return "Not Found";
    case INSUFFICIENT_SIZE: return "Insufficient Size";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case TIMEOUT: return "Timeout";
    case 15: return "GPU is lost";
    case 16: return "GPU requires reset";
    case 18: return "Driver/library version mismatch";
    case VERSION_MISMATCH: return "Argument version mismatch";
    default: return "Unknown Error";
    }
}

result_t nvmlSystemGetDriverVersion(char *version, unsigned length)
{
    char line[LINE], value[LINE] = "550.54.15";
    result_t result = users ? error_of("driver", EVERY_GPU) : UNINITIALIZED;
    if (line_of("driver", 0, line))
        text_of(line, "version", value);
    return result ? result : copy_text(value, version, length);
}

result_t nvmlDeviceGetCount_v2(unsigned *count)
{
    *count = (unsigned)gpu_count();
    return users ? error_of("count", EVERY_GPU) : UNINITIALIZED;
}

result_t nvmlDeviceGetCount(unsigned *count) { return nvmlDeviceGetCount_v2(count); }

result_t nvmlDeviceGetHandleByIndex_v2(unsigned index, device_t *device)
{
    char line[LINE];
    long gpu;
    *device = (device_t)((long)index + 1);
    return open_device(*device, "handle", &gpu, line);
}

result_t nvmlDeviceGetHandleByIndex(unsigned index, device_t *device)
{
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}

result_t nvmlDeviceGetHandleByUUID(const char *uuid, device_t *device)
{
    char line[LINE], value[LINE];
    for (int gpu = 0; line_of("gpu", gpu, line); gpu++)
        if (text_of(line, "uuid", value) && !strcmp(value, uuid))
            return nvmlDeviceGetHandleByIndex_v2((unsigned)gpu, device);
    return users ? NOT_FOUND : UNINITIALIZED;
}

result_t nvmlDeviceGetIndex(device_t device, unsigned *index)
{
    char line[LINE];
    long gpu;
    result_t result = open_device(device, "index", &gpu, line);
    *index = (unsigned)gpu;
    return result;
}

result_t nvmlDeviceGetUUID(device_t device, char *uuid, unsigned length)
{
    return copy_value(device, "uuid", uuid, length);
}

result_t nvmlDeviceGetName(device_t device, char *name, unsigned length)
{
    return copy_value(device, "name", name, length);
}

result_t nvmlDeviceGetMemoryInfo(device_t device, memory_t *memory)
{
    char line[LINE];
    long gpu;
    result_t result = open_device(device, "memory", &gpu, line);
    if (result == SUCCESS) {
        memory->total = (u64)number_of(line, "total_mb", 0) << 20;
        memory->used = (u64)number_of(line, "used_mb", 0) << 20;
        memory->free = memory->total - memory->used;
    }
    return result;
}

result_t nvmlDeviceGetMemoryInfo_v2(device_t device, memory_v2_t *memory)
{
    memory_t plain = {0, 0, 0};
    result_t result = nvmlDeviceGetMemoryInfo(device, &plain);
    if (memory->version != MEMORY_V2)
        return VERSION_MISMATCH;
    memory->total = plain.total;
    memory->used = plain.used;
    memory->free = plain.free;
    memory->reserved = 0;
    return result;
}

/* As NVML does: `count` is the room on the way in and the number of processes on the way out. */
result_t nvmlDeviceGetComputeRunningProcesses_v3(device_t device, unsigned *count, process_t *list)
{
    char line[LINE];
    long gpu;
    unsigned room = list ? *count : 0, found = 0;
    result_t result = open_device(device, "processes", &gpu, line);
    for (int n = 0; result == SUCCESS && line_of("process", n, line); n++) {
        if (number_of(line, "gpu", 0) != gpu)
            continue;
        if (found < room) {
            process_t process = {(unsigned)number_of(line, "pid", 0),
                                 (u64)number_of(line, "used_mb", 0) << 20, ~0u, ~0u};
            list[found] = process;
        }
        found++;
    }
    *count = found;
    return result ? result : found > room ? INSUFFICIENT_SIZE : SUCCESS;
}

result_t nvmlDeviceGetComputeRunningProcesses_v2(device_t device, unsigned *count, process_t *list)
{
    return nvmlDeviceGetComputeRunningProcesses_v3(device, count, list);
}

result_t nvmlDeviceGetPciInfo_v3(device_t device, pci_t *pci)
{
    char line[LINE];
    long gpu;
    result_t result = open_device(device, "pci", &gpu, line);
    memset(pci, 0, sizeof *pci);
    pci->bus = (unsigned)gpu + 1;
    snprintf(pci->legacy, sizeof pci->legacy, "0000:%02X:00.0", pci->bus & 0xffu);
    snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02X:00.0", pci->bus & 0xffu);
    return result;
}

result_t nvmlEventSetCreate(event_set_t **set)
{
    *set = calloc(1, sizeof **set);
    return users ? error_of("events", EVERY_GPU) : UNINITIALIZED;
}

result_t nvmlDeviceRegisterEvents(device_t device, u64 types, event_set_t *set)
{
    char line[LINE];
    long gpu;
    result_t result = open_device(device, "events", &gpu, line);
    if (result == SUCCESS && (types & XID_EVENT))
        set->registered |= 1ull << gpu;
    return result;
}

result_t nvmlDeviceGetSupportedEventTypes(device_t device, u64 *types)
{
    char line[LINE];
    long gpu;
    *types = XID_EVENT;
    return open_device(device, "events", &gpu, line);
}

result_t nvmlEventSetWait_v2(event_set_t *set, event_t *event, unsigned timeout_ms)
{
    const struct timespec step = {0, 10 * 1000 * 1000};
    char line[LINE];
    for (long left_ms = timeout_ms;; left_ms -= 10) {
        result_t result = users ? error_of("wait", EVERY_GPU) : UNINITIALIZED;
        if (result)
            return result;
        while (line_of("xid", set->delivered, line)) {
            long gpu = number_of(line, "gpu", 0);
            set->delivered++;
            if (!(set->registered >> gpu & 1))
                continue;
            event_t seen = {(device_t)(gpu + 1), XID_EVENT, (u64)number_of(line, "code", 0),
                            ~0u, ~0u};
            *event = seen;
            return SUCCESS;
        }
        if (left_ms <= 0)
            return TIMEOUT;
        nanosleep(&step, NULL);
    }
}

result_t nvmlEventSetWait(event_set_t *set, event_t *event, unsigned timeout_ms)
{
    return nvmlEventSetWait_v2(set, event, timeout_ms);
}

result_t nvmlEventSetFree(event_set_t *set)
{
    free(set);
    return SUCCESS;
}
