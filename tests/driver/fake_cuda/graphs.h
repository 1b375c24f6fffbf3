/* Graphs of the stand-in with structures: nodes are counted by type and do nothing; a graph and
 * its executable copies keep the user objects that were tied to it. Part of libcuda.c. */
enum { NODE_COUNT = 64, OBJECT_COUNT = 8 };

/* ---- user objects ---- */
struct object { ptr data; void (*destroy)(ptr); int refs; };
static int live_objects, live_graphs, live_execs, launches;
static uintptr_t last_exec;
int fake_kept(void) { return live_graphs * 10000 + live_execs * 100 + live_objects; }
int fake_launches(void) { return launches; }
static void let_go(struct object *o) {
    if (--o->refs) return;
    destroying++;
    o->destroy(o->data);
    destroying--;
    live_objects--;
    free(o);
}

/* ---- graphs ---- */
struct graph {
    int valid, mode, nodes, objects;
    pthread_t thread;
    uint64_t id;
    unsigned types[NODE_COUNT];
    struct object *object[OBJECT_COUNT];
};
struct exec { int objects; struct object *object[OBJECT_COUNT]; };
static uint64_t last_capture;
static struct graph *new_graph(unsigned m) {
    struct graph *g = calloc(1, sizeof *g);
    if (!g) return 0;
    g->valid = 1; g->mode = (int)m; g->thread = pthread_self(); g->id = ++last_capture;
    live_graphs++;
    return g;
}
static void drop_graph(struct graph *g) {
    while (g->objects) let_go(g->object[--g->objects]);
    live_graphs--;
    free(g);
}
/* Adds a node; the code to return in place of doing the work. */
static code node(struct graph *g, unsigned type) {
    if (!g->valid) return 901;
    if (g->nodes == NODE_COUNT) return 2;
    g->types[g->nodes++] = type;
    return 0;
}

#ifndef WITHOUT_CAPTURES
#ifndef WITHOUT_OBJECTS
code cuUserObjectCreate(struct object **out, ptr data, void (*destroy)(ptr), unsigned refs, unsigned flags) {
    struct object *o;
    BEGIN; NEEDS_CONTEXT;
    if (refs != 1 || flags != 1 || !destroy) return 1;
    o = calloc(1, sizeof *o);
    if (!o) return 2;
    o->data = data; o->destroy = destroy; o->refs = 1;
    live_objects++;
    *out = o;
    return 0;
}
code cuUserObjectRelease(struct object *o, unsigned n) { BEGIN; if (n != 1) return 1; let_go(o); return 0; }
/* Moves the caller's reference; it must be to a graph that is being captured. */
code cuGraphRetainUserObject(struct graph *g, struct object *o, unsigned n, unsigned flags) {
    int i, found = 0;
    BEGIN; NEEDS_CONTEXT;
    for (i = 0; i < STREAM_COUNT; i++) found |= streams[i].graph == g;
    if (!found) die(__func__, "the graph is not being captured");
    if (n != 1 || flags != 1 || g->objects == OBJECT_COUNT) return 1;
    g->object[g->objects++] = o;
    return 0;
}
#endif
static code info(struct stream *s, unsigned *state, uint64_t *id, struct graph **g) {
    *state = !s || !s->graph ? 0 : s->graph->valid ? 1 : 2;
    /* What is not active is not told. */
    if (*state == 1) { *id = s->graph->id; *g = s->graph; }
    else { *id = 0xdead; *g = (struct graph *)8; }
    return 0;
}
code cuStreamGetCaptureInfo_v2(uintptr_t s, unsigned *state, uint64_t *id, struct graph **g, ptr deps, ptr count) {
    BEGIN; NEEDS_STREAM(s);
    return deps || count ? 1 : info(CREATED(s), state, id, g);
}
#ifndef WITHOUT_NEWER
code cuStreamGetCaptureInfo_v3(uintptr_t s, unsigned *state, uint64_t *id, struct graph **g, ptr deps, ptr edges, ptr count) {
    BEGIN; NEEDS_STREAM(s);
    return deps || edges || count ? 1 : info(CREATED(s), state, id, g);
}
#endif
code cuGraphDestroy(struct graph *g) { BEGIN; drop_graph(g); return 0; }
code cuGraphInstantiateWithFlags(struct exec **out, struct graph *g, uint64_t flags) {
    struct exec *e;
    BEGIN; NEEDS_CONTEXT; NEEDS_RELAXED;
    if (flags) return 1;
    e = calloc(1, sizeof *e);
    if (!e) return 2;
    for (; e->objects < g->objects; e->objects++) (e->object[e->objects] = g->object[e->objects])->refs++;
    live_execs++;
    last_exec = (uintptr_t)e;
    *out = e;
    return 0;
}
code cuGraphExecDestroy(struct exec *e) {
    BEGIN; NEEDS_CONTEXT;
    while (e->objects) let_go(e->object[--e->objects]);
    live_execs--;
    free(e);
    return 0;
}
code cuGraphLaunch(struct exec *e, uintptr_t s) {
    BEGIN; NEEDS_STREAM(s); NEEDS_CONTEXT;
    if ((uintptr_t)e != last_exec) die(__func__, "not the latest graph");
    if (CREATED(s) && CREATED(s)->graph) return node(CREATED(s)->graph, 4);
    launches++;
    return 0;
}
code cuGraphGetNodes(struct graph *g, ptr *nodes, size_t *count) {
    size_t i, n = (size_t)g->nodes;
    BEGIN;
    if (nodes) {
        if (*count < n) n = *count;
        for (i = 0; i < n; i++) nodes[i] = &g->types[i];
    }
    *count = n;
    return 0;
}
code cuGraphNodeGetType(unsigned *n, unsigned *type) { BEGIN; *type = *n; return 0; }
#endif
