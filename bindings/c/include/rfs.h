/* librfs: files in the memory of an rfs-server. rfs(3) describes it.
 *
 * Each call returns 0 or a count, or a negative error number, such as -ENOENT. rfs_error() has the
 * text of the last error of the calling thread. Any number of threads may make calls, also on one
 * handle; only the call that frees a handle must be its last one.
 */

#ifndef RFS_H
#define RFS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

/**
 * A shared lock, for rfs_lock().
 */
#define RFS_LOCK_SHARED 0

/**
 * An exclusive lock, for rfs_lock().
 */
#define RFS_LOCK_EXCLUSIVE 1

/**
 * The end of a lock, for rfs_lock().
 */
#define RFS_LOCK_NONE 2

/**
 * rfs_rename() fails with -EEXIST if the new name exists.
 */
#define RFS_NOREPLACE 1

/**
 * rfs_rename() exchanges the two names.
 */
#define RFS_EXCHANGE 2

/**
 * The present, for rfs_utimens().
 */
#define RFS_NOW INT64_MAX

/**
 * No change of a time, for rfs_utimens().
 */
#define RFS_KEEP (INT64_MAX - 1)

/**
 * A listing in progress.
 */
typedef struct rfs_dir rfs_dir;

/**
 * An open file.
 */
typedef struct rfs_file rfs_file;

/**
 * A session with a server.
 */
typedef struct rfs_mount rfs_mount;

/**
 * Options of a mount: a new one has the defaults.
 */
typedef struct rfs_options rfs_options;

/**
 * A queue of requests and completions.
 */
typedef struct rfs_queue rfs_queue;

/**
 * Bytes of a file, in the server's memory if that is mapped here.
 */
typedef struct rfs_view rfs_view;

/**
 * Attributes of an inode. Times are nanoseconds since 1970.
 */
typedef struct {
  /**
   * Number of the inode.
   */
  uint64_t ino;
  /**
   * Length in bytes.
   */
  uint64_t size;
  /**
   * Allocated space, in units of 512 bytes.
   */
  uint64_t blocks;
  /**
   * Last access.
   */
  int64_t atime_ns;
  /**
   * Last change of contents.
   */
  int64_t mtime_ns;
  /**
   * Last change of contents or attributes.
   */
  int64_t ctime_ns;
  /**
   * Kind and permission bits, as st_mode.
   */
  uint32_t mode;
  /**
   * Number of hard links.
   */
  uint32_t nlink;
  /**
   * Owner.
   */
  uint32_t uid;
  /**
   * Group.
   */
  uint32_t gid;
  /**
   * Device number of a device node.
   */
  uint32_t rdev;
} rfs_stat_t;

/**
 * An entry of a directory.
 */
typedef struct {
  /**
   * Name, valid until the next call with the directory. NULL at the end.
   */
  const char *name;
  /**
   * Attributes. Those of a symbolic link are its own.
   */
  rfs_stat_t stat;
} rfs_entry;

/**
 * Space of an export.
 */
typedef struct {
  /**
   * Size in bytes.
   */
  uint64_t bytes;
  /**
   * Free bytes.
   */
  uint64_t bytes_free;
  /**
   * Maximum number of inodes.
   */
  uint64_t inodes;
  /**
   * Number of free inodes.
   */
  uint64_t inodes_free;
} rfs_space;

/**
 * A completion of a request.
 */
typedef struct {
  /**
   * Number of bytes, or a negative error number.
   */
  int64_t result;
  /**
   * The value that came with the request.
   */
  uint64_t tag;
} rfs_completion;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Begins to list a directory. Stores the listing in `out`, and rfs_closedir() ends it.
 *
 * Returns 0 or a negative error number.
 *
 * The pointers are valid.
 */
int32_t rfs_opendir(const rfs_mount *mount, const char *name, rfs_dir **out);

/**
 * Returns the next entry in `out`, without "." and "..". At the end its name is NULL.
 *
 * Returns 0 or a negative error number.
 *
 * The pointers are valid.
 */
int32_t rfs_readdir(const rfs_dir *dir, rfs_entry *out);

/**
 * Ends a listing. NULL is permitted.
 *
 * The listing is not used any more.
 */
void rfs_closedir(rfs_dir *dir);

/**
 * Reads up to `len` bytes at an offset. Fewer bytes come only at the end of the file.
 *
 * Returns the number of bytes or a negative error number.
 *
 * The pointers are valid, and `out` has `len` bytes.
 */
ptrdiff_t rfs_pread(const rfs_file *file, void *out, size_t len, uint64_t offset);

/**
 * Writes up to `len` bytes at an offset, and all of them unless the server is full or `len` is
 * more than 16 MiB. They are visible to all mounts when the call returns.
 *
 * Returns the number of bytes or a negative error number.
 *
 * The pointers are valid, and `data` has `len` bytes.
 */
ptrdiff_t rfs_pwrite(const rfs_file *file, const void *data, size_t len, uint64_t offset);

/**
 * Reads bytes at an offset into `count` buffers, one after the other.
 *
 * Returns the number of bytes or a negative error number.
 *
 * The pointers are valid, and the buffers do not overlap.
 */
ptrdiff_t rfs_preadv(const rfs_file *file,
                     const struct iovec *parts,
                     size_t count,
                     uint64_t offset);

/**
 * Writes the bytes of `count` buffers, one after the other, at an offset.
 *
 * Returns the number of bytes or a negative error number.
 *
 * The pointers are valid.
 */
ptrdiff_t rfs_pwritev(const rfs_file *file,
                      const struct iovec *parts,
                      size_t count,
                      uint64_t offset);

/**
 * Appends all bytes in one piece. Stores their offset in `offset`, unless that is NULL.
 *
 * Returns 0 or a negative error number.
 *
 * The pointers are valid, and `data` has `len` bytes.
 */
int32_t rfs_append(const rfs_file *file, const void *data, size_t len, uint64_t *offset);

/**
 * Publishes the exact time of the last write. Written bytes are at the server already.
 *
 * Returns 0 or a negative error number.
 *
 * The pointer is valid.
 */
int32_t rfs_fsync(const rfs_file *file);

/**
 * Returns the attributes of an open file in `out`.
 *
 * Returns 0 or a negative error number.
 *
 * The pointers are valid.
 */
int32_t rfs_fstat(const rfs_file *file, rfs_stat_t *out);

/**
 * Sets the length of an open file.
 *
 * Returns 0 or a negative error number.
 *
 * The pointer is valid.
 */
int32_t rfs_ftruncate(const rfs_file *file, uint64_t length);

/**
 * Allocates space for a range, and extends the file to its end.
 *
 * Returns 0 or a negative error number.
 *
 * The pointer is valid.
 */
int32_t rfs_allocate(const rfs_file *file, uint64_t offset, uint64_t len);

/**
 * Frees the space of a range, which then reads as zero.
 *
 * Returns 0 or a negative error number.
 *
 * The pointer is valid.
 */
int32_t rfs_punch_hole(const rfs_file *file, uint64_t offset, uint64_t len);

/**
 * Locks `len` bytes from `first` on, for this open file: RFS_LOCK_SHARED, RFS_LOCK_EXCLUSIVE, or
 * RFS_LOCK_NONE to unlock. `len` 0 extends the range to the end of any file. With `wait` 0 a
 * conflict is -EAGAIN; else the call waits.
 *
 * Returns 0 or a negative error number.
 *
 * The pointer is valid.
 */
int32_t rfs_lock(const rfs_file *file, int32_t kind, uint64_t first, uint64_t len, int32_t wait);

/**
 * Closes a file. NULL is permitted. Started requests on it end all the same.
 *
 * Returns 0 or a negative error number. The file is closed also then.
 *
 * The file is not used any more.
 */
int32_t rfs_close(rfs_file *file);

/**
 * Connects to a server: HOST:PORT, rdma:HOST:PORT, or the path of a Unix socket. `options` may be
 * NULL. Stores the mount in `out`.
 *
 * Returns 0 or a negative error number.
 *
 * The pointers are valid.
 */
int32_t rfs_connect(const char *address, const rfs_options *options, rfs_mount **out);

/**
 * Frees a mount. The session ends when its last open file, directory and view are freed, too. NULL
 * is permitted.
 *
 * The mount is not used any more.
 */
void rfs_mount_free(rfs_mount *mount);

/**
 * Ends the session at once. All calls on the mount and its files fail with -EHOSTDOWN then. The
 * mount still has to be freed.
 *
 * Returns 0.
 *
 * The pointer is valid.
 */
int32_t rfs_disconnect(const rfs_mount *mount);

/**
 * Returns size and free space of the export in `out`.
 *
 * Returns 0 or a negative error number.
 *
 * The pointers are valid.
 */
int32_t rfs_statfs(const rfs_mount *mount, rfs_space *out);

/**
 * Creates a directory with these permission bits, less the umask.
 *
 * Returns 0 or a negative error number.
 *
 * The pointers are valid.
 */
int32_t rfs_mkdir(const rfs_mount *mount, const char *name, uint32_t mode);

/**
 * Removes an empty directory.
 *
 * Returns 0 or a negative error number.
 *
 * The pointers are valid.
 */
int32_t rfs_rmdir(const rfs_mount *mount, const char *name);

/**
 * Removes a name that is not of a directory.
 *
 * Returns 0 or a negative error number.
 *
 * The pointers are valid.
 */
int32_t rfs_unlink(const rfs_mount *mount, const char *name);

/**
 * Sets the permission bits.
 *
 * Returns 0 or a negative error number.
 *
 * The pointers are valid.
 */
int32_t rfs_chmod(const rfs_mount *mount, const char *name, uint32_t mode);

/**
 * Sets owner and group. UINT32_MAX keeps one.
 *
 * Returns 0 or a negative error number.
 *
 * The pointers are valid.
 */
int32_t rfs_chown(const rfs_mount *mount, const char *name, uint32_t uid, uint32_t gid);

/**
 * Sets the times of the last access and of the last change of contents, in nanoseconds since
 * 1970. RFS_NOW sets the present, and RFS_KEEP keeps a time.
 *
 * Returns 0 or a negative error number.
 *
 * The pointers are valid.
 */
int32_t rfs_utimens(const rfs_mount *mount, const char *name, int64_t atime_ns, int64_t mtime_ns);

/**
 * Sets the length of a file.
 *
 * Returns 0 or a negative error number.
 *
 * The pointers are valid.
 */
int32_t rfs_truncate(const rfs_mount *mount, const char *name, uint64_t length);

/**
 * Checks permissions: a sum of R_OK, W_OK and X_OK, or F_OK.
 *
 * Returns 0 or a negative error number.
 *
 * The pointers are valid.
 */
int32_t rfs_access(const rfs_mount *mount, const char *name, int32_t wanted);

/**
 * Creates the hard link `to`.
 *
 * Returns 0 or a negative error number.
 *
 * The pointers are valid.
 */
int32_t rfs_link(const rfs_mount *mount, const char *from, const char *to);

/**
 * Creates the symbolic link `to` with the target `from`.
 *
 * Returns 0 or a negative error number.
 *
 * The pointers are valid.
 */
int32_t rfs_symlink(const rfs_mount *mount, const char *from, const char *to);

/**
 * Renames, with flags of renameat2(2): 0, RFS_NOREPLACE or RFS_EXCHANGE.
 *
 * Returns 0 or a negative error number.
 *
 * The pointers are valid.
 */
int32_t rfs_rename(const rfs_mount *mount, const char *from, const char *to, uint32_t flags);

/**
 * Returns the target of a symbolic link in `out`, without a NUL, cut to `len` bytes.
 *
 * Returns the number of bytes or a negative error number.
 *
 * The pointers are valid, and `out` has `len` bytes.
 */
ptrdiff_t rfs_readlink(const rfs_mount *mount, const char *name, char *out, size_t len);

/**
 * Opens a regular file with flags of open(2). `mode` is that of a new file. Stores the file in
 * `out`, and rfs_close() closes it.
 *
 * Returns 0 or a negative error number.
 *
 * The pointers are valid.
 */
int32_t rfs_open(const rfs_mount *mount,
                 const char *name,
                 int32_t flags,
                 uint32_t mode,
                 rfs_file **out);

/**
 * Returns new options, which rfs_options_free() frees.
 */
rfs_options *rfs_options_new(void);

/**
 * Sets an option: "export", "key", "tls-ca", "name", "uid", "gid", "groups" (with commas), "umask"
 * (octal), "provider" (shm, tcp, rdma), "timeout" and "connect-timeout" (seconds), "cache",
 * "reconnect" and "atime" (yes or no). "uid" removes the groups.
 *
 * Returns 0, or -EINVAL for an unknown option or a bad value.
 *
 * The pointers are valid.
 */
int32_t rfs_options_set(rfs_options *options, const char *name, const char *value);

/**
 * Frees options. NULL is permitted.
 *
 * The options are not used any more.
 */
void rfs_options_free(rfs_options *options);

/**
 * Makes a queue. Stores it in `out`, and rfs_queue_free() frees it.
 *
 * Returns 0 or a negative error number.
 *
 * The pointer is valid.
 */
int32_t rfs_queue_new(rfs_queue **out);

/**
 * Stages a read of up to `len` bytes at an offset. The buffer belongs to the request until its
 * completion, which has `tag`.
 *
 * Returns 0 or a negative error number.
 *
 * The pointers are valid. `out` has `len` bytes until the completion, also if the queue is freed.
 */
int32_t rfs_queue_read(const rfs_queue *queue,
                       const rfs_file *file,
                       void *out,
                       size_t len,
                       uint64_t offset,
                       uint64_t tag);

/**
 * Stages a write of `len` bytes at an offset. The bytes are copied.
 *
 * Returns 0 or a negative error number.
 *
 * The pointers are valid, and `data` has `len` bytes.
 */
int32_t rfs_queue_write(const rfs_queue *queue,
                        const rfs_file *file,
                        const void *data,
                        size_t len,
                        uint64_t offset,
                        uint64_t tag);

/**
 * Starts all staged requests together.
 *
 * Returns their number or a negative error number.
 *
 * The pointer is valid.
 */
int32_t rfs_queue_submit(const rfs_queue *queue);

/**
 * Returns up to `most` completions in `out`. Waits for at least `least` of them, or until no
 * request is in flight, or for `timeout_ms` milliseconds. A negative timeout has no limit.
 *
 * Returns the number of completions or a negative error number.
 *
 * The pointers are valid, and `out` has room for `most` completions.
 */
int32_t rfs_queue_wait(const rfs_queue *queue,
                       rfs_completion *out,
                       size_t most,
                       size_t least,
                       int32_t timeout_ms);

/**
 * Returns a descriptor that is readable while there are completions, for poll(2). It belongs to
 * the queue.
 *
 * Returns the descriptor or a negative error number.
 *
 * The pointer is valid.
 */
int32_t rfs_queue_fd(const rfs_queue *queue);

/**
 * Frees a queue. NULL is permitted. Staged requests are dropped; started ones end without a
 * completion, and use their buffers until then.
 *
 * The queue is not used any more.
 */
void rfs_queue_free(rfs_queue *queue);

/**
 * Returns the attributes of a path in `out`, and follows a symbolic link.
 *
 * Returns 0 or a negative error number.
 *
 * The pointers are valid.
 */
int32_t rfs_stat(const rfs_mount *mount, const char *name, rfs_stat_t *out);

/**
 * Returns the attributes of a path in `out`. Those of a symbolic link are its own.
 *
 * Returns 0 or a negative error number.
 *
 * The pointers are valid.
 */
int32_t rfs_lstat(const rfs_mount *mount, const char *name, rfs_stat_t *out);

/**
 * Returns the text of the last error of the calling thread. It is valid until the thread's next
 * call that fails.
 */
const char *rfs_error(void);

/**
 * Returns a view of up to `len` bytes at an offset in `out`. rfs_view_free() frees it.
 *
 * A truncation by any mount waits until the view is freed. This mount loses its session if that
 * takes longer than the server's recall timeout. A thread that has a view of a file must not
 * truncate the file.
 *
 * Returns 0 or a negative error number.
 *
 * The pointers are valid.
 */
int32_t rfs_view_open(const rfs_file *file, uint64_t offset, size_t len, rfs_view **out);

/**
 * Returns the first byte. Other mounts may change bytes in place at any time.
 *
 * The pointer is valid.
 */
const void *rfs_view_data(const rfs_view *view);

/**
 * Returns the number of bytes.
 *
 * The pointer is valid.
 */
size_t rfs_view_len(const rfs_view *view);

/**
 * Returns 1 if the bytes are in the server's memory, and 0 if the view has a copy.
 *
 * The pointer is valid.
 */
int32_t rfs_view_is_in_place(const rfs_view *view);

/**
 * Frees a view. NULL is permitted.
 *
 * The view and its bytes are not used any more.
 */
void rfs_view_free(rfs_view *view);

/**
 * Returns the value of an extended attribute in `out`. With `len` 0, returns its length only.
 *
 * Returns the number of bytes or a negative error number: -ERANGE if `out` is too short.
 *
 * The pointers are valid, and `out` has `len` bytes.
 */
ptrdiff_t rfs_getxattr(const rfs_mount *mount,
                       const char *name,
                       const char *attribute,
                       void *out,
                       size_t len);

/**
 * Returns the names of the extended attributes in `out`, each followed by a NUL. With `len` 0,
 * returns their length only.
 *
 * Returns the number of bytes or a negative error number: -ERANGE if `out` is too short.
 *
 * The pointers are valid, and `out` has `len` bytes.
 */
ptrdiff_t rfs_listxattr(const rfs_mount *mount, const char *name, char *out, size_t len);

/**
 * Sets an extended attribute.
 *
 * Returns 0 or a negative error number.
 *
 * The pointers are valid, and `value` has `len` bytes.
 */
int32_t rfs_setxattr(const rfs_mount *mount,
                     const char *name,
                     const char *attribute,
                     const void *value,
                     size_t len);

/**
 * Removes an extended attribute.
 *
 * Returns 0 or a negative error number.
 *
 * The pointers are valid.
 */
int32_t rfs_removexattr(const rfs_mount *mount, const char *name, const char *attribute);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* RFS_H */
