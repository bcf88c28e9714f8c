// Load for HTTP servers, and the floor that they are held against. One thread, epoll, no dependencies.
//
//   load http   PORT CONNECTIONS WARM_S SECONDS REQUEST                    requests, one at a time on each connection
//   load stream PORT CONNECTIONS WARM_S SECONDS REQUEST                    streamed answers; counts marks "@<ns>;"
//   load echo   PORT CONNECTIONS WARM_S SECONDS REQUEST SIZE RATE          WebSocket frames, echoed
//   load push   PORT CONNECTIONS WARM_S SECONDS REQUEST                    WebSocket frames that the server sends
//   load serve  PORT                                                       a constant reply to whatever comes
//
// REQUEST is a file with the bytes of one request (or upgrade). A mark is the sender's CLOCK_MONOTONIC; so are the first
// 8 bytes of a frame. RATE is frames per second on each connection, 0 for one after the other. Times are from a request
// (a mark, a frame) to its answer's last byte here. The warm-up begins when every connection has had its first answer.
// Says "begin" when the measured time starts, and at its end one line of JSON with times in microseconds.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum mode { HTTP, STREAM, ECHO, PUSH };
#define PATIENCE_NS 20000000000u
enum { CAPACITY = 1 << 18, SAMPLES = 1 << 22, HEADROOM = 14 };

struct peer {
  int fd, open, seen;  // open: the head of the answer has come; seen: of the first one
  uint64_t began, due; // when its request left; when its next frame is to leave
  size_t have;
  char in[CAPACITY + 1];
};

static enum mode mode;
static int port, loop;
static char request[1 << 16];
static size_t request_size;
static unsigned char *frame; // a masked frame with the mask 0
static size_t frame_size, frame_head;
static uint64_t measure_from = UINT64_MAX, pause_ns, units, bytes, errors, samples;
static int open_peers;
static uint32_t *sample;

static void die(const char *what) {
  perror(what);
  exit(1);
}

static uint64_t now(void) {
  struct timespec at;
  clock_gettime(CLOCK_MONOTONIC, &at);
  return (uint64_t)at.tv_sec * 1000000000u + (uint64_t)at.tv_nsec;
}

static void count(uint64_t from, uint64_t to) {
  if (to < measure_from) return;
  units++;
  if (samples < SAMPLES) sample[samples++] = to > from ? (uint32_t)((to - from) / 100) : 0; // tenths of a microsecond
}

static int ascending(const void *a, const void *b) {
  uint32_t left = *(const uint32_t *)a, right = *(const uint32_t *)b;
  return (left > right) - (left < right);
}

static double quantile(double share) {
  return samples ? sample[(size_t)((double)(samples - 1) * share)] / 10.0 : 0;
}

// What is sent is small and never more than a connection's buffer holds: a short write is an error of the measurement.
static void put(struct peer *peer, const void *data, size_t size) {
  if (send(peer->fd, data, size, MSG_NOSIGNAL) != (ssize_t)size) errors++;
}

static void put_frame(struct peer *peer, uint64_t stamp) {
  memcpy(frame + frame_head, &stamp, 8);
  put(peer, frame, frame_size);
}

static void start(struct peer *peer) {
  peer->open = 0;
  peer->have = 0;
  peer->began = now();
  put(peer, request, request_size);
}

static void dial(struct peer *peer) {
  struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  int one = 1;
  if ((peer->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) < 0) die("socket");
  if (connect(peer->fd, (struct sockaddr *)&to, sizeof to)) die("connect");
  setsockopt(peer->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  struct epoll_event event = {.events = EPOLLIN, .data.ptr = peer};
  epoll_ctl(loop, EPOLL_CTL_ADD, peer->fd, &event);
  start(peer);
}

// Forgets the first bytes of what has come.
static void drop(struct peer *peer, size_t size) {
  memmove(peer->in, peer->in + size, peer->have - size);
  peer->have -= size;
}

// Bytes of the head that has come whole, else 0.
static size_t head_of(struct peer *peer) {
  peer->in[peer->have] = 0;
  char *end = memmem(peer->in, peer->have, "\r\n\r\n", 4);
  return end ? (size_t)(end - peer->in) + 4 : 0;
}

// The head of an answer has come.
static void opened(struct peer *peer) {
  open_peers += !peer->seen;
  peer->open = peer->seen = 1;
}

static int ends(struct peer *peer) { return peer->have >= 5 && !memcmp(peer->in + peer->have - 5, "0\r\n\r\n", 5); }

static void on_http(struct peer *peer) {
  size_t head = head_of(peer);
  if (!head) return;
  peer->in[head - 1] = 0;
  char *length = strcasestr(peer->in, "\ncontent-length:");
  peer->in[head - 1] = '\n';
  if (length ? peer->have < head + strtoul(length + 16, NULL, 10) : !ends(peer)) return;
  if (memcmp(peer->in + 9, "200", 3)) errors++;
  opened(peer);
  count(peer->began, now());
  start(peer);
}

static void on_stream(struct peer *peer) {
  uint64_t at = now();
  if (!peer->open) {
    size_t head = head_of(peer);
    if (!head) return;
    opened(peer);
    if (memcmp(peer->in + 9, "200", 3)) errors++;
  }
  char *from = peer->in, *end = peer->in + peer->have, *mark;
  while ((mark = memchr(from, '@', (size_t)(end - from)))) {
    char *stop = memchr(mark, ';', (size_t)(end - mark));
    if (!stop) break;
    count(strtoull(mark + 1, NULL, 10), at);
    from = stop + 1;
  }
  if (ends(peer))
    start(peer);
  else if (mark)
    drop(peer, (size_t)(mark - peer->in));
  else if (peer->have > 5) // keeps what an end may begin with
    drop(peer, peer->have - 5);
}

static void on_frames(struct peer *peer) {
  if (!peer->open) {
    size_t head = head_of(peer);
    if (!head) return;
    if (memcmp(peer->in + 9, "101", 3)) {
      fprintf(stderr, "no WebSocket: %.200s\n", peer->in);
      exit(1);
    }
    opened(peer);
    drop(peer, head);
    if (mode == ECHO && !pause_ns) put_frame(peer, now());
    peer->due = now() + (pause_ns ? (uint64_t)rand() % pause_ns : 0);
  }
  size_t used = 0;
  while (peer->have - used >= 2) {
    unsigned char *at = (unsigned char *)peer->in + used;
    size_t head = 2, size = at[1] & 127;
    if (size == 126) {
      if (peer->have - used < 4) break;
      size = (size_t)at[2] << 8 | at[3], head = 4;
    } else if (size == 127) {
      errors++;
      break;
    }
    if (peer->have - used < head + size) break;
    if ((at[0] & 15) == 2 && size >= 8) {
      uint64_t stamp;
      memcpy(&stamp, at + head, 8);
      count(stamp, now());
      if (mode == ECHO && !pause_ns) put_frame(peer, now());
    } else if ((at[0] & 15) == 8)
      errors++;
    used += head + size;
  }
  drop(peer, used);
}

static void on_bytes(struct peer *peer) {
  ssize_t got = recv(peer->fd, peer->in + peer->have, CAPACITY - peer->have, MSG_DONTWAIT);
  if (got < 0 && errno == EAGAIN) return;
  if (got <= 0) {
    errors++;
    close(peer->fd);
    dial(peer);
    return;
  }
  if (now() >= measure_from) bytes += (uint64_t)got;
  peer->have += (size_t)got;
  if (mode == HTTP)
    on_http(peer);
  else if (mode == STREAM)
    on_stream(peer);
  else
    on_frames(peer);
  if (peer->have == CAPACITY) peer->have = 0, errors++;
}

static void make_frame(size_t size) {
  frame = calloc(1, size + HEADROOM);
  frame[0] = 0x82;
  if (size < 126) {
    frame[1] = (unsigned char)(0x80 | size), frame_head = 6;
  } else {
    frame[1] = 0x80 | 126, frame[2] = (unsigned char)(size >> 8), frame[3] = (unsigned char)size, frame_head = 8;
  }
  for (size_t i = 0; i < size; i++) frame[frame_head + i] = (unsigned char)rand();
  frame_size = frame_head + size;
}

static void serve(void) {
  static const char reply[] = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 37\r\n\r\n"
                              "{\"id\":\"0123456789abcdef\",\"tokens\":123}\n";
  char data[1 << 16];
  int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  if (bind(listener, (struct sockaddr *)&at, sizeof at) || listen(listener, 1024)) die("listen");
  struct epoll_event event = {.events = EPOLLIN, .data.fd = listener}, events[256];
  epoll_ctl(loop, EPOLL_CTL_ADD, listener, &event);
  for (;;) {
    int ready = epoll_wait(loop, events, 256, -1);
    for (int i = 0; i < ready; i++) {
      int fd = events[i].data.fd;
      if (fd == listener) {
        int made = accept(listener, NULL, NULL);
        setsockopt(made, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        struct epoll_event added = {.events = EPOLLIN, .data.fd = made};
        epoll_ctl(loop, EPOLL_CTL_ADD, made, &added);
      } else if (recv(fd, data, sizeof data, MSG_DONTWAIT) <= 0)
        close(fd);
      else if (send(fd, reply, sizeof reply - 1, MSG_NOSIGNAL) < 0)
        close(fd);
    }
  }
}

int main(int count_of, char **given) {
  static const char *names[] = {"http", "stream", "echo", "push"};
  if (count_of < 3) return 2;
  port = atoi(given[2]);
  loop = epoll_create1(EPOLL_CLOEXEC);
  if (!strcmp(given[1], "serve")) serve();
  while (mode <= PUSH && strcmp(given[1], names[mode])) mode++;
  if (mode > PUSH || count_of < (mode == ECHO ? 9 : 7)) return 2;

  int connections = atoi(given[3]);
  double warm_s = atof(given[4]), seconds = atof(given[5]);
  FILE *file = fopen(given[6], "r");
  if (!file) die(given[6]);
  request_size = fread(request, 1, sizeof request, file);
  fclose(file);
  if (mode == ECHO) {
    make_frame((size_t)atoi(given[7]));
    double rate = atof(given[8]);
    pause_ns = rate > 0 ? (uint64_t)(1e9 / rate) : 0;
  }
  sample = calloc(SAMPLES, sizeof *sample);
  struct peer *peers = calloc((size_t)connections, sizeof *peers);
  uint64_t end = UINT64_MAX, patience = now() + PATIENCE_NS;
  for (int i = 0; i < connections; i++) dial(&peers[i]);
  struct epoll_event events[256];
  int begun = 0;
  for (uint64_t at = now(); at < end; at = now()) {
    if (end == UINT64_MAX) {
      if (open_peers == connections) {
        measure_from = at + (uint64_t)(warm_s * 1e9);
        end = measure_from + (uint64_t)(seconds * 1e9);
      } else if (at > patience) {
        fprintf(stderr, "only %d of %d connections are answered\n", open_peers, connections);
        return 1;
      }
    }
    if (!begun && at >= measure_from) {
      begun = 1;
      puts("begin");
      fflush(stdout);
    }
    uint64_t next = at + 20000000;
    for (int i = 0; pause_ns && i < connections; i++) {
      struct peer *peer = &peers[i];
      if (!peer->open) continue;
      if (peer->due <= at) put_frame(peer, now()), peer->due += pause_ns;
      if (peer->due < next) next = peer->due;
    }
    struct timespec wait = {.tv_nsec = next > at ? (long)(next - at) : 0};
    int ready = epoll_pwait2(loop, events, 256, &wait, NULL);
    for (int i = 0; i < ready; i++) on_bytes(events[i].data.ptr);
  }
  qsort(sample, samples, sizeof *sample, ascending);
  printf("{\"units\":%lu,\"seconds\":%.6f,\"bytes\":%lu,\"errors\":%lu,\"p50_us\":%.1f,\"p90_us\":%.1f,\"p99_us\":%.1f,"
         "\"max_us\":%.1f}\n",
         units, seconds, bytes, errors, quantile(.5), quantile(.9), quantile(.99), quantile(1));
  return 0;
}
