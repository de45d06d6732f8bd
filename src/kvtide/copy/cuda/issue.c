/* Issues a list of commands to the CUDA driver. It is called without the interpreter's lock, and never takes it.

   `issuing.py` compiles it, calls it, and says the same in Python. */

/* No header is needed, so that any C compiler will do, also one without a C library. */
typedef __SIZE_TYPE__ size_t;
typedef long long word;
typedef unsigned long long address;

struct driver {
  int (*copy)(address to, address source, size_t nbytes, void *stream);
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
enum { COPY_WORDS = 9, RECORD_WORDS = 2, WAIT_WORDS = 2, SYNCHRONIZE_WORDS = 1, LAUNCH_WORDS = 6 };
enum { PARAMETERS_MAX = 16, MALFORMED = -1 };

static void *at(word number) { return (void *)(size_t)number; }

static int are_set(const word *numbers, word count) {
  for (word i = 0; i < count; i++)
    if (numbers[i] <= 0) return 0;
  return 1;
}

static int is_copy(const word *arguments) {
  return are_set(arguments, 5) && arguments[5] >= 0 && (!arguments[5] || are_set(arguments + 6, 3)) &&
         are_set(at(arguments[1]), arguments[4]) && are_set(at(arguments[2]), arguments[4]) &&
         are_set(at(arguments[3]), arguments[4]);
}

static int is_launch(const word *arguments, word left) {
  return are_set(arguments, 4) && arguments[4] >= 0 && arguments[5] >= 0 && arguments[5] <= PARAMETERS_MAX &&
         left >= LAUNCH_WORDS + arguments[5];
}

/* Words of a command's arguments; MALFORMED for what would crash the driver: handles, addresses and sizes that are
   not set, and a list that ends too soon. */
static word words_of(word kind, const word *arguments, word left) {
  static const word least[] = {COPY_WORDS, RECORD_WORDS, WAIT_WORDS, SYNCHRONIZE_WORDS, LAUNCH_WORDS};
  if (kind < COPY || kind > LAUNCH || left < least[kind]) return MALFORMED;
  if (kind == COPY) return is_copy(arguments) ? COPY_WORDS : MALFORMED;
  if (kind == LAUNCH) return is_launch(arguments, left) ? LAUNCH_WORDS + arguments[5] : MALFORMED;
  return are_set(arguments, least[kind]) ? least[kind] : MALFORMED;
}

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
  if (count > 1 && driver->copy_batch)
    return driver->copy_batch(to, source, sizes, count, driver->batch_attributes, &attributes_from, 1, &failed_at,
                              stream);
  for (word i = 0; i < count && !code; i++) code = driver->copy(to[i], source[i], sizes[i], stream);
  return code;
}

/* stream, three arrays (to, source, sizes), how long they are; bytes of a turn, another stream, an event for each.
   Where no gaps are left, all of it is one turn: between two calls the link is idle for microseconds. */
static int copy(const struct driver *driver, const word *arguments, const volatile word *gaps) {
  void *stream = at(arguments[0]);
  word *to = at(arguments[1]), *source = at(arguments[2]), *sizes = at(arguments[3]);
  word count = arguments[4], turn_bytes = arguments[5];
  int code = 0;
  for (word first = 0, last = 0; first < count && !code; first = last) {
    word bytes = 0;
    do bytes += sizes[last++];
    while (last < count && (!turn_bytes || !*gaps || bytes + sizes[last] <= turn_bytes));
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
                        parameters, 0);
}

/* Returns the driver's first error, and in `failed_at` which word begins the command that had it: the last one, if
   none had. `gaps` is read all the time. */
int issue(const struct driver *driver, const word *words, word count, const volatile word *gaps, word *failed_at) {
  int code = 0;
  for (word next = 0; next < count && !code;) {
    const word kind = words[next], *a = words + next + 1;
    const word length = words_of(kind, a, count - next - 1);
    *failed_at = next;
    if (length == MALFORMED) return MALFORMED;
    switch (kind) {
      case COPY:
        code = copy(driver, a, gaps);
        break;
      case RECORD:
        code = driver->record(at(a[1]), at(a[0]));
        break;
      case WAIT:
        code = driver->wait(at(a[0]), at(a[1]), 0);
        break;
      case SYNCHRONIZE:
        code = driver->synchronize(at(a[0]));
        break;
      case LAUNCH:
        code = launch(driver, a);
        break;
    }
    next += 1 + length;
  }
  return code;
}
