/* Reads and writes files for a while, and reports each error number and the longest call. The data
   is checked: a block has the bytes of its last successful write, or of a write that failed since.
   Wrong bytes end the program with status 9.

   Usage: witness DIR SECONDS [THREADS] */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { BLOCK = 4096, BLOCKS = 64, MAX_ERRNO = 256, RECORD = 32 };

static const char *dir;
static double end;
static volatile sig_atomic_t is_over;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long calls, errors[MAX_ERRNO], failed_appends;
static double longest;
static const char *longest_call = "none";

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* Notes the outcome of a call. Returns true if it succeeded. */
static int note(const char *call, double began, int succeeded) {
    int error = errno;
    double took = now() - began;
    pthread_mutex_lock(&lock);
    calls++;
    if (took > longest) longest = took, longest_call = call;
    if (!succeeded && error < MAX_ERRNO) errors[error]++;
    if (!succeeded && strcmp(call, "append") == 0) failed_appends++;
    pthread_mutex_unlock(&lock);
    return succeeded;
}

#define CALL(name, expression, expected)                              \
    (began = now(), errno = 0, note(name, began, (expression) == (expected)))

static void fail(const char *text, int number, int block, uint64_t found) {
    fprintf(stderr, "witness: %s: file %d, block %d, found %llx\n", text, number, block, (unsigned long long)found);
    _exit(9);
}

struct witness {
    int number, fd, log;
    /* The last successful stamp of each block, and the first stamp that may be there beside it. */
    uint64_t stamps[BLOCKS], unsure[BLOCKS];
    long records, unsure_records;
};

static void write_block(struct witness *w, int block, uint64_t stamp) {
    uint64_t words[BLOCK / 8];
    double began;
    for (int i = 0; i < BLOCK / 8; i++) words[i] = stamp;
    if (CALL("pwrite", pwrite(w->fd, words, BLOCK, (off_t)block * BLOCK), BLOCK)) {
        w->stamps[block] = stamp, w->unsure[block] = 0;
    } else if (w->unsure[block] == 0) {
        w->unsure[block] = stamp;
    }
}

/* Words of failed writes may stand beside those of the last successful one. */
static void read_block(struct witness *w, int block, uint64_t newest) {
    uint64_t words[BLOCK / 8];
    double began;
    if (!CALL("pread", pread(w->fd, words, BLOCK, (off_t)block * BLOCK), BLOCK)) return;
    for (int i = 0; i < BLOCK / 8; i++) {
        int is_sure = words[i] == w->stamps[block];
        int is_possible = w->unsure[block] && words[i] >= w->unsure[block] && words[i] <= newest;
        if (!is_sure && !is_possible) fail("wrong bytes", w->number, block, words[i]);
    }
}

static void append_record(struct witness *w) {
    char record[RECORD + 1];
    double began;
    snprintf(record, sizeof record, "record %023ld\n", w->records);
    if (CALL("append", write(w->log, record, RECORD), RECORD)) w->records++;
    else w->unsure_records++;
}

/* A file of its own, by its name. */
static void make_file(struct witness *w) {
    char path[4096], word[5] = {0};
    double began;
    snprintf(path, sizeof path, "%s/made%d", dir, w->number);
    int fd;
    if (!CALL("open", (fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644)) >= 0, 1)) return;
    for (int i = 0; i < 8; i++) (void)CALL("write", write(fd, "word", 4), 4);
    if (CALL("fsync", fsync(fd), 0) && CALL("pread", pread(fd, word, 4, 0), 4) && strcmp(word, "word")) {
        fail("wrong word", w->number, -1, 0);
    }
    (void)CALL("close", close(fd), 0);
}

static void *run(void *argument) {
    struct witness *w = argument;
    uint64_t stamp = ((uint64_t)w->number + 1) << 40;
    unsigned state = (unsigned)w->number + 7;
    while (now() < end && !is_over) {
        int block = (int)((state = state * 1103515245u + 12345u) >> 8) & (BLOCKS - 1);
        write_block(w, block, ++stamp);
        read_block(w, (block * 7 + 1) % BLOCKS, stamp);
        read_block(w, block, stamp);
        if (stamp % 8 == 0) append_record(w);
        if (stamp % 64 == 0) make_file(w);
        usleep(500);
    }
    return NULL;
}

static void begin(struct witness *w, int number) {
    char path[4096];
    w->number = number;
    snprintf(path, sizeof path, "%s/blocks%d", dir, number);
    w->fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    snprintf(path, sizeof path, "%s/log%d", dir, number);
    w->log = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0644);
    if (w->fd < 0 || w->log < 0 || ftruncate(w->fd, (off_t)BLOCK * BLOCKS)) perror(path), exit(2);
}

static void finish(struct witness *w) {
    struct stat stat;
    char path[4096];
    snprintf(path, sizeof path, "%s/log%d", dir, w->number);
    int fd = open(path, O_RDONLY);
    if (fd < 0 || fstat(fd, &stat)) return;
    long least = w->records * RECORD, most = (w->records + w->unsure_records) * RECORD;
    if (stat.st_size < least || stat.st_size > most) fail("wrong number of records", w->number, -1, (uint64_t)stat.st_size);
}

static void end_early(int number) {
    (void)number;
    is_over = 1;
}

int main(int count, char **args) {
    if (count < 3) return 2;
    dir = args[1], end = now() + atof(args[2]);
    int threads = count > 3 ? atoi(args[3]) : 2;
    pthread_t *ids = calloc((size_t)threads, sizeof *ids);
    struct witness *all = calloc((size_t)threads, sizeof *all);
    signal(SIGTERM, end_early);
    for (int i = 0; i < threads; i++) begin(&all[i], i);
    /* The caller waits for this line. */
    puts("begun"), fflush(stdout);
    for (int i = 0; i < threads; i++) pthread_create(&ids[i], NULL, run, &all[i]);
    for (int i = 0; i < threads; i++) pthread_join(ids[i], NULL);
    long failed = 0;
    for (int i = 0; i < MAX_ERRNO; i++) failed += errors[i];
    printf("calls %ld failed %ld longest_ms %.0f %s\n", calls, failed, longest * 1000, longest_call);
    for (int i = 0; i < MAX_ERRNO; i++) {
        if (errors[i]) printf("errno %s %ld\n", i ? strerrorname_np(i) : "short", errors[i]);
    }
    if (failed_appends) printf("appends %ld\n", failed_appends);
    fflush(stdout);
    /* A server that is gone has no records. */
    if (failed == failed_appends) for (int i = 0; i < threads; i++) finish(&all[i]);
    return 0;
}
