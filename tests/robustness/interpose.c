/* Records the calls that change files below a folder, and fails one of them.
 *
 * Preload it: LD_PRELOAD=interpose.so TDX_INTERPOSE=control.bin program. The control file, struct
 * control, is shared by all processes; tests/robustness/interposer.py writes it and reads the log.
 *
 * Sees what goes through the symbols of the C library, so also HDF5, Arrow, libav and Rust's
 * standard library. Not seen: buffered writes of stdio (fwrite), io_uring, raw system calls, and
 * stores into a shared mapping before msync, munmap, fsync or the end of the process. A recording
 * is complete if replaying it gives the folder as it is, which the callers check.
 */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

/* Instead of an error: write half of the bytes; kill the process group. */
#define SHORT (-1)
#define KILL (-2)

struct control {
  volatile int32_t active, error, at, sticky;
  volatile int32_t count, holder;
  char folder[1024], log[1024];
};

struct record {
  int32_t op, flags, number, pid;
  int64_t result, inode, offset, sizes[3];
};

static struct control *control;
static int log_file = -1;
static pid_t log_owner;

#define REAL(name) \
  static __typeof__(name) *real; \
  if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

__attribute__((constructor)) static void start(void) {
  const char *path = getenv("TDX_INTERPOSE");
  if (!path) return;
  int file = open(path, O_RDWR | O_CLOEXEC);
  if (file < 0) return;
  void *map = mmap(NULL, sizeof(struct control), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (map != MAP_FAILED) control = map;
}

static int is_active(void) { return control && control->active; }

/* One call at a time in all processes, so that the log has the order in which they took effect. */
static void lock(void) {
  int32_t tries = 0, owner = 0, self = (int32_t)gettid();
  while (!__atomic_compare_exchange_n(&control->holder, &owner, self, 0, __ATOMIC_ACQUIRE,
                                      __ATOMIC_RELAXED)) {
    char proc[32];
    snprintf(proc, sizeof proc, "/proc/%d", owner);
    if (++tries % 1000 == 0 && owner && access(proc, F_OK) < 0) /* it was killed */
      __atomic_compare_exchange_n(&control->holder, &owner, 0, 0, __ATOMIC_ACQUIRE,
                                  __ATOMIC_RELAXED);
    owner = 0;
    sched_yield();
  }
}

static void unlock(void) { __atomic_store_n(&control->holder, 0, __ATOMIC_RELEASE); }

static int is_below(const char *path) {
  size_t size = strlen(control->folder);
  return !strncmp(path, control->folder, size) && (path[size] == '/' || !path[size]);
}

static int path_of(int file, char *out) {
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  ssize_t size = readlink(link, out, PATH_MAX - 1);
  out[size < 0 ? 0 : size] = 0;
  return size > 0 && out[0] == '/' && is_below(out);
}

/* Writes the absolute path without "." and ".."; returns whether it is below the folder. */
static int resolve(int folder, const char *path, char *out) {
  char whole[2 * PATH_MAX] = "", base[PATH_MAX] = "";
  if (path[0] != '/') {
    if (folder == AT_FDCWD) {
      if (!getcwd(base, sizeof base)) return 0;
    } else {
      path_of(folder, base);
    }
  }
  snprintf(whole, sizeof whole, "%s/%s", base, path);
  size_t end = 0;
  char *state, *part = strtok_r(whole, "/", &state);
  for (; part; part = strtok_r(NULL, "/", &state)) {
    if (!strcmp(part, ".")) continue;
    if (!strcmp(part, "..")) {
      while (end && out[--end] != '/') {}
      continue;
    }
    size_t size = strlen(part);
    if (end + size + 2 > PATH_MAX) return 0;
    out[end++] = '/';
    memcpy(out + end, part, size);
    end += size;
  }
  out[end] = 0;
  return is_below(out);
}

static void append(struct record *record, const char *one, const char *other, const void *data) {
  REAL(writev);
  if (log_file < 0 || log_owner != getpid()) {
    REAL(open);
    log_file = real(control->log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    log_owner = getpid();
  }
  record->pid = getpid();
  record->sizes[0] = one ? (int64_t)strlen(one) : 0;
  record->sizes[1] = other ? (int64_t)strlen(other) : 0;
  struct iovec parts[] = {{record, sizeof *record},
                          {(void *)one, (size_t)record->sizes[0]},
                          {(void *)other, (size_t)record->sizes[1]},
                          {(void *)data, (size_t)record->sizes[2]}};
  if (real(log_file, parts, 4) < 0) abort();
}

/* Counts a call, with the lock held; returns the error that it shall have. */
static int count_call(struct record *record) {
  record->number = ++control->count;
  int allocates = record->op == 'w' || record->op == 's' || record->op == 'd' ||
                  (record->op == 'o' && record->flags & O_CREAT);
  int hit = record->number == control->at ||
            (control->sticky && record->number > control->at && allocates);
  if (!hit || !control->at) return 0;
  if (control->error == SHORT && record->op != 'w') return 0;
  if (control->error == KILL) {
    unlock();
    kill(0, SIGKILL);
    for (;;) pause();
  }
  return control->error;
}

/* Makes a call on one or two paths between counting and recording it. */
#define CALL(record, one, other, expression) \
  ({ \
    int64_t answer; \
    int injected = count_call(record); \
    if (injected > 0) { \
      errno = injected; \
      answer = -1; \
    } else { \
      answer = (expression); \
    } \
    int saved = errno; \
    (record)->result = answer < 0 ? -saved : answer; \
    if ((record)->op == 'd' || (record)->op == 'l') set_inode(record, (record)->op == 'l' ? other : one); \
    append(record, one, other, NULL); \
    unlock(); \
    errno = saved; \
    answer; \
  })

static void set_inode(struct record *record, const char *path) {
  struct stat status;
  if (lstat(path, &status) == 0) record->inode = (int64_t)status.st_ino;
}

static void set_file(struct record *record, int file) {
  struct stat status;
  if (fstat(file, &status) == 0) record->inode = (int64_t)status.st_ino;
}

/* Shared writable mappings */

static struct mapping {
  char *start;
  size_t size;
  off_t offset;
  int64_t inode;
  char path[PATH_MAX];
} mappings[64];

static void record_mapping(struct mapping *mapping) {
  struct record record = {.op = 'w', .inode = mapping->inode, .offset = mapping->offset};
  struct stat status;
  size_t size = mapping->size;
  if (stat(mapping->path, &status) == 0 && (int64_t)status.st_ino == mapping->inode &&
      mapping->offset + (off_t)size > status.st_size)
    size = status.st_size > mapping->offset ? (size_t)(status.st_size - mapping->offset) : 0;
  if (!size) return;
  record.result = record.sizes[2] = (int64_t)size;
  append(&record, mapping->path, NULL, mapping->start);
}

static void record_mappings(int64_t inode) {
  for (size_t i = 0; i < sizeof mappings / sizeof *mappings; i++)
    if (mappings[i].start && (!inode || mappings[i].inode == inode)) record_mapping(&mappings[i]);
}

static void *map_file(void *start, size_t size, int protection, int flags, int file, off_t offset) {
  REAL(mmap);
  void *map = real(start, size, protection, flags, file, offset);
  char path[PATH_MAX];
  if (map == MAP_FAILED || file < 0 || !is_active() || !(flags & MAP_SHARED) ||
      !(protection & PROT_WRITE) || !path_of(file, path))
    return map;
  lock();
  for (size_t i = 0; i < sizeof mappings / sizeof *mappings; i++)
    if (!mappings[i].start) {
      struct record record = {0};
      set_file(&record, file);
      mappings[i] = (struct mapping){map, size, offset, record.inode, ""};
      strcpy(mappings[i].path, path);
      break;
    }
  unlock();
  return map;
}

void *mmap(void *start, size_t size, int protection, int flags, int file, off_t offset) {
  return map_file(start, size, protection, flags, file, offset);
}

void *mmap64(void *start, size_t size, int protection, int flags, int file, off64_t offset) {
  return map_file(start, size, protection, flags, file, offset);
}

static struct mapping *mapping_at(void *start) {
  for (size_t i = 0; i < sizeof mappings / sizeof *mappings; i++)
    if (mappings[i].start && (char *)start >= mappings[i].start &&
        (char *)start < mappings[i].start + mappings[i].size)
      return &mappings[i];
  return NULL;
}

int munmap(void *start, size_t size) {
  REAL(munmap);
  struct mapping *mapping = is_active() ? mapping_at(start) : NULL;
  if (mapping) {
    lock();
    record_mapping(mapping);
    mapping->start = NULL;
    unlock();
  }
  return real(start, size);
}

int msync(void *start, size_t size, int flags) {
  REAL(msync);
  struct mapping *mapping = is_active() ? mapping_at(start) : NULL;
  if (!mapping) return real(start, size, flags);
  lock();
  record_mapping(mapping);
  struct record record = {.op = 's', .inode = mapping->inode};
  return (int)CALL(&record, mapping->path, NULL, real(start, size, flags));
}

static void record_rest(void) {
  if (!is_active()) return;
  lock();
  record_mappings(0);
  unlock();
}

__attribute__((destructor)) static void finish(void) { record_rest(); }

void _exit(int status) {
  REAL(_exit);
  record_rest();
  real(status);
  __builtin_unreachable();
}

/* Opening */

static int open_at(int folder, const char *path, int flags, mode_t mode) {
  REAL(openat);
  char whole[PATH_MAX];
  if (!is_active() || !resolve(folder, path, whole)) return real(folder, path, flags, mode);
  struct record record = {.op = 'o', .flags = flags};
  struct stat status;
  lock();
  int is_new = (flags & O_CREAT) && lstat(whole, &status) < 0;
  int injected = count_call(&record), file = -1;
  if (injected > 0)
    errno = injected;
  else
    file = real(folder, path, flags, mode);
  int saved = errno;
  record.result = file < 0 ? -saved : is_new;
  if (file >= 0) set_file(&record, file);
  append(&record, whole, NULL, NULL);
  unlock();
  errno = saved;
  return file;
}

#define MODE(flags) \
  mode_t mode = 0; \
  if ((flags) & (O_CREAT | __O_TMPFILE)) { \
    va_list list; \
    va_start(list, flags); \
    mode = va_arg(list, mode_t); \
    va_end(list); \
  }

int open(const char *path, int flags, ...) { MODE(flags); return open_at(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE(flags); return open_at(AT_FDCWD, path, flags, mode); }
int openat(int folder, const char *path, int flags, ...) { MODE(flags); return open_at(folder, path, flags, mode); }
int openat64(int folder, const char *path, int flags, ...) { MODE(flags); return open_at(folder, path, flags, mode); }
int __open_2(const char *path, int flags) { return open_at(AT_FDCWD, path, flags, 0); }
int __open64_2(const char *path, int flags) { return open_at(AT_FDCWD, path, flags, 0); }
int __openat_2(int folder, const char *path, int flags) { return open_at(folder, path, flags, 0); }
int __openat64_2(int folder, const char *path, int flags) { return open_at(folder, path, flags, 0); }
int creat(const char *path, mode_t mode) { return open_at(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }
int creat64(const char *path, mode_t mode) { return open_at(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }

/* Writing and reading. An offset of -1 is that of the file. */

static ssize_t write_parts(int file, const struct iovec *parts, int count, off_t offset) {
  REAL(pwritev);
  __typeof__(writev) *plain = (__typeof__(writev) *)dlsym(RTLD_NEXT, "writev");
  char path[PATH_MAX];
  if (!is_active() || !path_of(file, path))
    return offset < 0 ? plain(file, parts, count) : real(file, parts, count, offset);
  struct record record = {.op = 'w', .offset = offset};
  struct stat status;
  lock();
  set_file(&record, file);
  if (offset < 0) {
    int appends = fcntl(file, F_GETFL) & O_APPEND;
    record.offset = appends && fstat(file, &status) == 0 ? status.st_size : lseek(file, 0, SEEK_CUR);
  }
  size_t size = 0;
  for (int i = 0; i < count; i++) size += parts[i].iov_len;
  char *data = malloc(size + 1), *end = data;
  for (int i = 0; i < count; i++) end = (char *)mempcpy(end, parts[i].iov_base, parts[i].iov_len);
  int injected = count_call(&record);
  if (injected == SHORT && size > 1) size /= 2;
  struct iovec all = {data, size};
  ssize_t written = -1;
  if (injected > 0)
    errno = injected;
  else
    written = offset < 0 ? plain(file, &all, 1) : real(file, &all, 1, offset);
  int saved = errno;
  record.result = written < 0 ? -saved : written;
  record.sizes[2] = written < 0 ? 0 : written;
  append(&record, path, NULL, data);
  unlock();
  free(data);
  errno = saved;
  return written;
}

ssize_t write(int file, const void *data, size_t size) {
  REAL(write);
  if (!is_active()) return real(file, data, size);
  struct iovec part = {(void *)data, size};
  return write_parts(file, &part, 1, -1);
}

ssize_t pwrite(int file, const void *data, size_t size, off_t offset) {
  struct iovec part = {(void *)data, size};
  return write_parts(file, &part, 1, offset);
}

ssize_t pwrite64(int file, const void *data, size_t size, off64_t offset) {
  return pwrite(file, data, size, offset);
}

ssize_t writev(int file, const struct iovec *parts, int count) {
  return write_parts(file, parts, count, -1);
}

ssize_t pwritev(int file, const struct iovec *parts, int count, off_t offset) {
  return write_parts(file, parts, count, offset);
}

ssize_t pwritev64(int file, const struct iovec *parts, int count, off64_t offset) {
  return write_parts(file, parts, count, offset);
}

/* Copies inside the kernel are made with writes, which the callers accept as a fallback. */
ssize_t sendfile(int out, int in, off_t *offset, size_t size) {
  REAL(sendfile);
  char path[PATH_MAX];
  if (!is_active() || !path_of(out, path)) return real(out, in, offset, size);
  errno = EINVAL;
  return -1;
}

ssize_t sendfile64(int out, int in, off64_t *offset, size_t size) {
  return sendfile(out, in, offset, size);
}

ssize_t copy_file_range(int in, off64_t *start, int out, off64_t *end, size_t size, unsigned flags) {
  REAL(copy_file_range);
  char path[PATH_MAX];
  if (!is_active() || !path_of(out, path)) return real(in, start, out, end, size, flags);
  errno = EXDEV;
  return -1;
}

#define READ(file, expression) \
  char path[PATH_MAX]; \
  if (!is_active() || !path_of(file, path)) return expression; \
  struct record record = {.op = 'r'}; \
  lock(); \
  return (ssize_t)CALL(&record, path, NULL, expression)

ssize_t read(int file, void *data, size_t size) { REAL(read); READ(file, real(file, data, size)); }
ssize_t pread(int file, void *data, size_t size, off_t offset) { REAL(pread); READ(file, real(file, data, size, offset)); }
ssize_t pread64(int file, void *data, size_t size, off64_t offset) { REAL(pread64); READ(file, real(file, data, size, offset)); }
ssize_t readv(int file, const struct iovec *parts, int count) { REAL(readv); READ(file, real(file, parts, count)); }

/* Syncing and truncating */

#define ON_FILE(code, file, length, expression) \
  char path[PATH_MAX]; \
  if (!is_active() || !path_of(file, path)) return expression; \
  struct record record = {.op = code, .offset = length}; \
  lock(); \
  set_file(&record, file); \
  if (code == 's') record_mappings(record.inode); \
  return (int)CALL(&record, path, NULL, expression)

int fsync(int file) { REAL(fsync); ON_FILE('s', file, 0, real(file)); }
int fdatasync(int file) { REAL(fdatasync); ON_FILE('s', file, 0, real(file)); }
int ftruncate(int file, off_t size) { REAL(ftruncate); ON_FILE('t', file, size, real(file, size)); }
int ftruncate64(int file, off64_t size) { REAL(ftruncate64); ON_FILE('t', file, size, real(file, size)); }

/* Preallocation is optional for every caller. */
int fallocate(int file, int mode, off_t offset, off_t size) {
  REAL(fallocate);
  char path[PATH_MAX];
  if (!is_active() || !path_of(file, path)) return real(file, mode, offset, size);
  errno = EOPNOTSUPP;
  return -1;
}

int fallocate64(int file, int mode, off64_t offset, off64_t size) { return fallocate(file, mode, offset, size); }

/* Names */

#define ON_PATH(code, value, folder, name, expression) \
  char path[PATH_MAX]; \
  if (!is_active() || !resolve(folder, name, path)) return expression; \
  struct record record = {.op = code, .flags = (int32_t)(value)}; \
  lock(); \
  return (int)CALL(&record, path, NULL, expression)

int truncate(const char *name, off_t size) {
  REAL(truncate);
  char path[PATH_MAX];
  if (!is_active() || !resolve(AT_FDCWD, name, path)) return real(name, size);
  struct record record = {.op = 't', .offset = size};
  lock();
  set_inode(&record, path);
  return (int)CALL(&record, path, NULL, real(name, size));
}

int truncate64(const char *name, off64_t size) { return truncate(name, size); }
int unlink(const char *name) { REAL(unlink); ON_PATH('u', 0, AT_FDCWD, name, real(name)); }
int unlinkat(int folder, const char *name, int flags) { REAL(unlinkat); ON_PATH('u', flags, folder, name, real(folder, name, flags)); }
int rmdir(const char *name) { REAL(rmdir); ON_PATH('u', 0, AT_FDCWD, name, real(name)); }
int mkdir(const char *name, mode_t mode) { REAL(mkdir); ON_PATH('d', 0, AT_FDCWD, name, real(name, mode)); }
int mkdirat(int folder, const char *name, mode_t mode) { REAL(mkdirat); ON_PATH('d', 0, folder, name, real(folder, name, mode)); }

#define ON_PATHS(code, value, folder, name, other_folder, other_name, expression) \
  char path[PATH_MAX], other[PATH_MAX]; \
  if (!is_active()) return expression; \
  int below = resolve(folder, name, path); \
  if (!(resolve(other_folder, other_name, other) | below)) return expression; \
  struct record record = {.op = code, .flags = (int32_t)(value)}; \
  lock(); \
  return (int)CALL(&record, path, other, expression)

int rename(const char *one, const char *other_name) { REAL(rename); ON_PATHS('n', 0, AT_FDCWD, one, AT_FDCWD, other_name, real(one, other_name)); }
int renameat(int a, const char *one, int b, const char *other_name) { REAL(renameat); ON_PATHS('n', 0, a, one, b, other_name, real(a, one, b, other_name)); }
int renameat2(int a, const char *one, int b, const char *other_name, unsigned flags) { REAL(renameat2); ON_PATHS('n', flags, a, one, b, other_name, real(a, one, b, other_name, flags)); }
int link(const char *one, const char *other_name) { REAL(link); ON_PATHS('l', 0, AT_FDCWD, one, AT_FDCWD, other_name, real(one, other_name)); }
int linkat(int a, const char *one, int b, const char *other_name, int flags) { REAL(linkat); ON_PATHS('l', flags, a, one, b, other_name, real(a, one, b, other_name, flags)); }
