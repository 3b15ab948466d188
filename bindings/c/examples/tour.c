/* Writes a file, reads it in three ways, and lists the directory.
 *
 *     gcc -Wall -Werror tour.c $(pkg-config --cflags --libs rfs) -o tour
 *     ./tour ADDRESS
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <rfs.h>

#define BLOCK 4096
#define BLOCKS 16

/* Ends the program if a call has failed. */
static int64_t must(int64_t result, const char *call)
{
    if (result < 0) {
        fprintf(stderr, "%s: %s\n", call, rfs_error());
        exit(1);
    }
    return result;
}

/* Checks that all bytes of a block have one value. */
static void check_block(const uint8_t *bytes, uint8_t value)
{
    for (int at = 0; at < BLOCK; at++) {
        if (bytes[at] != value) {
            fprintf(stderr, "byte %d is %d, not %d\n", at, bytes[at], value);
            exit(1);
        }
    }
}

static void write_blocks(const rfs_file *file)
{
    uint8_t block[BLOCK];
    for (int at = 0; at < BLOCKS; at++) {
        memset(block, at + 1, BLOCK);
        must(rfs_pwrite(file, block, BLOCK, (uint64_t)at * BLOCK), "rfs_pwrite");
    }
}

static void read_blocks(const rfs_file *file)
{
    uint8_t one[BLOCK], two[BLOCK];
    struct iovec parts[2] = {{one, BLOCK}, {two, BLOCK}};
    if (must(rfs_preadv(file, parts, 2, BLOCK), "rfs_preadv") != 2 * BLOCK) {
        fprintf(stderr, "the file is too short\n");
        exit(1);
    }
    check_block(one, 2);
    check_block(two, 3);
}

/* Reads all blocks at once through a queue. */
static void read_through_queue(const rfs_file *file)
{
    static uint8_t blocks[BLOCKS][BLOCK];
    rfs_queue *queue;
    must(rfs_queue_new(&queue), "rfs_queue_new");
    for (uint64_t at = 0; at < BLOCKS; at++)
        must(rfs_queue_read(queue, file, blocks[at], BLOCK, at * BLOCK, at), "rfs_queue_read");
    must(rfs_queue_submit(queue), "rfs_queue_submit");
    for (int left = BLOCKS; left > 0;) {
        struct pollfd ready = {.fd = (int)must(rfs_queue_fd(queue), "rfs_queue_fd"), .events = POLLIN};
        if (poll(&ready, 1, 30000) != 1) {
            fprintf(stderr, "no completion within 30 s\n");
            exit(1);
        }
        rfs_completion done[BLOCKS];
        int64_t count = must(rfs_queue_wait(queue, done, BLOCKS, 1, 0), "rfs_queue_wait");
        for (int64_t at = 0; at < count; at++) {
            if (done[at].result != BLOCK) {
                fprintf(stderr, "block %" PRIu64 ": %" PRId64 "\n", done[at].tag, done[at].result);
                exit(1);
            }
            check_block(blocks[done[at].tag], (uint8_t)(done[at].tag + 1));
        }
        left -= (int)count;
    }
    rfs_queue_free(queue);
}

static void read_in_place(const rfs_file *file)
{
    rfs_view *view;
    must(rfs_view_open(file, 0, BLOCK, &view), "rfs_view_open");
    check_block(rfs_view_data(view), 1);
    printf("a view of %zu bytes is %s\n", rfs_view_len(view),
           rfs_view_is_in_place(view) ? "in place" : "a copy");
    rfs_view_free(view);
}

static void list(const rfs_mount *mount, const char *path)
{
    rfs_dir *dir;
    rfs_entry entry;
    must(rfs_opendir(mount, path, &dir), "rfs_opendir");
    while (must(rfs_readdir(dir, &entry), "rfs_readdir") == 0 && entry.name != NULL)
        printf("%s: %" PRIu64 " bytes\n", entry.name, entry.stat.size);
    rfs_closedir(dir);
}

int main(int count, char **arguments)
{
    if (count != 2) {
        fprintf(stderr, "usage: %s ADDRESS\n", arguments[0]);
        return 2;
    }
    rfs_mount *mount;
    rfs_file *file;
    rfs_options *options = rfs_options_new();
    must(rfs_options_set(options, "name", "tour"), "rfs_options_set");
    must(rfs_connect(arguments[1], options, &mount), "rfs_connect");
    rfs_options_free(options);

    must(rfs_mkdir(mount, "tour", 0755), "rfs_mkdir");
    must(rfs_open(mount, "tour/file", O_RDWR | O_CREAT, 0644, &file), "rfs_open");
    write_blocks(file);
    read_blocks(file);
    read_through_queue(file);
    read_in_place(file);

    uint64_t offset;
    must(rfs_append(file, "end", 3, &offset), "rfs_append");
    must(rfs_lock(file, RFS_LOCK_EXCLUSIVE, 0, 0, 1), "rfs_lock");
    must(rfs_fsync(file), "rfs_fsync");
    rfs_stat_t stat;
    must(rfs_fstat(file, &stat), "rfs_fstat");
    if (offset != BLOCKS * BLOCK || stat.size != offset + 3) {
        fprintf(stderr, "the file has %" PRIu64 " bytes\n", stat.size);
        return 1;
    }
    must(rfs_close(file), "rfs_close");
    must(rfs_open(mount, "tour/empty", O_RDONLY | O_CREAT | O_EXCL, 0600, &file), "rfs_open");
    if (rfs_pwrite(file, "x", 1, 0) != -EBADF) {
        fprintf(stderr, "a file that is open for reading was written\n");
        return 1;
    }
    must(rfs_close(file), "rfs_close");
    must(rfs_setxattr(mount, "tour/empty", "user.a", "1", 1), "rfs_setxattr");
    char names[16];
    if (rfs_listxattr(mount, "tour/empty", names, sizeof names) != 7 || strcmp(names, "user.a") != 0 ||
        rfs_listxattr(mount, "tour/empty", names, 6) != -ERANGE) {
        fprintf(stderr, "the extended attributes have other names\n");
        return 1;
    }
    list(mount, "tour");
    must(rfs_unlink(mount, "tour/empty"), "rfs_unlink");

    if (rfs_stat(mount, "tour/nothing", &stat) != -ENOENT || rfs_stat(NULL, "x", &stat) != -EFAULT) {
        fprintf(stderr, "an error has another number: %s\n", rfs_error());
        return 1;
    }
    must(rfs_rename(mount, "tour/file", "tour/other", RFS_NOREPLACE), "rfs_rename");
    must(rfs_unlink(mount, "tour/other"), "rfs_unlink");
    must(rfs_rmdir(mount, "tour"), "rfs_rmdir");
    rfs_mount_free(mount);
    puts("done");
    return 0;
}
