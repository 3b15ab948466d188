/* A program that knows nothing of paging. It uses large memory in the ways that the preload library
 * takes over, checks every byte, and prints "ok". */

#define _GNU_SOURCE
#include <assert.h>
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1UL << 20)
#define PAGE 4096UL

#undef assert
#define assert(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "program.c:%d: %s\n", __LINE__, #condition); \
            exit(1); \
        } \
    } while (0)

static void fill(unsigned char *memory, size_t len, uint64_t salt) {
    for (size_t at = 0; at + 8 <= len; at += 512) {
        uint64_t value = at * 31 + salt;
        memcpy(memory + at, &value, 8);
    }
}

static void check(const unsigned char *memory, size_t len, uint64_t salt) {
    for (size_t at = 0; at + 8 <= len; at += 512) {
        uint64_t value;
        memcpy(&value, memory + at, 8);
        assert(value == at * 31 + salt);
    }
}

static int is_zero(const unsigned char *memory, size_t len) {
    for (size_t at = 0; at < len; at++)
        if (memory[at]) return 0;
    return 1;
}

static void heap(void) {
    unsigned char *memory = malloc(12 * MIB);
    assert(((uintptr_t)memory % PAGE) == 0);
    assert(malloc_usable_size(memory) == 12 * MIB);
    fill(memory, 12 * MIB, 1);
    check(memory, 12 * MIB, 1);
    memory = realloc(memory, 20 * MIB);
    check(memory, 12 * MIB, 1);
    memory = realloc(memory, 19 * MIB);
    check(memory, 12 * MIB, 1);
    memory = realloc(memory, 1000);
    check(memory, 1000, 1);
    memory = realloc(memory, 8 * MIB);
    check(memory, 1000, 1);
    free(memory);

    memory = calloc(8, MIB);
    assert(is_zero(memory, 8 * MIB));
    fill(memory, 8 * MIB, 2);
    check(memory, 8 * MIB, 2);
    memory = reallocarray(memory, 9, MIB);
    check(memory, 8 * MIB, 2);
    free(memory);
    assert(calloc(SIZE_MAX / 2, 3) == NULL);

    void *aligned;
    assert(posix_memalign(&aligned, 4096, 5 * MIB) == 0);
    fill(aligned, 5 * MIB, 3);
    check(aligned, 5 * MIB, 3);
    free(aligned);
    aligned = aligned_alloc(2 * MIB, 4 * MIB);
    assert(((uintptr_t)aligned % (2 * MIB)) == 0);
    free(aligned);
    assert(posix_memalign(&aligned, 3, 5 * MIB) == EINVAL);
    for (int round = 0; round < 1000; round++) {
        char *small = malloc(round);
        memset(small, 7, round);
        free(small);
    }
}

static unsigned char *map(size_t len) {
    unsigned char *memory = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert(memory != MAP_FAILED);
    return memory;
}

/* The addresses of a part that was unmapped are reserved as long as another part is mapped. */
static void holes(void) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS;
    unsigned char *memory = map(8 * MIB), *hole = memory + 2 * MIB;
    fill(memory, 8 * MIB, 10);
    /* No range goes beyond the last address. */
    assert(munmap(memory, SIZE_MAX - MIB) == -1 && errno == EINVAL);
    assert(madvise(memory, SIZE_MAX - MIB, MADV_DONTNEED) == -1 && errno == EINVAL);
    assert(mremap(memory, SIZE_MAX - MIB, MIB, MREMAP_MAYMOVE) == MAP_FAILED && errno == EINVAL);
    check(memory, 8 * MIB, 10);
    for (int round = 0; round < 3; round++) {
        assert(munmap(hole, 2 * MIB) == 0);
        assert(madvise(hole, MIB, MADV_DONTNEED) == 0);
        assert(mprotect(hole, MIB, PROT_READ) == -1 && errno == ENOMEM);
        assert(mremap(hole, MIB, 2 * MIB, MREMAP_MAYMOVE) == MAP_FAILED && errno == EFAULT);
    }
    assert(mmap(hole, MIB, PROT_READ, flags | MAP_FIXED, -1, 0) == MAP_FAILED);
    unsigned char *other = mmap(hole, MIB, PROT_READ | PROT_WRITE, flags, -1, 0);
    assert(other != MAP_FAILED && (other < memory || other >= memory + 8 * MIB));
    fill(other, MIB, 11);
    check(memory, 2 * MIB, 10);
    assert(munmap(memory, 8 * MIB) == 0);
    check(other, MIB, 11);
    assert(munmap(other, MIB) == 0);
}

/* Values of headers that are newer than some systems. */
#define ADVICE_COLLAPSE 25
#define ADVICE_GUARD_INSTALL 102
#define ADVICE_GUARD_REMOVE 103

/* Advice about 2 MiB that changes no byte, and advice that drops the bytes. */
static void advice(unsigned char *memory) {
    const int hints[] = {
        MADV_NORMAL, MADV_RANDOM, MADV_SEQUENTIAL, MADV_WILLNEED, MADV_COLD, MADV_PAGEOUT,
        MADV_POPULATE_READ, MADV_POPULATE_WRITE, MADV_HUGEPAGE, MADV_NOHUGEPAGE, ADVICE_COLLAPSE,
        MADV_MERGEABLE, MADV_UNMERGEABLE, MADV_DONTDUMP, MADV_DODUMP, MADV_DONTFORK,
    };
    fill(memory, 2 * MIB, 18);
    for (size_t n = 0; n < sizeof hints / sizeof *hints; n++)
        assert(madvise(memory, 2 * MIB, hints[n]) == 0);
    check(memory, 2 * MIB, 18);
    /* The first pages have left, and the last ones are in local memory. */
    assert(madvise(memory, MIB / 2, MADV_DONTNEED_LOCKED) == 0);
    assert(madvise(memory + 3 * MIB / 2, MIB / 2, MADV_DONTNEED_LOCKED) == 0);
    assert(is_zero(memory, MIB / 2) && is_zero(memory + 3 * MIB / 2, MIB / 2));
    check(memory + MIB / 2, MIB, 18 + MIB / 2 * 31);
    /* The kernel keeps the bytes or drops them. */
    assert(madvise(memory, 2 * MIB, MADV_FREE) == 0);
    /* An empty range is the kernel's. */
    assert(madvise(memory, 0, 7) == -1 && errno == EINVAL);
}

static void mappings(void) {
    unsigned char *memory = map(16 * MIB);
    fill(memory, 16 * MIB, 4);
    /* A hole in the middle, and a shorter end. */
    assert(munmap(memory + 4 * MIB, 2 * MIB) == 0);
    assert(munmap(memory + 15 * MIB, MIB) == 0);
    check(memory, 4 * MIB, 4);
    check(memory + 6 * MIB, 9 * MIB, 4 + 6 * MIB * 31);
    assert(madvise(memory + MIB, MIB, MADV_DONTNEED) == 0);
    assert(is_zero(memory + MIB, MIB));
    check(memory, MIB, 4);
    check(memory + 2 * MIB, 2 * MIB, 4 + 2 * MIB * 31);
    advice(memory + 2 * MIB);
    assert(mprotect(memory, MIB, PROT_READ) == 0);
    check(memory, MIB, 4);
    assert(mprotect(memory, MIB, PROT_READ | PROT_WRITE) == 0);
    fill(memory, MIB, 4);
    /* Over the hole, and beyond the end. */
    assert(munmap(memory, 16 * MIB) == 0);

    holes();

    memory = map(6 * MIB);
    fill(memory, 6 * MIB, 5);
    assert(mremap(memory, 6 * MIB, 10 * MIB, 0) == MAP_FAILED);
    memory = mremap(memory, 6 * MIB, 10 * MIB, MREMAP_MAYMOVE);
    assert(memory != MAP_FAILED);
    check(memory, 6 * MIB, 5);
    assert(is_zero(memory + 6 * MIB, 4 * MIB));
    assert(mremap(memory, 10 * MIB, 3 * MIB, 0) == memory);
    check(memory, 3 * MIB, 5);
    /* Not supported, and refused: nothing changes. */
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    assert(mmap(memory, MIB, PROT_READ, flags, -1, 0) == MAP_FAILED);
    check(memory, 3 * MIB, 5);
    assert(munmap(memory, 3 * MIB) == 0);

    /* Mappings that are not paged. */
    memory = mmap(NULL, 4 * MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert(mprotect(memory, 4 * MIB, PROT_READ | PROT_WRITE) == 0);
    fill(memory, 4 * MIB, 6);
    memory = mremap(memory, 4 * MIB, 8 * MIB, MREMAP_MAYMOVE);
    check(memory, 4 * MIB, 6);
    assert(munmap(memory, 8 * MIB) == 0);
}

/* True if a call failed with this error. */
static int fails(int outcome, int error) {
    return outcome == -1 && errno == error;
}

/* True if a mapping failed because paged memory is in its way. */
static int in_the_way(void *mapped, int error) {
    return mapped == MAP_FAILED && errno == error;
}

/* True if 2 MiB are mapped, and keep what is stored there if that is allowed. */
static int mapped(void *memory, int writable) {
    if (memory == MAP_FAILED || memory == NULL) return 0;
    if (writable) {
        fill(memory, 2 * MIB, 16);
        check(memory, 2 * MIB, 16);
    }
    return 1;
}

/* Calls that paged memory does not support: each is counted once, and behaves as it says here. The
 * memory is paged and has 2 MiB, and `local` is a page that is not paged. */
#define UNSUPPORTED(CALL) \
    CALL("shared", mapped(mmap(NULL, 2 * MIB, both, MAP_SHARED | MAP_ANONYMOUS, -1, 0), 1)) \
    CALL("hint", mapped(mmap(memory, 2 * MIB, both, flags, -1, 0), 1)) \
    CALL("fixed", mapped(mmap(elsewhere, 2 * MIB, both, flags | MAP_FIXED, -1, 0), 1)) \
    CALL("fixed-noreplace", mapped(mmap(elsewhere, 2 * MIB, both, flags | noreplace, -1, 0), 1)) \
    CALL("noreplace-over", in_the_way(mmap(memory, MIB, both, flags | noreplace, -1, 0), EEXIST)) \
    CALL("no-access", mapped(mmap(NULL, 2 * MIB, PROT_NONE, flags, -1, 0), 0)) \
    CALL("read-only", mapped(mmap(NULL, 2 * MIB, PROT_READ, flags, -1, 0), 0)) \
    CALL("executable", mapped(mmap(NULL, 2 * MIB, both | PROT_EXEC, flags, -1, 0), 1)) \
    CALL("locked", mapped(mmap(NULL, 2 * MIB, both, flags | MAP_LOCKED, -1, 0), 1)) \
    CALL("stack", mapped(mmap(NULL, 2 * MIB, both, flags | MAP_STACK, -1, 0), 1)) \
    CALL("grows-down", mapped(mmap(NULL, 2 * MIB, both, flags | MAP_GROWSDOWN, -1, 0), 1)) \
    CALL("32-bit", mapped(mmap(NULL, 2 * MIB, both, flags | MAP_32BIT, -1, 0), 1)) \
    /* The machine may have no huge pages. */ \
    CALL("huge", mapped(mmap(NULL, 2 * MIB, both, flags | MAP_HUGETLB, -1, 0), 1) || errno == ENOMEM) \
    CALL("alignment", mapped(aligned_alloc(2 * MIB, 2 * MIB), 1)) \
    CALL("length", malloc(1UL << 62) == NULL) \
    CALL("mlock", mlock(memory, 2 * MIB) == 0) \
    CALL("mlock2", mlock2(memory, 2 * MIB, MLOCK_ONFAULT) == 0) \
    CALL("mlockall", mlockall(MCL_CURRENT | MCL_FUTURE) == 0) \
    CALL("mprotect", mprotect(memory, MIB, PROT_NONE) == 0) \
    CALL("pkey-mprotect", pkey_mprotect(memory, MIB, PROT_NONE, -1) == 0) \
    CALL("key", pkey_mprotect(memory, MIB, both, 3) == 0) \
    CALL("key-and-protection", pkey_mprotect(memory, MIB, PROT_NONE, 3) == 0) \
    CALL("over-paged", in_the_way(mmap(memory, MIB, both, flags | MAP_FIXED, -1, 0), ENOMEM)) \
    CALL("remap-to-paged", in_the_way(mremap(local, PAGE, PAGE, to_fixed, memory), ENOMEM)) \
    CALL("remap-from-paged", in_the_way(mremap(memory, MIB, MIB, to_fixed, elsewhere), ENOMEM)) \
    CALL("remap-and-keep", in_the_way(mremap(memory, MIB, MIB, and_keep), ENOMEM)) \
    CALL("remove", fails(madvise(memory, MIB, MADV_REMOVE), EINVAL)) \
    CALL("do-fork", fails(madvise(memory, MIB, MADV_DOFORK), EINVAL)) \
    CALL("wipe-on-fork", fails(madvise(memory, MIB, MADV_WIPEONFORK), EINVAL)) \
    CALL("keep-on-fork", fails(madvise(memory, MIB, MADV_KEEPONFORK), EINVAL)) \
    CALL("poison", fails(madvise(memory, MIB, MADV_HWPOISON), EINVAL)) \
    CALL("install-guard", fails(madvise(memory, MIB, ADVICE_GUARD_INSTALL), EINVAL)) \
    CALL("remove-guard", fails(madvise(memory, MIB, ADVICE_GUARD_REMOVE), EINVAL)) \
    CALL("unknown-advice", fails(madvise(memory, MIB, 7), EINVAL)) \
    CALL("negative-advice", fails(madvise(memory, MIB, -1), EINVAL))

/* Makes one unsupported call, or prints the names of all. Returns 0 if there is no such call. */
static int unsupported(const char *name) {
    int found = 0, flags = MAP_PRIVATE | MAP_ANONYMOUS, both = PROT_READ | PROT_WRITE;
    int noreplace = MAP_FIXED_NOREPLACE;
    int to_fixed = MREMAP_MAYMOVE | MREMAP_FIXED, and_keep = MREMAP_MAYMOVE | MREMAP_DONTUNMAP;
#define PRINT(call, holds) puts(call);
#define MAKE(call, holds) \
    if (strcmp(name, call) == 0) { \
        assert(holds); \
        found = 1; \
    }
    if (!name) {
        UNSUPPORTED(PRINT)
        return 1;
    }
    unsigned char *memory = map(2 * MIB);
    fill(memory, 2 * MIB, 15);
    /* Small mappings are not meant to be paged. */
    unsigned char *local = mmap(NULL, PAGE, PROT_NONE, flags, -1, 0);
    assert(local != MAP_FAILED && mprotect(local, PAGE, both) == 0);
    /* Free addresses. The kernel is asked behind the back of the library. */
    unsigned char *elsewhere = (void *)syscall(SYS_mmap, NULL, 2 * MIB, both, flags, -1, 0);
    assert(elsewhere != MAP_FAILED && syscall(SYS_munmap, elsewhere, 2 * MIB) == 0);
    fill(local, PAGE, 17);
    UNSUPPORTED(MAKE)
    /* Nothing changed, and pages still leave. */
    for (int round = 0; round < 2; round++) {
        check(memory, 2 * MIB, 15);
        check(local, PAGE, 17);
    }
    assert(munmap(memory, 2 * MIB) == 0);
    return found;
}

static unsigned char *shared, *handed_over;

static void *thread(void *argument) {
    size_t number = (size_t)argument;
    if (number == 1) {
        /* A name like those of the pager's threads. */
        pthread_setname_np(pthread_self(), "rdmabox-user");
        free(handed_over);
    }
    for (uint64_t salt = 0; salt < 3; salt++) {
        for (size_t page = number; page < 10 * MIB / PAGE; page += 4) memset(shared + page * PAGE, (int)(number + salt), PAGE);
        for (size_t page = number; page < 10 * MIB / PAGE; page += 4)
            for (size_t at = 0; at < PAGE; at += 100) assert(shared[page * PAGE + at] == number + salt);
        unsigned char *own = malloc(2 * MIB);
        fill(own, 2 * MIB, number);
        check(own, 2 * MIB, number);
        free(own);
    }
    return NULL;
}

static void threads(void) {
    pthread_t ids[4];
    shared = malloc(10 * MIB);
    handed_over = malloc(2 * MIB);
    for (size_t number = 0; number < 4; number++) assert(pthread_create(&ids[number], NULL, thread, (void *)number) == 0);
    for (size_t number = 0; number < 4; number++) pthread_join(ids[number], NULL);
    free(shared);
}

static void processes(void) {
    unsigned char *memory = malloc(6 * MIB);
    fill(memory, 6 * MIB, 8);
    assert(system("test -z \"$LD_PRELOAD$RFS_PAGING_LOCAL\"") == 0);
    pid_t child = fork();
    if (child == 0) {
        /* The child has a pager of its own, for memory of its own. */
        unsigned char *own = malloc(6 * MIB);
        fill(own, 6 * MIB, 9);
        check(own, 6 * MIB, 9);
        free(own);
        _exit(0);
    }
    int status;
    assert(waitpid(child, &status, 0) == child && status == 0);
    check(memory, 6 * MIB, 8);
    free(memory);
}

/* A child of fork that reads a byte of its parent ends by SIGSEGV. The parent keeps its bytes. */
static void read_in_a_child(unsigned char *memory, size_t at) {
    unsigned char expected = memory[at];
    pid_t child = fork();
    if (child == 0) {
        struct rlimit no_core = {0, 0};
        setrlimit(RLIMIT_CORE, &no_core);
        alarm(20);
        volatile unsigned char *of_parent = memory;
        _exit(of_parent[at] == expected ? 1 : 2);
    }
    int status;
    assert(waitpid(child, &status, 0) == child);
    assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
}

static void children_read_large(void) {
    unsigned char *memory = malloc(6 * MIB);
    fill(memory, 6 * MIB, 19);
    /* The first pages have left, and the last ones are in local memory. */
    for (size_t at = 0; at < 6 * MIB; at += 2 * MIB) read_in_a_child(memory, at);
    read_in_a_child(memory, 6 * MIB - 8);
    check(memory, 6 * MIB, 19);
    free(memory);
}

/* As above, for blocks of small allocations as well. */
static void children_read_small(void) {
    unsigned char *blocks[4096];
    children_read_large();
    for (size_t n = 0; n < 4096; n++) fill(blocks[n] = malloc(1024), 1024, n);
    for (size_t n = 0; n < 4096; n += 1365) read_in_a_child(blocks[n], 512);
    for (size_t n = 0; n < 4096; n++) {
        check(blocks[n], 1024, n);
        free(blocks[n]);
    }
}

static volatile int stop;

static void *allocate_and_free(void *argument) {
    while (!stop) {
        unsigned char *memory = malloc(2 * MIB);
        memory[MIB] = 1;
        free(memory);
    }
    return argument;
}

/* A fork while other threads take and wait for the lock of the library. */
static void forks(void) {
    pthread_t ids[2];
    for (int n = 0; n < 2; n++) assert(pthread_create(&ids[n], NULL, allocate_and_free, NULL) == 0);
    for (int round = 0; round < 200; round++) {
        pid_t child = fork();
        if (child == 0) {
            alarm(20);
            /* Asks the library for the address. */
            free(aligned_alloc(PAGE, PAGE));
            _exit(0);
        }
        int status;
        assert(waitpid(child, &status, 0) == child && status == 0);
    }
    stop = 1;
    for (int n = 0; n < 2; n++) pthread_join(ids[n], NULL);
}

/* A node of a list, of any length. */
struct node {
    struct node *next;
    size_t len;
    char text[];
};

#define LISTS 64

static void *small_allocations(void *argument) {
    uint64_t random = (uintptr_t)argument * 7919 + 1;
    struct node *lists[LISTS] = {0};
    for (size_t step = 0; step < 60000; step++) {
        random = random * 6364136223846793005ULL + 1442695040888963407ULL;
        size_t list = random >> 58, len = (random >> 40) % (step % 50 ? 700 : 40000);
        struct node *node = lists[list];
        if (step % 3 == 2 && node) {
            lists[list] = node->next;
            for (size_t at = 0; at < node->len; at++) assert(node->text[at] == (char)(node->len + at));
            free(node);
            continue;
        }
        node = step % 2 ? malloc(sizeof(struct node) + len) : calloc(1, sizeof(struct node) + len);
        if (step % 2 == 0) for (size_t at = 0; at < len; at++) assert(node->text[at] == 0);
        assert((uintptr_t)node % 16 == 0 && malloc_usable_size(node) >= sizeof(struct node) + len);
        node->len = len;
        for (size_t at = 0; at < len; at++) node->text[at] = (char)(len + at);
        if (step % 5 == 0) {
            size_t more = len + len / 2;
            node = realloc(node, sizeof(struct node) + more);
            for (size_t at = len; at < more; at++) node->text[at] = (char)(more + at);
            for (size_t at = 0; at < len; at++) {
                assert(node->text[at] == (char)(len + at));
                node->text[at] = (char)(more + at);
            }
            node->len = more;
        }
        node->next = lists[list];
        lists[list] = node;
    }
    for (size_t list = 0; list < LISTS; list++) {
        while (lists[list]) {
            struct node *node = lists[list];
            lists[list] = node->next;
            for (size_t at = 0; at < node->len; at++) assert(node->text[at] == (char)(node->len + at));
            free(node);
        }
    }
    return NULL;
}

/* Many small allocations, and functions of libc that allocate. */
static void small(void) {
    pthread_t ids[3];
    for (size_t n = 0; n < 3; n++) assert(pthread_create(&ids[n], NULL, small_allocations, (void *)n) == 0);
    for (size_t n = 0; n < 3; n++) pthread_join(ids[n], NULL);
    char *copy = strdup("copied by libc"), *line = malloc(10);
    size_t len = 10;
    assert(strcmp(copy, "copied by libc") == 0);
    FILE *file = fopen("/proc/self/status", "r");
    while (getline(&line, &len, file) > 0) assert(malloc_usable_size(line) >= len);
    fclose(file);
    char *grown = realloc(copy, 3000);
    assert(strcmp(grown, "copied by libc") == 0);
    for (size_t alignment = 16; alignment <= PAGE; alignment *= 2) {
        void *memory;
        assert(posix_memalign(&memory, alignment, 100) == 0 && (uintptr_t)memory % alignment == 0);
        free(memory);
    }
    assert(system("test -z \"$RFS_PAGING_SMALL\"") == 0);
    char *of_parent = malloc(100);
    pid_t child = fork();
    if (child == 0) {
        char *own = malloc(100);
        memset(own, 1, 100);
        free(own);
        free(of_parent);
        _exit(0);
    }
    int status;
    assert(waitpid(child, &status, 0) == child && status == 0);
    free(of_parent);
    free(grown);
    free(line);
}

/* A child of fork has no small blocks of its parent. Other memory must not come to lie there. */
static void small_blocks_of_the_parent(void) {
    char *block = malloc(1000);
    char *page = (char *)((uintptr_t)block & ~(uintptr_t)(PAGE - 1));
    pid_t child = fork();
    if (child == 0) {
        alarm(20);
        /* The kernel takes an address that is free. */
        void *there = (void *)syscall(SYS_mmap, page, 300 << 10, PROT_READ | PROT_WRITE,
                                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        assert(there != MAP_FAILED && there != page);
        for (int n = 0; n < 50; n++) {
            unsigned char *memory = malloc(300 << 10);
            memset(memory, n + 1, 300 << 10);
            memory = realloc(memory, 600 << 10);
            for (size_t at = 0; at < 300 << 10; at++) assert(memory[at] == n + 1);
            if (n % 2) free(memory);
        }
        free(block);
        pid_t grandchild = fork();
        if (grandchild == 0) _exit(0);
        int status;
        assert(waitpid(grandchild, &status, 0) == grandchild && status == 0);
        _exit(0);
    }
    int status;
    assert(waitpid(child, &status, 0) == child && status == 0);
    free(block);
}

/* Memory that does not change while a handler loads from it. */
static unsigned char *constant;
static volatile size_t handled, wrong;

static void load(int signal) {
    size_t page = ++handled * 7 % (8 * MIB / PAGE);
    uint64_t value;
    memcpy(&value, constant + page * PAGE, 8);
    if (value != page * PAGE * 31 + 12) wrong++;
}

/* A signal each millisecond, whose handler loads from paged memory on any of the threads. */
static void signals(void) {
    constant = malloc(8 * MIB);
    fill(constant, 8 * MIB, 12);
    struct sigaction action = {.sa_handler = load, .sa_flags = SA_RESTART};
    struct itimerval each = {{0, 1000}, {0, 1000}}, none = {{0}};
    assert(sigaction(SIGALRM, &action, NULL) == 0);
    assert(setitimer(ITIMER_REAL, &each, NULL) == 0);
    threads();
    check(constant, 8 * MIB, 12);
    assert(setitimer(ITIMER_REAL, &none, NULL) == 0);
    assert(handled > 20 && wrong == 0);
    free(constant);
}

/* 100 MiB in blocks of 1008 bytes, which are not freed. */
static void many_small(void) {
    uint64_t **blocks = malloc(100 * 1024 * sizeof(uint64_t *));
    for (size_t n = 0; n < 100 * 1024; n++) {
        blocks[n] = malloc(1008);
        blocks[n][0] = blocks[n][125] = n;
    }
    for (size_t n = 0; n < 100 * 1024; n++) assert(blocks[n][0] == n && blocks[n][125] == n);
}

/* Fills and checks much memory, twice. */
static void much(void) {
    unsigned char *memory = malloc(20 * MIB);
    for (int round = 0; round < 2; round++) {
        fill(memory, 20 * MIB, 14 + round);
        check(memory, 20 * MIB, 14 + round);
    }
    free(memory);
}

/* Fills memory, and checks it when a line comes. */
static void wait_for_a_line(void) {
    unsigned char *memory = malloc(8 * MIB);
    fill(memory, 8 * MIB, 13);
    puts("filled");
    fflush(stdout);
    assert(getchar() == '\n');
    check(memory, 8 * MIB, 13);
}

/* Fills and checks its part with new values, until the program is to end. */
static void *rounds_of_a_thread(void *argument) {
    unsigned char *own = shared + (size_t)argument * 4 * MIB;
    for (uint64_t salt = 0; !stop; salt++) {
        fill(own, 4 * MIB, salt);
        check(own, 4 * MIB, salt);
        puts("round");
        fflush(stdout);
    }
    return NULL;
}

/* Two threads use memory until a line comes. */
static void rounds(void) {
    pthread_t ids[2];
    shared = malloc(8 * MIB);
    for (size_t n = 0; n < 2; n++) assert(pthread_create(&ids[n], NULL, rounds_of_a_thread, (void *)n) == 0);
    assert(getchar() == '\n');
    stop = 1;
    for (int n = 0; n < 2; n++) pthread_join(ids[n], NULL);
    free(shared);
}

/* Returns true if the program is to run in this mode only, and runs it. */
static int mode(const char *name, const char *given, void (*run)(void)) {
    if (strcmp(name, given) != 0) return 0;
    run();
    puts("ok");
    return 1;
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "unsupported") == 0) return unsupported(argv[2]) ? 0 : 2;
    if (argc > 1) {
        int known = mode("small", argv[1], small) || mode("small-forks", argv[1], small_blocks_of_the_parent) ||
                    mode("forks", argv[1], forks) || mode("signals", argv[1], signals) ||
                    mode("wait", argv[1], wait_for_a_line) || mode("much", argv[1], much) ||
                    mode("many-small", argv[1], many_small) || mode("rounds", argv[1], rounds) ||
                    mode("children", argv[1], children_read_large) ||
                    mode("small-children", argv[1], children_read_small);
        return known ? 0 : 2;
    }
    heap();
    mappings();
    threads();
    processes();
    puts("ok");
    return 0;
}
