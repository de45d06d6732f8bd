/* Issues a list of commands to the CUDA driver. It is called without the interpreter's lock, and never takes it.

   `issuing.py` compiles it, calls it, and says the same in Python. */

#include <stddef.h>
#include <stdint.h>

typedef int64_t word;

struct driver {
  int (*copy)(uint64_t to, uint64_t source, size_t nbytes, void *stream);
  int (*record)(void *event, void *stream);
  int (*wait)(void *stream, void *event, unsigned flags);
  int (*synchronize)(void *event);
  int (*launch)(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                unsigned block_z, unsigned shared_bytes, void *stream, void **parameters, void **extra);
  int (*copy_batch)(void *to, void *source, void *sizes, size_t count, void *attributes, size_t *attributes_from,
                    size_t attributes_count, size_t *failed_at, void *stream);
  void *batch_attributes;
};

enum { COPY, RECORD, WAIT, SYNCHRONIZE, LAUNCH };
enum { FEW_COPIES = 4, PARAMETERS_MAX = 16, UNKNOWN = -1 };

static void *at(word address) { return (void *)(intptr_t)address; }

static int give_way(const struct driver *driver, void *stream, void *other, void *ours, void *theirs) {
  int code = driver->record(ours, stream);
  if (!code) code = driver->wait(other, ours, 0);
  if (!code) code = driver->record(theirs, other);
  if (!code) code = driver->wait(stream, theirs, 0);
  return code;
}

static int copy_all(const struct driver *driver, word *to, word *source, word *sizes, word count, void *stream) {
  size_t attributes_from = 0, failed_at = 0;
  int code = 0;
  if (count > FEW_COPIES && driver->copy_batch)
    return driver->copy_batch(to, source, sizes, count, driver->batch_attributes, &attributes_from, 1, &failed_at,
                              stream);
  for (word i = 0; i < count && !code; i++) code = driver->copy(to[i], source[i], sizes[i], stream);
  return code;
}

/* stream, three arrays (to, source, sizes), how long they are; bytes of a turn, another stream, an event for each */
static int copy(const struct driver *driver, const word *arguments, const volatile word *gaps) {
  void *stream = at(arguments[0]);
  word *to = at(arguments[1]), *source = at(arguments[2]), *sizes = at(arguments[3]);
  word count = arguments[4], turn_bytes = arguments[5];
  int code = 0;
  for (word first = 0, last = 0; first < count && !code; first = last) {
    word bytes = 0;
    do bytes += sizes[last++];
    while (last < count && (!turn_bytes || bytes + sizes[last] <= turn_bytes));
    code = copy_all(driver, to + first, source + first, sizes + first, last - first, stream);
    if (!code && turn_bytes && *gaps) code = give_way(driver, stream, at(arguments[6]), at(arguments[7]), at(arguments[8]));
  }
  return code;
}

/* stream, function, programs, threads, shared bytes, how many parameters, and the parameters */
static int launch(const struct driver *driver, const word *arguments) {
  void *parameters[PARAMETERS_MAX];
  for (word i = 0; i < arguments[5]; i++) parameters[i] = (void *)&arguments[6 + i];
  return driver->launch(at(arguments[1]), arguments[2], 1, 1, arguments[3], 1, 1, arguments[4], at(arguments[0]),
                        parameters, NULL);
}

/* Returns the driver's first error, and in `kind` which command had it. `gaps` is read after each turn. */
int issue(const struct driver *driver, const word *words, word count, const volatile word *gaps, word *kind) {
  const word *a = words, *end = words + count;
  int code = 0;
  while (a < end && !code) {
    *kind = *a++;
    switch (*kind) {
      case COPY:
        code = copy(driver, a, gaps);
        a += 9;
        break;
      case RECORD:
        code = driver->record(at(a[1]), at(a[0]));
        a += 2;
        break;
      case WAIT:
        code = driver->wait(at(a[0]), at(a[1]), 0);
        a += 2;
        break;
      case SYNCHRONIZE:
        code = driver->synchronize(at(a[0]));
        a += 1;
        break;
      case LAUNCH:
        code = launch(driver, a);
        a += 6 + a[5];
        break;
      default:
        code = UNKNOWN;
    }
  }
  return code;
}
