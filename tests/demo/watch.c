/* Preloaded into every process of a server: records each name that is looked up, each address beyond this machine that
 * is called, and each path that is made, as lines "WHAT ARGUMENT" at the end of the file $OMNI_WATCH. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <netdb.h>
#include <netinet/in.h>
#include <resolv.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static void record(const char *what, const char *argument) {
    const char *path = getenv("OMNI_WATCH");
    if (path == NULL || argument == NULL) return;
    int file = (int)syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_APPEND | O_CLOEXEC, 0);
    if (file < 0) return;
    char line[PATH_MAX + 64];
    int size = snprintf(line, sizeof line, "%s %s\n", what, argument);
    if (size > 0) (void)!syscall(SYS_write, file, line, (size_t)size < sizeof line ? (size_t)size : sizeof line - 1);
    syscall(SYS_close, file);
}

static void made(int folder, const char *name) {
    char path[PATH_MAX * 2], base[PATH_MAX] = "", link[64];
    if (name == NULL) return;
    if (name[0] != '/') {
        if (folder == AT_FDCWD) {
            if (getcwd(base, sizeof base) == NULL) return;
        } else {
            snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
            ssize_t size = readlink(link, base, sizeof base - 1);
            base[size > 0 ? size : 0] = 0;
        }
        snprintf(path, sizeof path, "%s/%s", base, name);
        record("made", path);
    } else {
        record("made", name);
    }
}

static void called(const struct sockaddr *to) {
    char text[INET6_ADDRSTRLEN + 8] = "";
    if (to == NULL) return;
    if (to->sa_family == AF_INET) {
        const struct sockaddr_in *it = (const void *)to;
        if ((ntohl(it->sin_addr.s_addr) >> 24) == 127 && ntohs(it->sin_port) != 53) return;
        inet_ntop(AF_INET, &it->sin_addr, text, sizeof text);
        record("called", text);
    } else if (to->sa_family == AF_INET6) {
        const struct sockaddr_in6 *it = (const void *)to;
        if (IN6_IS_ADDR_LOOPBACK(&it->sin6_addr)) return;
        inet_ntop(AF_INET6, &it->sin6_addr, text, sizeof text);
        record("called", text);
    }
}

int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **found) {
    struct in6_addr number;
    if (node != NULL && !inet_pton(AF_INET, node, &number) && !inet_pton(AF_INET6, node, &number))
        record("looked-up", node);
    return REAL(getaddrinfo)(node, service, hints, found);
}

#define LOOK_UP(result, name, parameters, ...) \
    result name parameters { record("looked-up", host); return REAL(name)(__VA_ARGS__); }

LOOK_UP(struct hostent *, gethostbyname, (const char *host), host)
LOOK_UP(struct hostent *, gethostbyname2, (const char *host, int family), host, family)
LOOK_UP(int, gethostbyname_r, (const char *host, struct hostent *a, char *b, size_t c, struct hostent **d, int *e), host, a, b, c, d, e)
LOOK_UP(int, res_query, (const char *host, int a, int b, unsigned char *c, int d), host, a, b, c, d)
LOOK_UP(int, res_search, (const char *host, int a, int b, unsigned char *c, int d), host, a, b, c, d)

int connect(int fd, const struct sockaddr *to, socklen_t size) { called(to); return REAL(connect)(fd, to, size); }

ssize_t sendto(int fd, const void *data, size_t size, int flags, const struct sockaddr *to, socklen_t length) {
    called(to);
    return REAL(sendto)(fd, data, size, flags, to, length);
}

#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        va_list more; va_start(more, flags); mode_t mode = va_arg(more, mode_t); va_end(more); \
        if (flags & O_CREAT) made(AT_FDCWD, path); \
        return REAL(name)(path, flags, mode); }
#define OPENAT(name) \
    int name(int folder, const char *path, int flags, ...) { \
        va_list more; va_start(more, flags); mode_t mode = va_arg(more, mode_t); va_end(more); \
        if (flags & O_CREAT) made(folder, path); \
        return REAL(name)(folder, path, flags, mode); }
#define FOPEN(name) \
    FILE *name(const char *path, const char *mode) { \
        if (strpbrk(mode, "wa")) made(AT_FDCWD, path); \
        return REAL(name)(path, mode); }

OPEN(open) OPEN(open64) OPENAT(openat) OPENAT(openat64) FOPEN(fopen) FOPEN(fopen64)

int creat(const char *path, mode_t mode) { made(AT_FDCWD, path); return REAL(creat)(path, mode); }
int mkdir(const char *path, mode_t mode) { made(AT_FDCWD, path); return REAL(mkdir)(path, mode); }
int mkdirat(int folder, const char *path, mode_t mode) { made(folder, path); return REAL(mkdirat)(folder, path, mode); }
int rename(const char *from, const char *to) { made(AT_FDCWD, to); return REAL(rename)(from, to); }
int symlink(const char *target, const char *path) { made(AT_FDCWD, path); return REAL(symlink)(target, path); }
int link(const char *target, const char *path) { made(AT_FDCWD, path); return REAL(link)(target, path); }
