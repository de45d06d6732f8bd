/* Issues a list of commands to the CUDA driver. It is called without the interpreter's lock, and never takes it.

   `issuing.py` compiles it, calls it, and says the same in Python. */

#include <stddef.h>
#include <stdint.h>

typedef int64_t word;

struct driver {
  int (*copy)(uint64_t to, uint64_t source, size_t nbytes, void *stream);
  int (*copy_batch)(void *to, void *source, void *sizes, size_t count, void *attributes, size_t *attributes_from,
                    size_t attributes_count, size_t *failed_at, void *stream);
  int (*record)(void *event, void *stream);
  int (*wait)(void *stream, void *event, unsigned flags);
  int (*synchronize)(void *event);
  int (*launch)(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                unsigned block_z, unsigned shared_bytes, void *stream, void **parameters, void **extra);
  void *batch_attributes;
};

enum { COPY, COPY_BATCH, RECORD, WAIT, SYNCHRONIZE, LAUNCH, GIVE_WAY };
enum { PARAMETERS_MAX = 16, UNKNOWN = -1 };

static void *at(word address) { return (void *)(intptr_t)address; }

static int copy_batch(const struct driver *driver, const word *arguments) {
  size_t attributes_from = 0, failed_at = 0;
  return driver->copy_batch(at(arguments[1]), at(arguments[2]), at(arguments[3]), arguments[4],
                            driver->batch_attributes, &attributes_from, 1, &failed_at, at(arguments[0]));
}

/* stream, function, programs, threads, shared bytes, how many parameters, and the parameters */
static int launch(const struct driver *driver, const word *arguments) {
  void *parameters[PARAMETERS_MAX];
  for (word i = 0; i < arguments[5]; i++) parameters[i] = (void *)&arguments[6 + i];
  return driver->launch(at(arguments[1]), arguments[2], 1, 1, arguments[3], 1, 1, arguments[4], at(arguments[0]),
                        parameters, NULL);
}

static int give_way(const struct driver *driver, void *stream, void *other, void *ours, void *theirs) {
  int code = driver->record(ours, stream);
  if (!code) code = driver->wait(other, ours, 0);
  if (!code) code = driver->record(theirs, other);
  if (!code) code = driver->wait(stream, theirs, 0);
  return code;
}

/* Returns the driver's first error, and in `kind` which command had it. `gaps` is read whenever a gap could be left. */
int issue(const struct driver *driver, const word *words, word count, const volatile word *gaps, word *kind) {
  const word *a = words, *end = words + count;
  int code = 0;
  while (a < end && !code) {
    *kind = *a++;
    switch (*kind) {
      case COPY:
        code = driver->copy(a[1], a[2], a[3], at(a[0]));
        a += 4;
        break;
      case COPY_BATCH:
        code = copy_batch(driver, a);
        a += 5;
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
      case GIVE_WAY:
        if (*gaps) code = give_way(driver, at(a[0]), at(a[1]), at(a[2]), at(a[3]));
        a += 4;
        break;
      default:
        code = UNKNOWN;
    }
  }
  return code;
}
