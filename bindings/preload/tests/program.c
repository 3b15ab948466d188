/* Reads and writes files in all ways that librfs_preload.so has to get right, and checks the
   results. It passes on every file system, with and without the library.

   Usage: program DIR [SECONDS [SEED]] */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK(condition)                                                                        \
    do {                                                                                        \
        if (!(condition)) {                                                                     \
            fprintf(stderr, "program: %s:%d: %s (errno %d: %s)\n", __func__, __LINE__, #condition, \
                    errno, strerror(errno));                                                    \
            abort();                                                                            \
        }                                                                                       \
    } while (0)

static const char *dir;
static unsigned seconds = 2, seed = 1;
extern char **environ;

static char *path_of(const char *name) {
    char *out;
    CHECK(asprintf(&out, "%s/%s", dir, name) > 0);
    return out;
}

static int open_new(const char *name, int flags) {
    char *path = path_of(name);
    int fd = open(path, flags | O_CREAT | O_TRUNC, 0644);
    CHECK(fd >= 0);
    free(path);
    return fd;
}

/* Makes the library open the file: the kernel does the first calls. */
static void warm(int fd) {
    char byte;
    for (int at = 0; at < 8; at++) CHECK(pread(fd, &byte, 1, 0) >= 0);
}

static void fill(int fd, int count) {
    char line[32];
    for (int at = 0; at < count; at++) {
        snprintf(line, sizeof line, "line %04d.\n", at);
        CHECK(write(fd, line, 11) == 11);
    }
    CHECK(lseek(fd, 0, SEEK_SET) == 0);
}

static int line_at(const char *bytes) {
    int number;
    CHECK(sscanf(bytes, "line %4d.", &number) == 1);
    return number;
}

static void expect_line(int fd, int number) {
    char line[12] = {0};
    CHECK(read(fd, line, 11) == 11);
    if (line_at(line) != number) fprintf(stderr, "program: read %.11s, not line %d\n", line, number);
    CHECK(line_at(line) == number);
}

static void join_child(pid_t child) {
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* --- Random operations beside a model, in threads --- */

enum { MODEL = 1 << 18 };

struct model {
    unsigned state;
    int number, fd;
    size_t size, offset;
    char *bytes, *buffer;
};

static unsigned next(struct model *m) {
    m->state = m->state * 1103515245u + 12345u;
    return m->state >> 8;
}

static void model_write(struct model *m, size_t at, size_t len) {
    for (size_t i = 0; i < len; i++) m->buffer[i] = (char)next(m);
    memcpy(m->bytes + at, m->buffer, len);
    if (len && at + len > m->size) m->size = at + len;
}

static size_t model_left(struct model *m, size_t at, size_t len) {
    return at >= m->size ? 0 : len < m->size - at ? len : m->size - at;
}

static void model_step(struct model *m) {
    size_t len = next(m) % 3 ? next(m) % 9000 : next(m) % 60000, at = next(m) % (MODEL - 60000), left;
    struct iovec parts[3];
    struct stat stat;
    for (int i = 0; i < 3; i++) parts[i] = (struct iovec){m->buffer + i * (len / 3), len / 3};
    if (m->offset + len >= MODEL) CHECK((m->offset = (size_t)lseek(m->fd, 0, SEEK_SET)) == 0);
    switch (next(m) % 14) {
    case 0:
        model_write(m, at, len);
        CHECK(pwrite(m->fd, m->buffer, len, (off_t)at) == (ssize_t)len);
        break;
    case 1:
        model_write(m, m->offset, len);
        CHECK(write(m->fd, m->buffer, len) == (ssize_t)len);
        m->offset += len;
        break;
    case 2:
        len = len / 3 * 3;
        model_write(m, m->offset, len);
        CHECK(writev(m->fd, parts, 3) == (ssize_t)len);
        m->offset += len;
        break;
    case 3:
        len = len / 3 * 3;
        model_write(m, at, len);
        CHECK(pwritev(m->fd, parts, 3, (off_t)at) == (ssize_t)len);
        break;
    case 4:
    case 5:
        left = model_left(m, at, len);
        CHECK(pread(m->fd, m->buffer, len, (off_t)at) == (ssize_t)left);
        CHECK(!memcmp(m->buffer, m->bytes + at, left));
        break;
    case 6:
        left = model_left(m, m->offset, len);
        CHECK(read(m->fd, m->buffer, len) == (ssize_t)left);
        CHECK(!memcmp(m->buffer, m->bytes + m->offset, left));
        m->offset += left;
        break;
    case 7:
        len = len / 3 * 3, left = model_left(m, m->offset, len);
        CHECK(readv(m->fd, parts, 3) == (ssize_t)left);
        CHECK(!memcmp(m->buffer, m->bytes + m->offset, left));
        m->offset += left;
        break;
    case 8:
        len = len / 3 * 3, left = model_left(m, at, len);
        CHECK(preadv(m->fd, parts, 3, (off_t)at) == (ssize_t)left);
        CHECK(!memcmp(m->buffer, m->bytes + at, left));
        break;
    case 9:
        CHECK(lseek(m->fd, (off_t)at, SEEK_SET) == (off_t)at);
        m->offset = at;
        break;
    case 10:
        if (at < m->size) memset(m->bytes + at, 0, m->size - at);
        m->size = at;
        CHECK(ftruncate(m->fd, (off_t)at) == 0);
        break;
    case 11:
        CHECK(fstat(m->fd, &stat) == 0 && (size_t)stat.st_size == m->size && S_ISREG(stat.st_mode));
        CHECK(lseek(m->fd, 0, SEEK_END) == (off_t)m->size);
        m->offset = m->size;
        break;
    case 12: {
        int copy = next(m) % 2 ? dup(m->fd) : fcntl(m->fd, F_DUPFD_CLOEXEC, 500);
        CHECK(copy >= 0 && close(m->fd) == 0);
        m->fd = copy;
        CHECK(lseek(m->fd, 0, SEEK_CUR) == (off_t)m->offset);
        break;
    }
    default:
        CHECK((next(m) % 2 ? fsync(m->fd) : fdatasync(m->fd)) == 0);
    }
}

static void *run_model(void *argument) {
    struct model *m = argument;
    char name[32];
    time_t end = time(NULL) + seconds;
    m->bytes = calloc(1, MODEL), m->buffer = malloc(MODEL);
    snprintf(name, sizeof name, "model%d", m->number);
    for (int round = 0; time(NULL) < end; round++) {
        memset(m->bytes, 0, MODEL);
        m->size = m->offset = 0;
        m->fd = open_new(name, O_RDWR);
        for (int step = 0; step < 400 && time(NULL) < end; step++) model_step(m);
        CHECK(close(m->fd) == 0);
        /* A new look at the file, by its name. */
        char *path = path_of(name);
        FILE *file = fopen(path, "r");
        CHECK(file && fread(m->buffer, 1, MODEL, file) == m->size && !memcmp(m->buffer, m->bytes, m->size));
        fclose(file);
        CHECK(unlink(path) == 0);
        free(path);
    }
    free(m->bytes), free(m->buffer);
    return NULL;
}

static void test_models(void) {
    enum { THREADS = 8 };
    pthread_t threads[THREADS];
    struct model models[THREADS] = {0};
    for (int i = 0; i < THREADS; i++) {
        models[i].number = i, models[i].state = seed * 977 + (unsigned)i;
        CHECK(pthread_create(&threads[i], NULL, run_model, &models[i]) == 0);
    }
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
}

/* --- Many threads and one file --- */

static int shared_fd;

static void *run_shared(void *argument) {
    char block[512], back[512];
    off_t at = (off_t)(intptr_t)argument * 512;
    for (int round = 0; round < 60; round++) {
        memset(block, round + (int)(intptr_t)argument, sizeof block);
        CHECK(pwrite(shared_fd, block, sizeof block, at) == sizeof block);
        CHECK(pread(shared_fd, back, sizeof back, at) == sizeof back && !memcmp(block, back, sizeof back));
        /* One record at the shared offset. */
        CHECK(round % 20 || write(shared_fd, block, 1) == 1);
    }
    return NULL;
}

static void test_threads(void) {
    enum { THREADS = 64 };
    pthread_t threads[THREADS];
    shared_fd = open_new("shared", O_RDWR);
    CHECK(lseek(shared_fd, 1 << 20, SEEK_SET) == 1 << 20);
    for (intptr_t i = 0; i < THREADS; i++) CHECK(pthread_create(&threads[i], NULL, run_shared, (void *)i) == 0);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    CHECK(lseek(shared_fd, 0, SEEK_CUR) == (1 << 20) + 3 * THREADS);
    CHECK(lseek(shared_fd, 0, SEEK_END) == (1 << 20) + 3 * THREADS);
    CHECK(close(shared_fd) == 0);
}

/* --- Offsets that descriptors and processes share --- */

static void test_copies(void) {
    int fd = open_new("copies", O_RDWR), other = open_new("other", O_RDWR);
    fill(fd, 100), warm(fd), fill(other, 10), warm(other);
    expect_line(fd, 0);
    int copy = dup(fd), high = fcntl(fd, F_DUPFD, 700);
    CHECK(copy > 2 && high >= 700);
    expect_line(copy, 1), expect_line(high, 2), expect_line(fd, 3);
    CHECK(close(fd) == 0);
    expect_line(copy, 4);
    CHECK(dup2(copy, other) == other);
    expect_line(other, 5), expect_line(high, 6);
    CHECK(dup2(copy, copy) == copy && dup3(copy, copy, 0) == -1 && errno == EINVAL);
    expect_line(copy, 7);
    CHECK(close(copy) == 0 && close(high) == 0);
    expect_line(other, 8);
    CHECK(close(other) == 0 && read(other, &fd, 1) == -1 && errno == EBADF);
}

static void test_fork(void) {
    int fd = open_new("fork", O_RDWR);
    fill(fd, 100), warm(fd);
    expect_line(fd, 0);
    pid_t child = fork();
    if (child == 0) {
        expect_line(fd, 1);
        CHECK(pwrite(fd, "LINE", 4, 0) == 4);
        int own = open_new("of-child", O_RDWR);
        fill(own, 10), warm(own), expect_line(own, 0), expect_line(own, 1);
        _exit(0);
    }
    join_child(child);
    expect_line(fd, 2);
    char word[4];
    CHECK(pread(fd, word, 4, 0) == 4 && !memcmp(word, "LINE", 4));
    /* A second child, after the offset has moved in both. */
    if ((child = fork()) == 0) {
        expect_line(fd, 3);
        _exit(0);
    }
    join_child(child);
    expect_line(fd, 4);
    CHECK(close(fd) == 0);
}

static void test_programs(void) {
    int fd = open_new("programs", O_RDWR);
    fill(fd, 100), warm(fd);
    expect_line(fd, 0);
    char script[64], *args[] = {"sh", "-c", script, NULL};
    snprintf(script, sizeof script, "read -r l <&%d && [ \"$l\" = 'line 0001.' ]", fd);
    pid_t child = fork();
    if (child == 0) execl("/bin/sh", "sh", "-c", script, NULL), _exit(9);
    join_child(child);
    expect_line(fd, 2);
    snprintf(script, sizeof script, "read -r l <&%d && [ \"$l\" = 'line 0003.' ]", fd);
    CHECK(posix_spawn(&child, "/bin/sh", NULL, NULL, args, environ) == 0);
    join_child(child);
    snprintf(script, sizeof script, "read -r l <&%d && [ \"$l\" = 'line 0004.' ]", fd);
    if ((child = vfork()) == 0) execve("/bin/sh", args, environ), _exit(9);
    join_child(child);
    snprintf(script, sizeof script, "read -r l <&%d && [ \"$l\" = 'line 0005.' ]", fd);
    CHECK(system(script) == 0);
    snprintf(script, sizeof script, "read -r l <&%d && echo \"$l\"", fd);
    char line[32] = {0};
    FILE *pipe = popen(script, "r");
    CHECK(pipe && fgets(line, sizeof line, pipe) && line_at(line) == 6 && pclose(pipe) == 0);
    expect_line(fd, 7);
    CHECK(close(fd) == 0);
}

/* A child of vfork has descriptors of its own. */
static void test_vfork(void) {
    int fd = open_new("vfork", O_RDWR);
    fill(fd, 100), warm(fd);
    volatile int copied = 0;
    pid_t child = vfork();
    if (child == 0) {
        copied = dup2(fd, 900) == 900;
        close(fd);
        _exit(0);
    }
    join_child(child);
    char byte;
    CHECK(copied && pread(900, &byte, 1, 0) == -1 && errno == EBADF);
    expect_line(fd, 0);
    CHECK(pread(fd, &byte, 1, 0) == 1 && byte == 'l' && close(fd) == 0);
}

static void test_messages(void) {
    int fd = open_new("messages", O_RDWR), pair[2];
    fill(fd, 100), warm(fd);
    expect_line(fd, 0);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    pid_t child = fork();
    if (child != 0) {
        /* Opened after the fork: the child gets it by message only. */
        int sent = open_new("sent", O_RDWR);
        fill(sent, 100), warm(sent);
        expect_line(sent, 0);
        char byte = 'x';
        union {
            struct cmsghdr header;
            char room[CMSG_SPACE(sizeof(int))];
        } control = {0};
        struct iovec part = {&byte, 1};
        struct msghdr message = {
            .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
        control.header = (struct cmsghdr){
            .cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
        memcpy(CMSG_DATA(&control.header), &sent, sizeof sent);
        CHECK(sendmsg(pair[0], &message, 0) == 1);
        join_child(child);
        expect_line(sent, 2);
        CHECK(close(sent) == 0 && close(fd) == 0 && close(pair[0]) == 0 && close(pair[1]) == 0);
        return;
    }
    char byte, room[CMSG_SPACE(sizeof(int))];
    struct iovec part = {&byte, 1};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    CHECK(recvmsg(pair[1], &message, 0) == 1);
    int got;
    memcpy(&got, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof got);
    expect_line(got, 1);
    _exit(0);
}

/* --- Appends --- */

static void append_records(int fd, int writer) {
    char record[64];
    for (int at = 0; at < 100; at++) {
        snprintf(record, sizeof record, "writer %02d record %04d %-40s\n", writer, at, "x");
        if (at % 3 == 0) {
            struct iovec parts[2] = {{record, 20}, {record + 20, 43}};
            CHECK(writev(fd, parts, 2) == 63);
        } else {
            CHECK(write(fd, record, 63) == 63);
        }
    }
}

static void *append_in_thread(void *number) {
    char *path = path_of("appended");
    int fd = open(path, O_WRONLY | O_APPEND);
    CHECK(fd >= 0);
    append_records(fd, (int)(intptr_t)number);
    CHECK(close(fd) == 0);
    free(path);
    return NULL;
}

static void test_appends(void) {
    int fd = open_new("appended", O_RDWR | O_APPEND), next_record[8] = {0};
    pthread_t threads[4];
    pid_t children[4];
    for (intptr_t i = 0; i < 4; i++) {
        if ((children[i] = fork()) == 0) append_in_thread((void *)(i + 4)), _exit(0);
    }
    for (intptr_t i = 0; i < 4; i++) CHECK(pthread_create(&threads[i], NULL, append_in_thread, (void *)i) == 0);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL), join_child(children[i]);
    char record[64] = {0};
    for (int at = 0; at < 800; at++) {
        int writer, number;
        CHECK(pread(fd, record, 63, at * 63) == 63 && record[62] == '\n');
        CHECK(sscanf(record, "writer %d record %d", &writer, &number) == 2);
        CHECK(writer < 8 && next_record[writer]++ == number);
    }
    CHECK(lseek(fd, 0, SEEK_END) == 800 * 63);
    /* Linux appends also with pwrite. */
    CHECK(pwrite(fd, "end", 3, 0) == 3 && pread(fd, record, 3, 800 * 63) == 3 && !memcmp(record, "end", 3));
    /* The flag comes and goes. */
    CHECK(fcntl(fd, F_SETFL, 0) == 0 && pwrite(fd, "xx", 2, 0) == 2);
    CHECK(pread(fd, record, 2, 0) == 2 && !memcmp(record, "xx", 2) && close(fd) == 0);
}

/* --- Mappings --- */

static void test_mappings(void) {
    int fd = open_new("mapped", O_RDWR);
    char page[4096], back[4096];
    memset(page, 'a', sizeof page);
    for (int at = 0; at < 16; at++) CHECK(write(fd, page, sizeof page) == sizeof page);
    warm(fd);
    memset(page, 'b', sizeof page);
    CHECK(pwrite(fd, page, sizeof page, 4096) == sizeof page);
    char *map = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(map != MAP_FAILED && map[0] == 'a' && map[4096] == 'b' && map[8192] == 'a');
    memset(page, 'c', sizeof page);
    CHECK(pwrite(fd, page, sizeof page, 8192) == sizeof page && map[8192] == 'c');
    map[0] = 'd';
    CHECK(pread(fd, back, 1, 0) == 1 && back[0] == 'd');
    CHECK(lseek(fd, 0, SEEK_SET) == 0 && read(fd, back, 1) == 1 && back[0] == 'd');
    /* Through another descriptor, and through one that was open before. */
    char *path = path_of("mapped");
    int other = open(path, O_RDWR);
    warm(other);
    map[1] = 'e';
    CHECK(pread(other, back, 2, 0) == 2 && back[1] == 'e');
    CHECK(pwrite(other, "f", 1, 2) == 1 && map[2] == 'f');
    CHECK(munmap(map, 65536) == 0 && close(fd) == 0 && close(other) == 0);
    /* A private mapping of a file whose bytes the library has written. */
    fd = open_new("private", O_RDWR);
    fill(fd, 1000), warm(fd);
    CHECK(pwrite(fd, "LINE", 4, 0) == 4);
    map = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, fd, 0);
    CHECK(map != MAP_FAILED && !memcmp(map, "LINE 0000.", 10));
    CHECK(munmap(map, 4096) == 0 && close(fd) == 0);
    free(path);
}

/* --- Other processes without the library --- */

static void run_plain(const char *format, const char *path) {
    char *command, *whole;
    CHECK(asprintf(&command, format, path) > 0 && asprintf(&whole, "unset LD_PRELOAD; %s", command) > 0);
    CHECK(system(whole) == 0);
    free(command), free(whole);
}

static void test_others(void) {
    char *path = path_of("others"), back[16];
    int fd = open_new("others", O_RDWR);
    fill(fd, 100), warm(fd);
    CHECK(pwrite(fd, "LINE", 4, 0) == 4);
    run_plain("[ \"$(head -c 4 %s)\" = LINE ]", path);
    for (int round = 0; round < 3; round++) {
        CHECK(pwrite(fd, round % 2 ? "line" : "Line", 4, 11) == 4);
        run_plain(round % 2 ? "[ \"$(head -c 15 %s | tail -c 4)\" = line ]" : "[ \"$(head -c 15 %s | tail -c 4)\" = Line ]", path);
        run_plain("printf 'ZZZZ' | dd of=%s bs=1 seek=22 conv=notrunc 2>/dev/null", path);
        CHECK(pread(fd, back, 4, 22) == 4 && !memcmp(back, "ZZZZ", 4));
        CHECK(pwrite(fd, "line", 4, 22) == 4);
    }
    run_plain("printf 'tail' >> %s", path);
    CHECK(pread(fd, back, 16, 1100) == 4 && !memcmp(back, "tail", 4));
    run_plain("truncate -s 100 %s", path);
    struct stat stat;
    CHECK(pread(fd, back, 16, 1100) == 0 && fstat(fd, &stat) == 0 && stat.st_size == 100);
    CHECK(pwrite(fd, "x", 1, 200) == 1 && pread(fd, back, 16, 120) == 16 && !back[0] && !back[15]);
    run_plain("chmod u+s %s", path);
    CHECK(pwrite(fd, "y", 1, 0) == 1 && close(fd) == 0);
    free(path);
}

/* --- Rare calls --- */

static void test_unlinked(void) {
    char *path = path_of("unlinked"), back[8];
    int fd = open_new("unlinked", O_RDWR), late = open_new("late", O_RDWR);
    fill(fd, 100), warm(fd);
    CHECK(unlink(path) == 0);
    expect_line(fd, 0);
    CHECK(pwrite(fd, "gone", 4, 5000) == 4 && pread(fd, back, 4, 5000) == 4 && !memcmp(back, "gone", 4));
    CHECK(close(fd) == 0);
    /* Without a name before the library opens it. */
    free(path), path = path_of("late");
    CHECK(unlink(path) == 0);
    fill(late, 100), warm(late), expect_line(late, 0), expect_line(late, 1);
    CHECK(close(late) == 0);
    free(path);
}

static void test_errors(void) {
    char *path = path_of("errors"), byte = 'x';
    int fd = open_new("errors", O_RDWR);
    fill(fd, 10), warm(fd);
    int reader = open(path, O_RDONLY), writer = open(path, O_WRONLY);
    warm(reader);
    for (int at = 0; at < 8; at++) CHECK(pwrite(writer, "l", 1, 0) == 1);
    CHECK(write(reader, &byte, 1) == -1 && errno == EBADF && pwrite(reader, &byte, 1, 0) == -1 && errno == EBADF);
    CHECK(read(writer, &byte, 1) == -1 && errno == EBADF && pread(writer, &byte, 1, 0) == -1 && errno == EBADF);
    CHECK(ftruncate(reader, 0) == -1 && errno == EINVAL && ftruncate(fd, -1) == -1 && errno == EINVAL);
    CHECK(pread(fd, &byte, 1, -1) == -1 && errno == EINVAL && pwrite(fd, &byte, 1, -1) == -1 && errno == EINVAL);
    CHECK(lseek(fd, -1, SEEK_SET) == -1 && errno == EINVAL && lseek(fd, 0, 77) == -1 && errno == EINVAL);
    CHECK(lseek(fd, 5, SEEK_SET) == 5 && lseek(fd, -6, SEEK_CUR) == -1 && errno == EINVAL);
    CHECK(lseek(fd, 0, SEEK_CUR) == 5 && lseek(fd, 0, SEEK_HOLE) == 110 && lseek(fd, 200, SEEK_DATA) == -1 && errno == ENXIO);
    /* The compiler knows what is wrong with these arguments. */
    void *volatile nowhere = NULL;
    volatile int negative = -1;
    CHECK(lseek(fd, 0, SEEK_SET) == 0 && read(fd, nowhere, 5) == -1 && errno == EFAULT);
    CHECK(read(fd, &byte, 0) == 0 && write(fd, &byte, 0) == 0 && lseek(fd, 0, SEEK_CUR) == 0);
    struct iovec none = {NULL, 0};
    CHECK(readv(fd, &none, 1) == 0 && readv(fd, &none, negative) == -1 && errno == EINVAL);
    CHECK(lseek(fd, 11, SEEK_SET) == 11 && lockf(fd, F_TLOCK, 11) == 0);
    struct flock range = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 11, .l_len = 1};
    pid_t child = fork();
    if (child == 0) {
        CHECK(fcntl(fd, F_GETLK, &range) == 0 && range.l_type == F_WRLCK && range.l_start == 11);
        _exit(0);
    }
    join_child(child);
    int left = 0;
    CHECK(ioctl(fd, FIONREAD, &left) == 0 || errno == ENOTTY);
    expect_line(fd, 1);
    CHECK(close(fd) == 0 && close(reader) == 0 && close(writer) == 0);
    free(path);
}

static void test_limit(void) {
    int fd = open_new("limit", O_RDWR);
    fill(fd, 10), warm(fd);
    struct rlimit before, small;
    CHECK(getrlimit(RLIMIT_FSIZE, &before) == 0);
    small = before, small.rlim_cur = 4096;
    signal(SIGXFSZ, SIG_IGN);
    CHECK(setrlimit(RLIMIT_FSIZE, &small) == 0);
    char page[4096] = {0};
    CHECK(pwrite(fd, page, sizeof page, 4096) == -1 && errno == EFBIG);
    CHECK(pwrite(fd, page, sizeof page, 100) == 3996 && ftruncate(fd, 5000) == -1 && errno == EFBIG);
    CHECK(setrlimit(RLIMIT_FSIZE, &before) == 0 && pwrite(fd, page, sizeof page, 4096) == sizeof page);
    CHECK(close(fd) == 0);
}

static void test_streams(void) {
    char *path = path_of("streams"), line[64] = {0};
    int fd = open_new("streams", O_RDWR);
    fill(fd, 10), warm(fd);
    expect_line(fd, 0);
    CHECK(dprintf(fd, "print %04d %s %.1f\n", 7, "x", 1.5) == 17);
    CHECK(pread(fd, line, 17, 11) == 17 && !strcmp(line, "print 0007 x 1.5\n"));
    CHECK(close(fd) == 0);
    fd = open(path, O_RDWR);
    warm(fd);
    expect_line(fd, 0);
    FILE *stream = fdopen(fd, "r+");
    CHECK(stream && fgets(line, sizeof line, stream) && !strncmp(line, "print 0007", 10) && fclose(stream) == 0);
    /* Standard output is another file for a while. */
    fd = open(path, O_RDWR | O_TRUNC);
    CHECK(write(fd, "first\n", 6) == 6);
    warm(fd);
    CHECK(write(fd, "second\n", 7) == 7);
    int output = dup(1);
    fflush(stdout);
    CHECK(dup2(fd, 1) == 1);
    printf("third\n"), fflush(stdout);
    CHECK(write(fd, "fourth\n", 7) == 7 && dup2(output, 1) == 1 && close(output) == 0);
    memset(line, 0, sizeof line);
    CHECK(pread(fd, line, sizeof line, 0) == 26 && !strcmp(line, "first\nsecond\nthird\nfourth\n"));
    CHECK(close(fd) == 0);
    free(path);
}

static void test_copying(void) {
    int from = open_new("from", O_RDWR), to = open_new("to", O_RDWR), pair[2];
    fill(from, 1000), warm(from), fill(to, 1), warm(to);
    expect_line(from, 0), expect_line(to, 0);
    loff_t at = 11;
    CHECK(copy_file_range(from, &at, to, NULL, 110, 0) == 110 && at == 121);
    CHECK(lseek(to, 11, SEEK_SET) == 11);
    for (int line = 1; line <= 10; line++) expect_line(to, line);
    off_t offset = 121;
    CHECK(sendfile(to, from, &offset, 110) == 110 && offset == 231);
    CHECK(sendfile(to, from, NULL, 22) == 22);
    CHECK(lseek(to, 121, SEEK_SET) == 121);
    for (int line = 11; line <= 20; line++) expect_line(to, line);
    expect_line(to, 1), expect_line(to, 2), expect_line(from, 3);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    offset = 110;
    CHECK(sendfile(pair[0], from, &offset, 11) == 11);
    expect_line(pair[1], 10);
    CHECK(close(from) == 0 && close(to) == 0 && close(pair[0]) == 0 && close(pair[1]) == 0);
}

/* Calls that name their descriptors to the kernel, without a function of libc for them. */
static void test_system_calls(void) {
    int to = open_new("called", O_RDWR), ends[2], pair[2];
    char got[11];
    fill(to, 3), warm(to);
    expect_line(to, 0);
    CHECK(pipe(ends) == 0 && write(ends[1], "spliced by\n", 11) == 11);
    CHECK(syscall(SYS_splice, ends[0], NULL, to, NULL, sizeof got, 0) == 11);
    CHECK(lseek(to, 0, SEEK_CUR) == 22 && pread(to, got, 11, 11) == 11);
    CHECK(memcmp(got, "spliced by\n", 11) == 0);
    expect_line(to, 2);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    CHECK(sendmmsg(pair[0], NULL, 1, 0) == -1 && errno == EFAULT);
    CHECK(close(to) == 0 && close(ends[0]) == 0 && close(ends[1]) == 0);
    CHECK(close(pair[0]) == 0 && close(pair[1]) == 0);
}

static void test_times(void) {
    int fd = open_new("times", O_RDWR);
    fill(fd, 10), warm(fd);
    for (int at = 0; at < 100; at++) CHECK(pwrite(fd, "x", 1, at) == 1);
    struct timespec times[2] = {{1000, 5}, {2000, 7}};
    struct stat stat;
    CHECK(futimens(fd, times) == 0 && fstat(fd, &stat) == 0 && stat.st_mtim.tv_sec == 2000 && close(fd) == 0);
    char *path = path_of("times");
    CHECK(lstat(path, &stat) == 0 && stat.st_mtim.tv_sec == 2000 && stat.st_mtim.tv_nsec == 7);
    free(path);
}

/* --- Signals --- */

static int log_fd;
static volatile int logged;

static void log_signal(int number) {
    (void)number;
    int before = errno;
    CHECK(write(log_fd, "signal record.\n", 15) == 15);
    logged++;
    errno = before;
}

static void test_signals(void) {
    int fd = open_new("signals", O_RDWR);
    fill(fd, 100), warm(fd);
    log_fd = open_new("log", O_RDWR);
    for (int at = 0; at < 8; at++) CHECK(write(log_fd, "signal record.\n", 15) == 15);
    logged = 8;
    struct sigaction action = {.sa_handler = log_signal, .sa_flags = SA_RESTART};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    struct itimerval often = {{0, 500}, {0, 500}}, never = {{0, 0}, {0, 0}};
    CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0);
    char page[4096];
    time_t end = time(NULL) + 2;
    for (int round = 0; time(NULL) < end; round++) {
        memset(page, round, sizeof page);
        CHECK(pwrite(fd, page, sizeof page, round % 16 * 4096) == sizeof page);
        CHECK(pread(fd, page, sizeof page, round % 16 * 4096) == sizeof page && page[77] == (char)round);
        CHECK(round % 64 || lseek(fd, 0, SEEK_SET) == 0);
        CHECK(read(fd, page, 100) >= 0);
        /* The interrupted thread writes to the log, too. */
        if (round % 16 == 0) CHECK(write(log_fd, "thread record.\n", 15) == 15);
    }
    CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0);
    struct stat stat;
    CHECK(fstat(log_fd, &stat) == 0 && stat.st_size % 15 == 0 && logged > 10);
    int signals = 0;
    for (off_t at = 0; at < stat.st_size; at += 15) {
        CHECK(pread(log_fd, page, 15, at) == 15);
        if (!memcmp(page, "signal record.\n", 15)) signals++;
        else CHECK(!memcmp(page, "thread record.\n", 15));
    }
    CHECK(signals == logged && close(fd) == 0 && close(log_fd) == 0);
}

/* A daemon closes all descriptors, also those of the library. */
static void test_closing(void) {
    int fd = open_new("closing", O_RDWR);
    fill(fd, 100), warm(fd);
    expect_line(fd, 0);
    pid_t child = fork();
    if (child == 0) {
        int own = open_new("closing2", O_RDWR);
        fill(own, 100), warm(own);
        expect_line(own, 0);
        int kept = fcntl(own, F_DUPFD, 800);
        for (int number = 3; number < 800; number++) close(number);
        expect_line(kept, 1);
        own = open_new("closing3", O_RDWR);
        fill(own, 100), warm(own);
        expect_line(own, 0);
        close_range(3, ~0u, 0);
        own = open_new("closing4", O_RDWR);
        fill(own, 100), warm(own);
        expect_line(own, 0), expect_line(own, 1);
        _exit(0);
    }
    join_child(child);
    expect_line(fd, 1);
    CHECK(close(fd) == 0);
}

int main(int count, char **args) {
    CHECK(count >= 2);
    dir = args[1];
    if (count > 2) seconds = (unsigned)atoi(args[2]);
    if (count > 3) seed = (unsigned)atoi(args[3]);
    const char *only = getenv("ONLY");
    static const struct {
        const char *name;
        void (*run)(void);
    } tests[] = {
        {"copies", test_copies},     {"fork", test_fork},         {"programs", test_programs},
        {"vfork", test_vfork},       {"messages", test_messages}, {"appends", test_appends},
        {"mappings", test_mappings}, {"others", test_others},     {"unlinked", test_unlinked},
        {"errors", test_errors},     {"limit", test_limit},       {"streams", test_streams},
        {"copying", test_copying},   {"times", test_times},       {"threads", test_threads},
        {"system calls", test_system_calls},
        {"signals", test_signals},   {"closing", test_closing},   {"models", test_models},
    };
    for (size_t at = 0; at < sizeof tests / sizeof *tests; at++) {
        if (only && strcmp(only, tests[at].name)) continue;
        tests[at].run();
        fprintf(stderr, "program: %s: ok\n", tests[at].name);
    }
    return 0;
}
