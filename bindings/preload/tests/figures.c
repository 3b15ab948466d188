/* Prints the time of one call in nanoseconds: pread and pwrite of 4 KiB and of 1 MiB at the same
   offsets in a file of 64 MiB, and pread of 4 KiB by two threads on two files.
   `ci/benchmarks/preload-figures` runs it on several file systems. With DIRECT in the environment
   the files are open for O_DIRECT; CALLS is the number of small calls.

   Usage: figures DIR */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { FILE_BYTES = 64 << 20, SMALL = 4096, LARGE = 1 << 20 };

struct load {
    int fd, writes;
    size_t len;
    unsigned calls;
};

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static void *run(void *argument) {
    struct load *load = argument;
    char *buffer = aligned_alloc(4096, LARGE);
    uint64_t state = 12345;
    for (size_t at = 0; at < load->len; at++) buffer[at] = 1;
    for (unsigned call = 0; call < load->calls; call++) {
        state = state * 6364136223846793005u + 1;
        off_t at = (off_t)((state >> 33) % (FILE_BYTES / load->len) * load->len);
        ssize_t done = load->writes ? pwrite(load->fd, buffer, load->len, at) : pread(load->fd, buffer, load->len, at);
        if (done != (ssize_t)load->len) perror("figures: a short call"), exit(1);
    }
    free(buffer);
    return NULL;
}

static double time_of(struct load load) {
    double begin = now();
    run(&load);
    return (now() - begin) / load.calls;
}

static int filled(const char *dir, const char *name) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    int direct = getenv("DIRECT") ? O_DIRECT : 0;
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | direct, 0600);
    char *block = aligned_alloc(4096, LARGE);
    for (size_t at = 0; at < LARGE; at++) block[at] = 0;
    for (off_t at = 0; at < FILE_BYTES; at += LARGE)
        if (fd < 0 || pwrite(fd, block, LARGE, at) != LARGE) perror(path), exit(1);
    free(block);
    return fd;
}

int main(int count, char **args) {
    if (count != 2) return 2;
    int first = filled(args[1], "first"), second = filled(args[1], "second");
    unsigned calls = getenv("CALLS") ? (unsigned)atoi(getenv("CALLS")) : 100000;
    printf("pread-4k %.0f\n", time_of((struct load){first, 0, SMALL, calls}));
    printf("pwrite-4k %.0f\n", time_of((struct load){first, 1, SMALL, calls}));
    printf("pread-1m %.0f\n", time_of((struct load){first, 0, LARGE, calls / 100}));
    printf("pwrite-1m %.0f\n", time_of((struct load){first, 1, LARGE, calls / 100}));
    struct load loads[2] = {{first, 0, SMALL, calls}, {second, 0, SMALL, calls}};
    pthread_t threads[2];
    double begin = now();
    for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, run, &loads[i]);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    printf("pread-4k-two %.0f\n", (now() - begin) / (2 * calls));
    return close(first) || close(second);
}
