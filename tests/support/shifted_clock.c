/* A wall clock that differs from the kernel's by as many seconds as /run/shift says, for the processes that preload
   this. Deadlines that they give to the kernel by that clock are shifted back. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long shift;

__attribute__((constructor)) static void read_shift(void) {
    FILE *file = fopen("/run/shift", "r");
    if (file) {
        if (fscanf(file, "%ld", &shift) != 1) shift = 0;
        fclose(file);
    }
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static int is_wall(clockid_t clock) { return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE; }

static struct timespec back(const struct timespec *at) {
    struct timespec kernels = {at->tv_sec - shift, at->tv_nsec};
    if (kernels.tv_sec < 0) kernels.tv_sec = 0;
    return kernels;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    static __typeof__(&clock_gettime) real;
    if (!real) real = REAL(clock_gettime);
    int failed = real(clock, now);
    if (!failed && is_wall(clock)) now->tv_sec += shift;
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    static int (*real)(struct timeval *restrict, void *restrict);
    if (!real) real = dlsym(RTLD_NEXT, "gettimeofday");
    int failed = real(now, zone);
    if (!failed) now->tv_sec += shift;
    return failed;
}

time_t time(time_t *now) {
    struct timespec wall;
    clock_gettime(CLOCK_REALTIME, &wall);
    if (now) *now = wall.tv_sec;
    return wall.tv_sec;
}

/* The condition variables of Java and of Python count by the monotonic clock; nothing tells those from others but how
   far the deadline is from now: hours of uptime against decades since 1970. */
int pthread_cond_timedwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict at) {
    static __typeof__(&pthread_cond_timedwait) real;
    if (!real) real = REAL(pthread_cond_timedwait);
    struct timespec kernels = at->tv_sec > 1000000000 ? back(at) : *at;
    return real(condition, mutex, &kernels);
}

int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict at) {
    static __typeof__(&sem_timedwait) real;
    if (!real) real = REAL(sem_timedwait);
    struct timespec kernels = back(at);
    return real(semaphore, &kernels);
}

int pthread_mutex_timedlock(pthread_mutex_t *restrict mutex, const struct timespec *restrict at) {
    static __typeof__(&pthread_mutex_timedlock) real;
    if (!real) real = REAL(pthread_mutex_timedlock);
    struct timespec kernels = back(at);
    return real(mutex, &kernels);
}

long syscall(long number, ...) { /* absl waits so, in TensorFlow and gRPC */
    static long (*real)(long, ...);
    if (!real) real = dlsym(RTLD_NEXT, "syscall");
    va_list list;
    va_start(list, number);
    long a = va_arg(list, long), b = va_arg(list, long), c = va_arg(list, long);
    long d = va_arg(list, long), e = va_arg(list, long), f = va_arg(list, long);
    va_end(list);
    struct timespec kernels;
    if (number == SYS_futex && (b & FUTEX_CLOCK_REALTIME) && d) {
        kernels = back((const struct timespec *)d);
        d = (long)&kernels;
    }
    return real(number, a, b, c, d, e, f);
}
