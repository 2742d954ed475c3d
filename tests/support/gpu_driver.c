/*
 * A libcuda.so.1, or with -DHIP a libamdhip64.so, for tests that load it through ctypes.
 *
 * It exports what affinityd calls, with the types of cuda.h and hip_runtime_api.h. Its one GPU is
 * $GPU_ADDRESS; its memory is the host's, and copies are real. $GPU_FAIL is `FUNCTION ACTION`, what
 * a function does instead: return a code, crash, be killed, or hang. Calls that a driver refuses, as a copy
 * beyond an allocation, or without a current GPU, end with INVALID_VALUE or INVALID_CONTEXT.
 */

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, NOT_INITIALIZED = 3, INVALID_DEVICE = 101,
       INVALID_CONTEXT = 201 };

static int initialized, current;
static char *memory;
static size_t allocated;
static const void *registered;

static int failing(const char *function)
{
    const char *fail = getenv("GPU_FAIL");
    size_t length = strlen(function);
    if (!fail || strncmp(fail, function, length) || fail[length] != ' ')
        return SUCCESS;
    if (!strcmp(fail + length + 1, "crash"))
        raise(SIGSEGV);
    if (!strcmp(fail + length + 1, "kill"))
        raise(SIGKILL);
    while (!strcmp(fail + length + 1, "hang"))
        pause();
    return atoi(fail + length + 1);
}

#define FAILS int code = failing(__func__); if (code) return code
#define USES_GPU FAILS; if (!current) return INVALID_CONTEXT

static const char *error_name(int code)
{
    switch (code) {
    case 2: return "ERROR_OUT_OF_MEMORY";
    case INVALID_DEVICE: return "ERROR_INVALID_DEVICE";
    default: return NULL;
    }
}

static int initialize(unsigned flags) { initialized = flags == 0; return SUCCESS; }

static int find(int *device, const char *address)
{
    if (!initialized)
        return NOT_INITIALIZED;
    if (!getenv("GPU_ADDRESS") || strcmp(address, getenv("GPU_ADDRESS")))
        return INVALID_DEVICE;
    *device = 7;
    return SUCCESS;
}

static int allocate(char **address, size_t size)
{
    *address = memory = malloc(allocated = size);
    return memory ? SUCCESS : 2;
}

static int copy(void *to, const void *from, size_t size, const void *on_device)
{
    if (on_device != memory || size > allocated)
        return INVALID_VALUE;
    memcpy(to, from, size);
    return SUCCESS;
}

#ifdef HIP
int hipInit(unsigned flags) { FAILS; return initialize(flags); }
int hipDeviceGetByPCIBusId(int *device, const char *address) { FAILS; return find(device, address); }
int hipSetDevice(int device) { FAILS; return (current = device == 7) ? SUCCESS : INVALID_DEVICE; }
int hipMalloc(char **address, size_t size) { USES_GPU; return allocate(address, size); }
int hipFree(char *address) { USES_GPU; free(address); return SUCCESS; }
int hipHostRegister(void *at, size_t size, unsigned flags)
{ USES_GPU; registered = at; return size && flags == 1 ? SUCCESS : INVALID_VALUE; }
int hipHostUnregister(void *at) { USES_GPU; return at == registered ? SUCCESS : INVALID_VALUE; }
int hipMemcpyHtoD(char *to, void *from, size_t size) { USES_GPU; return copy(to, from, size, to); }
int hipMemcpyDtoH(void *to, char *from, size_t size) { USES_GPU; return copy(to, from, size, from); }
int hipDeviceSynchronize(void) { USES_GPU; return SUCCESS; }
const char *hipGetErrorName(int code) { return error_name(code); }
#else
int cuInit(unsigned flags) { FAILS; return initialize(flags); }
int cuDeviceGetByPCIBusId(int *device, const char *address) { FAILS; return find(device, address); }
int cuDevicePrimaryCtxRetain(void **context, int device)
{ FAILS; *context = &current; return device == 7 ? SUCCESS : INVALID_DEVICE; }
int cuCtxSetCurrent(void *context) { FAILS; current = context == &current; return SUCCESS; }
int cuMemAlloc_v2(char **address, size_t size) { USES_GPU; return allocate(address, size); }
int cuMemFree_v2(char *address) { USES_GPU; free(address); return SUCCESS; }
int cuMemHostRegister_v2(void *at, size_t size, unsigned flags)
{ USES_GPU; registered = at; return size && flags == 1 ? SUCCESS : INVALID_VALUE; }
int cuMemHostUnregister(void *at) { USES_GPU; return at == registered ? SUCCESS : INVALID_VALUE; }
int cuMemcpyHtoD_v2(char *to, const void *from, size_t size) { USES_GPU; return copy(to, from, size, to); }
int cuMemcpyDtoH_v2(void *to, char *from, size_t size) { USES_GPU; return copy(to, from, size, from); }
int cuCtxSynchronize(void) { USES_GPU; return SUCCESS; }
int cuGetErrorName(int code, const char **name) { *name = error_name(code); return SUCCESS; }
#endif
