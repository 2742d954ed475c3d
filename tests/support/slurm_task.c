/* A task of Slurm: writes its CPUs, its GPUs, its variables and the CPUs of its OpenMP threads.
 *
 * slurm_task FILE [PID]: the mask is that of PID, if one is given. A line is a word and its value.
 */
#include <errno.h>
#include <fcntl.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GPUS = 8, THREADS = 256, LENGTH = 4096 };

extern char **environ;

/* Read what stands behind `begins` in the file's first line that begins so. */
static void read_line(const char *path, const char *begins, char value[LENGTH]) {
    char line[LENGTH];
    FILE *file = fopen(path, "r");
    *value = '\0';
    if (!file)
        return;
    while (fgets(line, sizeof line, file)) {
        if (strncmp(line, begins, strlen(begins)))
            continue;
        strcpy(value, line + strlen(begins));
        value[strcspn(value, "\n")] = '\0';
        break;
    }
    fclose(file);
}

int main(int count, char **words) {
    static char threads[THREADS][LENGTH];
    char path[2 * LENGTH], value[LENGTH];
    int most = omp_get_max_threads();

#pragma omp parallel
    read_line("/proc/thread-self/status", "Cpus_allowed_list:\t", threads[omp_get_thread_num()]);

    FILE *report = count > 1 ? fopen(words[1], "w") : NULL;
    if (!report)
        return 1;
    snprintf(path, sizeof path, "/proc/%s/status", count > 2 ? words[2] : "self");
    read_line(path, "Cpus_allowed_list:\t", value);
    fprintf(report, "mask %s\n", value);
    read_line("/proc/self/cgroup", "0::", value);
    snprintf(path, sizeof path, "/sys/fs/cgroup%s/cpuset.cpus.effective", value);
    read_line(path, "", value);
    fprintf(report, "cpuset %s\n", value);
    snprintf(path, sizeof path, "/run/affinityd-jobs/%s", getenv("SLURM_JOB_ID"));
    read_line(path, "gpus=", value);
    fprintf(report, "job_gpus %s\n", value);
    for (int gpu = 0; gpu < GPUS; gpu++) {
        snprintf(path, sizeof path, "/dev/nvidia%d", gpu);
        /* No driver serves it: ENXIO where the cgroup lets it be opened, EPERM where it does not. */
        if (open(path, O_RDWR) < 0 && errno == ENXIO)
            fprintf(report, "device %d\n", gpu);
    }
    for (int thread = 0; thread < most; thread++)
        fprintf(report, "thread %s\n", threads[thread]);
    for (char **entry = environ; *entry; entry++)
        if (!strchr(*entry, '\n'))
            fprintf(report, "variable %s\n", *entry);
    return fclose(report) != 0;
}
