/*
 * A libnvidia-ml.so.1 that answers from facts, for tests that load it through pynvml.
 *
 * It exports what affinityd calls, with the types and return codes of nvml.h. The facts are lines
 * of the text file that $NVML_FACTS names, `KEY VALUE`:
 *
 *   driver 550.54.15                nvmlSystemGetDriverVersion
 *   device /tmp/x/nvidiactl         held open from nvmlInit to nvmlShutdown
 *   masked                          affinity names only CPUs that the caller may use
 *   gpu                             the next GPU; the lines below are about it
 *   uuid GPU-8f3a...                nvmlDeviceGetUUID
 *   pci 00000000:07:00.0            nvmlDeviceGetPciInfo
 *   minor 0                         nvmlDeviceGetMinorNumber
 *   model NVIDIA A100-SXM4-40GB     nvmlDeviceGetName
 *   node 48-63,176-191              nvmlDeviceGetCpuAffinityWithinScope, scope node
 *   mig MIG-5c1b...                 the next MIG device; `mig` alone is an empty slot, and `mig off`
 *                                   a GPU that could be divided and is not
 *   load 37 1073741824 85899345920  nvmlDeviceGetUtilizationRates, and used and total of
 *                                   nvmlDeviceGetMemoryInfo
 *   process compute 4711 1048576    a process in nvmlDeviceGetComputeRunningProcesses of this GPU, or
 *                                   of the MIG device whose line is the last above; or in the list
 *                                   `graphics`, or `mps`. BYTES is `?` where NVML cannot tell them.
 *                                   A GPU that is divided lists its own and its MIG devices'
 *   fail FUNCTION ACTION            what an exported function does first on this GPU, or, above the
 *                                   first `gpu`, one that is about no GPU: return a code (15: GPU is
 *                                   lost), hang, slow (take a second), until FILE (is there), crash,
 *                                   print (a line of noise on stdout), or helper (start a process
 *                                   that never ends)
 *
 * A key that is not there is NVML_ERROR_NOT_SUPPORTED.
 */

#define _GNU_SOURCE
#include <ctype.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4,
    NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, UNKNOWN = 999
};

typedef struct { char key[16], value[4000]; } line_t;

/* A device's handle is the line that begins it: `gpu`, or `mig` with its UUID. */
typedef line_t *device_t;

typedef struct {
    char busIdLegacy[16];
    unsigned domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} pci_info_t;

_Static_assert(sizeof(pci_info_t) == 68, "nvmlPciInfo_t");

/* nvmlProcessInfo_v2_t, which _v2 and _v3 of the functions share. */
typedef struct {
    unsigned pid;
    unsigned long long used_gpu_memory;
    unsigned gpu_instance, compute_instance;
} process_info_t;

_Static_assert(sizeof(process_info_t) == 24, "nvmlProcessInfo_v2_t");

#define VALUE_NOT_AVAILABLE (~0ULL)
#define NO_INSTANCE (~0U)

static line_t lines[1024]; /* the first stands for the library; one with an empty key ends them */
static int held = -1;

static int is(const line_t *line, const char *key) { return strcmp(line->key, key) == 0; }

/* The next line about the same device with this key; NULL if there is none. */
static line_t *next(line_t *line, const char *key)
{
    while ((++line)->key[0] && !is(line, "gpu"))
        if (is(line, key))
            return line;
    return NULL;
}

static const char *fact(device_t device, const char *key)
{
    line_t *line = next(device, key);
    return line ? line->value : NULL;
}

/* The line about this device that has this key for the index-th time; NULL if there are fewer. */
static line_t *nth(line_t *line, const char *key, unsigned index)
{
    while ((line = next(line, key)) && index-- > 0)
        ;
    return line;
}

static int read_facts(void)
{
    char text[4096];
    FILE *file = fopen(getenv("NVML_FACTS") ? getenv("NVML_FACTS") : "", "r");
    if (!file)
        return UNKNOWN;
    memset(lines, 0, sizeof lines);
    strcpy(lines[0].key, "library");
    for (int n = 1; n < 1023 && fgets(text, sizeof text, file);) {
        for (size_t end = strlen(text); end && isspace((unsigned char)text[end - 1]);)
            text[--end] = 0;
        n += sscanf(text, "%15s %3999[^\n]", lines[n].key, lines[n].value) > 0;
    }
    fclose(file);
    return SUCCESS;
}

static int act(const char *action)
{
    if (strcmp(action, "crash") == 0)
        raise(SIGSEGV);
    if (strcmp(action, "print") == 0)
        return write(1, "NVRM: noise\n", 12) == 12 ? SUCCESS : UNKNOWN;
    if (strcmp(action, "slow") == 0)
        sleep(1);
    while (strncmp(action, "until ", 6) == 0 && access(action + 6, F_OK) != 0)
        usleep(10000);
    if (strcmp(action, "hang") == 0 || (strcmp(action, "helper") == 0 && fork() == 0))
        for (;;)
            pause();
    return atoi(action);
}

/* What the facts want a function to do on this device before its work, if that is to be done. */
static int scripted(device_t device, const char *function)
{
    size_t length = strlen(function);
    int code = lines[0].key[0] ? SUCCESS : UNINITIALIZED;
    for (line_t *line = device; code == SUCCESS && (line = next(line, "fail"));)
        if (strncmp(line->value, function, length) == 0 && line->value[length] == ' ')
            code = act(line->value + length + 1);
    return code;
}

#define SCRIPTED(device)                                    \
    do {                                                    \
        int code = scripted(device, __func__);              \
        if (code != SUCCESS)                                \
            return code;                                    \
    } while (0)

static int copy(char *target, unsigned size, const char *value)
{
    if (!value)
        return NOT_SUPPORTED;
    return snprintf(target, size, "%s", value) < (int)size ? SUCCESS : INSUFFICIENT_SIZE;
}

int nvmlInitWithFlags(unsigned flags)
{
    if (flags != 0 || read_facts() != SUCCESS)
        return UNKNOWN;
    SCRIPTED(lines);
    const char *path = fact(lines, "device");
    held = path ? open(path, O_RDWR) : -1;
    return path && held < 0 ? NO_PERMISSION : SUCCESS;
}

int nvmlShutdown(void)
{
    SCRIPTED(lines);
    if (held >= 0)
        close(held);
    held = -1;
    lines[0].key[0] = 0;
    return SUCCESS;
}

const char *nvmlErrorString(int code)
{
    return code == UNKNOWN ? "Unknown Error" : "An error that this library has no words for";
}

int nvmlSystemGetDriverVersion(char *version, unsigned size)
{
    SCRIPTED(lines);
    return copy(version, size, fact(lines, "driver"));
}

int nvmlDeviceGetCount_v2(unsigned *count)
{
    SCRIPTED(lines);
    *count = 0;
    for (line_t *line = lines; line->key[0]; line++)
        *count += is(line, "gpu");
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, device_t *device)
{
    line_t *line = lines;
    while (line->key[0] && !(is(line, "gpu") && index-- == 0))
        line++;
    if (!line->key[0])
        return INVALID_ARGUMENT;
    SCRIPTED(line);
    *device = line;
    return SUCCESS;
}

int nvmlDeviceGetUUID(device_t device, char *uuid, unsigned size)
{
    if (is(device, "mig"))
        return copy(uuid, size, device->value);
    SCRIPTED(device);
    return copy(uuid, size, fact(device, "uuid"));
}

int nvmlDeviceGetPciInfo_v3(device_t device, pci_info_t *info)
{
    SCRIPTED(device);
    memset(info, 0, sizeof *info);
    return copy(info->busId, sizeof info->busId, fact(device, "pci"));
}

int nvmlDeviceGetMinorNumber(device_t device, unsigned *minor)
{
    SCRIPTED(device);
    const char *value = fact(device, "minor");
    if (!value)
        return NOT_SUPPORTED;
    *minor = (unsigned)atoi(value);
    return SUCCESS;
}

int nvmlDeviceGetName(device_t device, char *name, unsigned size)
{
    SCRIPTED(device);
    return copy(name, size, fact(device, "model"));
}

static int may_run_on(unsigned long cpu)
{
    static cpu_set_t mask[128];
    sched_getaffinity(0, sizeof mask, mask);
    return !fact(lines, "masked") || CPU_ISSET_S(cpu, sizeof mask, mask);
}

/* A mask that is too short is an error here, so that a test notices it. */
int nvmlDeviceGetCpuAffinityWithinScope(device_t device, unsigned words, unsigned long *mask,
                                        unsigned scope)
{
    SCRIPTED(device);
    const char *text = scope == 0 ? fact(device, "node") : NULL;
    if (!text)
        return NOT_SUPPORTED;
    memset(mask, 0, words * sizeof *mask);
    while (*text) {
        char *end;
        unsigned long first = strtoul(text, &end, 10);
        unsigned long last = *end == '-' ? strtoul(end + 1, &end, 10) : first;
        if (last / 64 >= words)
            return INSUFFICIENT_SIZE;
        for (unsigned long cpu = first; cpu <= last; cpu++)
            if (may_run_on(cpu))
                mask[cpu / 64] |= 1UL << cpu % 64;
        text = end + (*end == ',');
    }
    return SUCCESS;
}

static int can_divide(device_t device, unsigned *slots)
{
    *slots = 0;
    for (line_t *line = device; (line = next(line, "mig"));)
        *slots += strcmp(line->value, "off") != 0;
    return fact(device, "mig") != NULL;
}

int nvmlDeviceGetMigMode(device_t device, unsigned *current, unsigned *pending)
{
    unsigned slots;
    SCRIPTED(device);
    if (!can_divide(device, &slots))
        return NOT_SUPPORTED;
    *current = slots > 0;
    *pending = *current;
    return SUCCESS;
}

/* What two functions answer: how busy, bytes used, bytes in all. */
static int load(device_t device, unsigned *busy, unsigned long long *used, unsigned long long *total)
{
    const char *value = fact(device, "load");
    return value && sscanf(value, "%u %llu %llu", busy, used, total) == 3 ? SUCCESS : NOT_SUPPORTED;
}

int nvmlDeviceGetUtilizationRates(device_t device, unsigned rates[2])
{
    unsigned long long bytes;
    SCRIPTED(device);
    return load(device, &rates[0], &bytes, &bytes);
}

int nvmlDeviceGetMemoryInfo(device_t device, unsigned long long memory[3])
{
    unsigned busy;
    SCRIPTED(device);
    return load(device, &busy, &memory[2], &memory[0]);
}

/*
 * Where a list's processes go. A MIG device's facts end at the next one's line; what is asked of it
 * is scripted by its GPU, as it has no `fail` lines of its own.
 */
static int processes(device_t device, const char *kind, unsigned *count, process_info_t *infos)
{
    unsigned room = *count, pid;
    char list[16], bytes[32];
    *count = 0;
    for (line_t *line = device + 1; line->key[0] && !is(line, "gpu"); line++) {
        if (is(device, "mig") && is(line, "mig"))
            break;
        if (!is(line, "process") || sscanf(line->value, "%15s %u %31s", list, &pid, bytes) != 3 ||
            strcmp(list, kind) != 0)
            continue;
        if (infos && *count < room) {
            int is_known = strcmp(bytes, "?") != 0;
            unsigned long long used = is_known ? strtoull(bytes, NULL, 10) : VALUE_NOT_AVAILABLE;
            infos[*count] = (process_info_t){pid, used, NO_INSTANCE, NO_INSTANCE};
        }
        ++*count;
    }
    return *count > room ? INSUFFICIENT_SIZE : SUCCESS;
}

/* The line of the GPU that a device is, or is a part of. */
static line_t *whole(device_t device)
{
    while (!is(device, "gpu"))
        device--;
    return device;
}

#define RUNNING_PROCESSES(function, kind)                                         \
    int function(device_t device, unsigned *count, process_info_t *infos)         \
    {                                                                             \
        SCRIPTED(whole(device));                                                  \
        return processes(device, kind, count, infos);                             \
    }

RUNNING_PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, "compute")
RUNNING_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, "graphics")
RUNNING_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3, "mps")

int nvmlDeviceGetMaxMigDeviceCount(device_t device, unsigned *count)
{
    SCRIPTED(device);
    can_divide(device, count);
    return SUCCESS;
}

int nvmlDeviceGetMigDeviceHandleByIndex(device_t device, unsigned index, device_t *mig)
{
    SCRIPTED(device);
    line_t *line = nth(device, "mig", index);
    if (!line || !line->value[0])
        return line ? NOT_FOUND : INVALID_ARGUMENT;
    *mig = line;
    return SUCCESS;
}
