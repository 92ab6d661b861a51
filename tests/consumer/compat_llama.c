/*
 * The part of compat_data.h that is of kv_store_llama.h: states of sequences, of a model that is named and of one that is known by its
 * GGUF file. libkv_store_llama.so is the real one; in the place of libllama this program has the functions of llama.h that it calls, over
 * states that are made from seeds, in the layout of llama.cpp.
 */
#include "compat_data.h"

#include <stdbool.h>
#include <sys/mman.h>

#include "kv_store_llama.h"

enum { LAYERS = 2, ROW = 48, HEADER = 12, VERSION = 3, MOST = 200000 };

/* What a sequence has: V by tokens, V by columns, or a layout that nobody knows. */
enum kind { BY_TOKENS, BY_COLUMNS, UNKNOWN };

/* The context is the one sequence that it has; the model is the context. */
struct llama_context {
    uint8_t state[MOST];
    size_t len;
};

/* The functions of llama.h, which the library finds in the program. */
size_t llama_state_seq_save_file(struct llama_context *, const char *, int32_t, const int32_t *, size_t);
size_t llama_state_seq_load_file(struct llama_context *, const char *, int32_t, int32_t *, size_t, size_t *);
size_t llama_state_seq_get_size(struct llama_context *, int32_t);
size_t llama_state_seq_get_data(struct llama_context *, uint8_t *, size_t, int32_t);
size_t llama_state_seq_set_data(struct llama_context *, const uint8_t *, size_t, int32_t);
void *llama_get_memory(struct llama_context *);
bool llama_memory_seq_rm(void *, int32_t, int32_t, int32_t);
const void *llama_get_model(const struct llama_context *);
uint64_t llama_model_n_params(const void *);
int32_t llama_model_n_layer(const void *);
int32_t llama_model_n_embd(const void *);
int32_t llama_model_n_head_kv(const void *);

size_t llama_state_seq_save_file(struct llama_context *context, const char *path, int32_t sequence, const int32_t *tokens, size_t n)
{
    (void)context, (void)path, (void)sequence, (void)tokens, (void)n;
    return 0;
}

/* Answers the number of tokens of a file of its version, as libllama does where there is no room for them. */
size_t llama_state_seq_load_file(struct llama_context *context, const char *path, int32_t sequence, int32_t *tokens, size_t room, size_t *n)
{
    uint32_t header[3] = {0};
    FILE *file = fopen(path, "rb");
    size_t read = file ? fread(header, 1, sizeof header, file) : 0;
    if (file)
        fclose(file);
    (void)context, (void)sequence, (void)tokens, (void)room;
    if (read != HEADER || header[1] != VERSION)
        return 0;
    *n = header[2];
    return HEADER;
}

size_t llama_state_seq_get_size(struct llama_context *context, int32_t sequence)
{
    (void)sequence;
    return context->len;
}

size_t llama_state_seq_get_data(struct llama_context *context, uint8_t *to, size_t size, int32_t sequence)
{
    (void)sequence;
    CHECK(size >= context->len);
    memcpy(to, context->state, context->len);
    return context->len;
}

size_t llama_state_seq_set_data(struct llama_context *context, const uint8_t *from, size_t size, int32_t sequence)
{
    (void)sequence;
    CHECK(size <= MOST);
    memcpy(context->state, from, size);
    return context->len = size;
}

void *llama_get_memory(struct llama_context *context)
{
    return context;
}

bool llama_memory_seq_rm(void *memory, int32_t sequence, int32_t from, int32_t to)
{
    (void)memory, (void)sequence, (void)from, (void)to;
    return true;
}

const void *llama_get_model(const struct llama_context *context)
{
    return context;
}

uint64_t llama_model_n_params(const void *model)
{
    (void)model;
    return MODEL_ELEMENTS;
}

int32_t llama_model_n_layer(const void *model)
{
    (void)model;
    return LAYERS;
}

int32_t llama_model_n_embd(const void *model)
{
    (void)model;
    return 64;
}

int32_t llama_model_n_head_kv(const void *model)
{
    (void)model;
    return 2;
}

static void add(struct llama_context *to, const void *bytes, size_t len)
{
    CHECK(to->len + len <= MOST);
    memcpy(to->state + to->len, bytes, len);
    to->len += len;
}

static void number(struct llama_context *to, uint64_t value, size_t len)
{
    add(to, &value, len);
}

/* The rows of a tensor: those of the first tokens are the same in a longer sequence. */
static void rows(struct llama_context *to, uint64_t seed, size_t len)
{
    uint8_t *bytes = bytes_of(seed, len);
    add(to, bytes, len);
    free(bytes);
}

/* The state of so many tokens, as bindings/llama/src/layout.rs describes it. */
static void make(struct llama_context *to, enum kind kind, uint32_t tokens)
{
    to->len = 0;
    number(to, 0x67677371, 4), number(to, 0, 4);
    if (kind == UNKNOWN) {
        rows(to, 77, 150000);
        return;
    }
    number(to, 1, 4), number(to, tokens, 4);
    for (uint32_t i = 0; i < tokens; i++)
        number(to, i, 4), number(to, 1, 4), number(to, 0, 4);
    number(to, kind == BY_COLUMNS, 4), number(to, LAYERS, 4);
    for (uint64_t layer = 0; layer < LAYERS; layer++) {
        number(to, 1, 4), number(to, ROW, 8);
        rows(to, 600 + layer, (size_t)tokens * ROW);
    }
    for (uint64_t layer = 0; layer < LAYERS; layer++) {
        number(to, 1, 4);
        if (kind == BY_COLUMNS)
            number(to, 2, 4), number(to, ROW / 2, 4);
        else
            number(to, ROW, 8);
        rows(to, 700 + layer, (size_t)tokens * ROW);
    }
}

/* The model's file is mapped, as libllama has it. */
static void map_model(void)
{
    static const char path[] = "compat-model.gguf";
    write_model(path);
    FILE *file = fopen(path, "rb");
    CHECK(file && fseek(file, 0, SEEK_END) == 0);
    CHECK(mmap(NULL, (size_t)ftell(file), PROT_READ, MAP_PRIVATE, fileno(file), 0) != MAP_FAILED);
    fclose(file);
}

#define FUNCTION(name)                      \
    __typeof__(&kv_store_llama_##name) name; \
    *(void **)&name = function_of("KV_STORE_LLAMA_LIBRARY", "kv_store_llama_" #name)

int main(int argc, char **argv)
{
    /* The second goes on from the first, and shares its chunks. */
    static const struct {
        const char *name;
        enum kind kind;
        uint32_t tokens;
    } states[] = {{"conversation-1", BY_TOKENS, 150}, {"conversation-2", BY_TOKENS, 330}, {"columns \xc3\xa4/%", BY_COLUMNS, 64}, {"unknown", UNKNOWN, 3}};
    static struct llama_context expected, context;
    int writing = writes(argc, argv);
    FUNCTION(open);
    FUNCTION(close);
    FUNCTION(save);
    FUNCTION(load);
    FUNCTION(last_error);
    map_model();
    for (int named = 0; named < 2; named++) {
        kv_store_llama *store = open(argv[3], named ? "a model, by its name" : NULL);
        if (!store)
            fail(__FILE__, __LINE__, last_error());
        for (size_t i = 0; i < sizeof states / sizeof *states; i++) {
            int32_t tokens[400], got[400];
            size_t n = states[i].tokens, n_got = 0;
            for (size_t t = 0; t < n; t++)
                tokens[t] = (int32_t)(t * 7919 % 32000);
            make(&expected, states[i].kind, states[i].tokens);
            size_t file_bytes = HEADER + n * sizeof *tokens + expected.len - 8, moved;
            if (writing)
                moved = save(store, &expected, states[i].name, 0, tokens, n);
            else
                moved = load(store, &context, states[i].name, 0, got, 400, &n_got);
            if (moved != file_bytes)
                fail(__FILE__, __LINE__, last_error());
            CHECK(writing || (n_got == n && !memcmp(got, tokens, n * sizeof *tokens)));
            CHECK(writing || (context.len == expected.len && !memcmp(context.state, expected.state, expected.len)));
        }
        close(store);
    }
    return 0;
}
