/* One measurement with NATS's client for C: ./libnats WHAT URL SECONDS COUNT SERVER_PID
 *
 * Prints one line of JSON: messages a second, microseconds of the server's CPU for each, and, where each call is awaited,
 * its median and 99th percentile. COUNT is how many messages wait to be read where some have to. */
#include <nats/nats.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define EARS 10
#define WINDOW 1000
#define FETCH 500
#define KEYS 100
#define MOST (1 << 20)
#define LIMIT_MS 60000

static natsConnection *nc;
static jsCtx *js;
static kvStore *kv;
static char payload[128];
static double *times;
static const char *server;
static volatile long got;

static void check(natsStatus s, const char *what) {
    if (s == NATS_OK) return;
    fprintf(stderr, "%s: %s\n", what, natsStatus_GetText(s));
    exit(1);
}
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}
static double cpu(void) {
    char path[64], line[1024];
    unsigned long user = 0, system = 0;
    snprintf(path, sizeof path, "/proc/%s/stat", server);
    FILE *f = fopen(path, "r");
    if (f && fgets(line, sizeof line, f))
        sscanf(strrchr(line, ')'), ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system);
    if (f) fclose(f);
    return (double)(user + system) / sysconf(_SC_CLK_TCK);
}
static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static void tell(long count, double seconds, double taken, long timed) {
    printf("{\"rate\": %.1f, \"cpu\": %.3f", count / seconds, taken * 1e6 / count);
    if (timed) {
        qsort(times, timed, sizeof *times, by_size);
        printf(", \"p50\": %.1f, \"p99\": %.1f", times[timed / 2] * 1e6, times[timed * 99 / 100] * 1e6);
    }
    printf("}\n");
}
static void on_message(natsConnection *c, natsSubscription *sub, natsMsg *m, void *closure) {
    __atomic_add_fetch(&got, 1, __ATOMIC_RELAXED);
    natsMsg_Destroy(m);
}
static void on_request(natsConnection *c, natsSubscription *sub, natsMsg *m, void *closure) {
    natsConnection_Publish(c, natsMsg_GetReply(m), natsMsg_GetData(m), natsMsg_GetDataLength(m));
    natsMsg_Destroy(m);
}
static natsConnection *connected(const char *url, bool at_once) {
    natsOptions *o = NULL;
    natsConnection *c = NULL;
    natsOptions_Create(&o);
    natsOptions_SetURL(o, url);
    natsOptions_SetTimeout(o, 10000);
    /* Otherwise a published answer waits up to 1 ms for others to be written with it. */
    natsOptions_SetSendAsap(o, at_once);
    check(natsConnection_Connect(&c, o), "connect");
    return c;
}
static void await(long wanted) {
    double until = now() + LIMIT_MS / 1000;
    while (got < wanted && now() < until) nats_Sleep(1);
    if (got < wanted) check(NATS_TIMEOUT, "messages");
}

static void request_once(long i) {
    natsMsg *m = NULL;
    check(natsConnection_Request(&m, nc, "service", payload, sizeof payload, LIMIT_MS), "request");
    natsMsg_Destroy(m);
}
static void store_once(long i) {
    jsPubAck *ack = NULL;
    check(js_Publish(&ack, js, "bench.a", payload, sizeof payload, NULL, NULL), "publish");
    jsPubAck_Destroy(ack);
}
static void put_once(long i) {
    char key[16];
    snprintf(key, sizeof key, "k%ld", i % KEYS);
    check(kvStore_Put(NULL, kv, key, payload, sizeof payload), "put");
}
static void get_once(long i) {
    char key[16];
    kvEntry *e = NULL;
    snprintf(key, sizeof key, "k%ld", i % KEYS);
    check(kvStore_Get(&e, kv, key), "get");
    kvEntry_Destroy(e);
}
/* Each call awaited before the next. */
static void each(void (*call)(long), double seconds) {
    long i = 0;
    for (double until = now() + seconds * 0.15; now() < until;) call(i++);
    double taken = cpu(), start = now(), last = start;
    for (i = 0; i < MOST && last < start + seconds; i++) {
        call(i);
        double t = now();
        times[i] = t - last;
        last = t;
    }
    tell(i, last - start, cpu() - taken, i);
}
static void publish(double seconds) {
    double taken = cpu(), start = now();
    long i = 0;
    while (now() < start + seconds)
        for (int k = 0; k < 1000; k++, i++) check(natsConnection_Publish(nc, "bench.a", payload, sizeof payload), "publish");
    check(natsConnection_FlushTimeout(nc, LIMIT_MS), "flush");
    tell(i, now() - start, cpu() - taken, 0);
}
static void fan_out(const char *url, long count) {
    natsSubscription *sub = NULL;
    for (int i = 0; i < EARS; i++) {
        natsConnection *c = connected(url, false);
        check(natsConnection_Subscribe(&sub, c, "bench.a", on_message, NULL), "subscribe");
        natsSubscription_SetPendingLimits(sub, -1, -1);
        check(natsConnection_Flush(c), "flush");
    }
    double taken = cpu(), start = now();
    for (long i = 0; i < count; i++) check(natsConnection_Publish(nc, "bench.a", payload, sizeof payload), "publish");
    check(natsConnection_Flush(nc), "flush");
    await(count * EARS);
    tell(count * EARS, now() - start, cpu() - taken, 0);
}
static void fill(long count) {
    jsPubOptions o;
    jsPubOptions_Init(&o);
    for (long i = 0; i < count; i++) check(js_PublishAsync(js, "bench.a", payload, sizeof payload, NULL), "publish");
    o.MaxWait = LIMIT_MS;
    check(js_PublishAsyncComplete(js, &o), "acks");
}
static void in_flight(long count) {
    double taken = cpu(), start = now();
    fill(count);
    tell(count, now() - start, cpu() - taken, 0);
}
static void pull(long count) {
    natsSubscription *sub = NULL;
    jsSubOptions so;
    jsSubOptions_Init(&so);
    so.Config.MaxAckPending = count + 1;
    fill(count);
    check(js_PullSubscribe(&sub, js, "bench.a", "puller", NULL, &so, NULL), "subscribe");
    double taken = cpu(), start = now();
    for (long left = count; left > 0;) {
        natsMsgList list = {NULL, 0};
        check(natsSubscription_Fetch(&list, sub, FETCH, LIMIT_MS, NULL), "fetch");
        for (int i = 0; i < list.Count; i++) check(natsMsg_Ack(list.Msgs[i], NULL), "ack");
        left -= list.Count;
        natsMsgList_Destroy(&list);
    }
    check(natsConnection_FlushTimeout(nc, LIMIT_MS), "flush");
    tell(count, now() - start, cpu() - taken, 0);
}
static void ordered(long count) {
    natsSubscription *sub = NULL;
    jsSubOptions so;
    jsSubOptions_Init(&so);
    so.Ordered = true;
    fill(count);
    double taken = cpu(), start = now();
    check(js_Subscribe(&sub, js, "bench.a", on_message, NULL, NULL, &so, NULL), "subscribe");
    await(count);
    tell(count, now() - start, cpu() - taken, 0);
}
static void stream(void) {
    jsOptions o;
    jsStreamConfig c;
    const char *subjects[] = {"bench.>"};
    jsOptions_Init(&o);
    o.Wait = LIMIT_MS;
    o.PublishAsync.MaxPending = WINDOW;
    o.PublishAsync.StallWait = LIMIT_MS;
    check(natsConnection_JetStream(&js, nc, &o), "jetstream");
    jsStreamConfig_Init(&c);
    c.Name = "BENCH";
    c.Subjects = subjects;
    c.SubjectsLen = 1;
    check(js_AddStream(NULL, js, &c, NULL, NULL), "stream");
}
static void bucket(void) {
    kvConfig c;
    kvConfig_Init(&c);
    c.Bucket = "BENCH";
    check(js_CreateKeyValue(&kv, js, &c), "bucket");
    for (long i = 0; i < KEYS; i++) put_once(i);
}
int main(int argc, char **argv) {
    if (argc != 6) return 2;
    const char *what = argv[1], *url = argv[2];
    double seconds = atof(argv[3]);
    long count = atol(argv[4]);
    server = argv[5];
    times = malloc(MOST * sizeof *times);
    memset(payload, 'x', sizeof payload);
    nc = connected(url, false);
    if (!strcmp(what, "publish")) publish(seconds);
    else if (!strcmp(what, "fan-out")) fan_out(url, count);
    else if (!strcmp(what, "request")) {
        natsSubscription *sub = NULL;
        natsConnection *c = connected(url, true);
        check(natsConnection_Subscribe(&sub, c, "service", on_request, NULL), "subscribe");
        check(natsConnection_Flush(c), "flush");
        each(request_once, seconds);
    } else {
        stream();
        if (!strcmp(what, "store")) each(store_once, seconds);
        else if (!strcmp(what, "in-flight")) in_flight(count);
        else if (!strcmp(what, "pull")) pull(count);
        else if (!strcmp(what, "ordered")) ordered(count);
        else {
            bucket();
            if (!strcmp(what, "put")) each(put_once, seconds);
            else if (!strcmp(what, "get")) each(get_once, seconds);
            else return 2;
        }
    }
    fflush(stdout);
    _exit(0);
}
