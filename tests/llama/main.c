/*
 * main.c - llama-kv: a consumer of the ABI kv_store_v1, and of the cache of
 * kv_cache.h, that is a real inference engine. It saves the KV state of a llama.cpp prompt, and restores it in
 * another process so that the logits are the same, bit for bit.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "command.h"
#include "report.h"
#include "state.h"

static const char HELP[] =
    "Keep the KV state of a llama.cpp prompt in a store of the ABI kv_store_v1.\n"
    "\n"
    "  llama-kv save    --lib LIB --uri URI --model GGUF --name NAME --tokens N\n"
    "                   [--logits FILE] [--threads T] [--chunk-tokens C] [--verbose]\n"
    "  llama-kv restore --lib LIB --uri URI --model GGUF --name NAME --tokens N\n"
    "                   [--logits FILE] [--threads T] [--compare-prefill] [--verbose]\n"
    "  llama-kv chunks  --lib LIB --uri URI --name NAME\n"
    "  llama-kv bench   --lib LIB --uri URI --model GGUF --name NAME --tokens N\n"
    "                   --file FILE --chunks DIR [--rounds R] [--sync]\n"
    "                   [--rows NAME] [--row-size NAME] [--llama-lib LIB]\n"
    "  llama-kv cached  --lib LIB --config TOML --model GGUF --tokens N\n"
    "                   [--logits FILE] [--threads T] [--compare-prefill] [--verbose]\n"
    "\n"
    "save     Decode a fixed prompt of N tokens but for its last one, save the state\n"
    "         under NAME, then decode the last token and write its logits to FILE.\n"
    "restore  Load that state, decode the last token, compare its logits with FILE.\n"
    "chunks   List the chunks of NAME: hash and length in bytes, a line each.\n"
    "bench    Save and restore R times, in turns with llama.cpp's own state FILE; print\n"
    "         a row of JSON for each of the two. DIR is where a store on local files\n"
    "         keeps its chunks: it is emptied before each save. --llama-lib: by the\n"
    "         functions of libkv_store_llama.so.\n"
    "cached   With the token-exact cache of kv_cache.h: begin with the longest state\n"
    "         that it has, prefill what is new, save that, decode the last token.\n"
    "         Its logits are compared with FILE, or written there if it is new.\n"
    "\n"
    "  --lib LIB            a shared library with kv_store_get_vtable; for cached,\n"
    "                       libkv_cache.so\n"
    "  --config TOML        the config file of the cache\n"
    "  --uri URI            the store to open, as that library takes it\n"
    "  --model GGUF         a model file\n"
    "  --name NAME          the manifest's name in the store\n"
    "  --tokens N           length of the prompt, from 2; a longer prompt begins with\n"
    "                       the shorter ones\n"
    "  --logits FILE        raw float32 numbers, one for each token of the vocabulary\n"
    "  --threads T          threads of llama.cpp (1)\n"
    "  --chunk-tokens C     tokens in a chunk, 1 to 4096 (64)\n"
    "  --compare-prefill    then decode the whole prompt as well, to compare times\n"
    "  --verbose            show llama.cpp's own messages\n"
    "\n"
    "save, restore and cached print one JSON object. Errors are one line on standard error.\n"
    "Exit codes: 0 all is well; 1 the store failed, or what it gave back is missing,\n"
    "corrupt or different; 2 wrong usage, or the library, the store or the model\n"
    "cannot be used.\n";

struct result result_none(void)
{
    return (struct result){
        .abi_version = UNKNOWN, .state_tokens = UNKNOWN, .state_bytes = UNKNOWN,
        .chunk_tokens = UNKNOWN, .chunks = UNKNOWN, .chunks_new = UNKNOWN,
        .chunks_known = UNKNOWN, .bytes_new = UNKNOWN, .inline_bytes = UNKNOWN,
        .manifest_bytes = UNKNOWN, .load_ms = UNKNOWN, .open_ms = UNKNOWN,
        .prefill_ms = UNKNOWN, .get_state_ms = UNKNOWN, .save_ms = UNKNOWN,
        .restore_ms = UNKNOWN, .set_state_ms = UNKNOWN, .decode_ms = UNKNOWN,
        .matched_tokens = UNKNOWN, .prefilled_tokens = UNKNOWN, .rows_saved = UNKNOWN,
        .full_prefill_ms = UNKNOWN};
}

static void json_text(const char *key, const char *value)
{
    printf(", \"%s\": ", key);
    if (!value) {
        fputs("null", stdout);
        return;
    }
    putchar('"');
    for (const unsigned char *c = (const unsigned char *)value; *c; c++) {
        if (*c == '"' || *c == '\\') {
            printf("\\%c", *c);
        } else if (*c < 0x20) {
            printf("\\u%04x", *c);
        } else {
            putchar(*c);
        }
    }
    putchar('"');
}

static void json_count(const char *key, int64_t value)
{
    if (value == UNKNOWN) {
        printf(", \"%s\": null", key);
    } else {
        printf(", \"%s\": %lld", key, (long long)value);
    }
}

static void json_ms(const char *key, double value)
{
    if (value < 0) {
        printf(", \"%s\": null", key);
    } else {
        printf(", \"%s\": %.3f", key, value);
    }
}

static void json_answer(const char *key, enum answer value)
{
    static const char *const texts[] = {"null", "false", "true"};
    printf(", \"%s\": %s", key, texts[value]);
}

static void print_result(const char *command, const struct options *o,
                         const struct result *r)
{
    printf("{\"command\": \"%s\"", command);
    json_text("uri", o->uri);
    json_text("name", o->name);
    json_count("abi_version", r->abi_version);
    json_count("threads", o->threads);
    json_count("tokens", o->tokens);
    json_count("state_tokens", r->state_tokens);
    json_count("state_bytes", r->state_bytes);
    json_text("layout", r->layout);
    json_text("layout_note", r->layout_note);
    json_count("chunk_tokens", r->chunk_tokens);
    json_count("chunks", r->chunks);
    json_count("chunks_new", r->chunks_new);
    json_count("chunks_known", r->chunks_known);
    json_count("bytes_new", r->bytes_new);
    json_count("inline_bytes", r->inline_bytes);
    json_count("manifest_bytes", r->manifest_bytes);
    json_answer("prefetched", r->prefetched);
    json_text("hit", r->hit);
    json_count("matched_tokens", r->matched_tokens);
    json_count("prefilled_tokens", r->prefilled_tokens);
    json_count("rows_saved", r->rows_saved);
    json_ms("load_ms", r->load_ms);
    json_ms("open_ms", r->open_ms);
    json_ms("prefill_ms", r->prefill_ms);
    json_ms("full_prefill_ms", r->full_prefill_ms);
    json_ms("get_state_ms", r->get_state_ms);
    json_ms("save_ms", r->save_ms);
    json_ms("restore_ms", r->restore_ms);
    json_ms("set_state_ms", r->set_state_ms);
    json_ms("decode_ms", r->decode_ms);
    json_answer("logits_identical", r->logits_identical);
    json_answer("prefill_logits_identical", r->prefill_logits_identical);
    puts("}");
}

static int parse_number(const char *option, const char *text, uint32_t min,
                        uint32_t max, uint32_t *out)
{
    char *end;
    errno = 0;
    unsigned long long n = strtoull(text, &end, 10);
    if (errno || *text < '0' || *text > '9' || *end || n < min || n > max) {
        return report(KV_CANNOT_RUN, "--%s takes a number from %u to %u, not '%s'", option, min,
                      max, text);
    }
    *out = (uint32_t)n;
    return KV_OK;
}

enum { OPT_LIB = 1, OPT_URI, OPT_NAME, OPT_CONFIG, OPT_MODEL, OPT_LOGITS, OPT_TOKENS,
       OPT_CHUNK_TOKENS, OPT_THREADS, OPT_COMPARE_PREFILL, OPT_VERBOSE, OPT_FILE,
       OPT_CHUNKS, OPT_ROUNDS, OPT_SYNC, OPT_ROWS, OPT_ROW_SIZE, OPT_LLAMA_LIB };

static const struct option OPTIONS[] = {
    {"lib", required_argument, NULL, OPT_LIB},
    {"uri", required_argument, NULL, OPT_URI},
    {"name", required_argument, NULL, OPT_NAME},
    {"config", required_argument, NULL, OPT_CONFIG},
    {"model", required_argument, NULL, OPT_MODEL},
    {"logits", required_argument, NULL, OPT_LOGITS},
    {"tokens", required_argument, NULL, OPT_TOKENS},
    {"chunk-tokens", required_argument, NULL, OPT_CHUNK_TOKENS},
    {"threads", required_argument, NULL, OPT_THREADS},
    {"compare-prefill", no_argument, NULL, OPT_COMPARE_PREFILL},
    {"verbose", no_argument, NULL, OPT_VERBOSE},
    {"file", required_argument, NULL, OPT_FILE},
    {"chunks", required_argument, NULL, OPT_CHUNKS},
    {"rounds", required_argument, NULL, OPT_ROUNDS},
    {"sync", no_argument, NULL, OPT_SYNC},
    {"rows", required_argument, NULL, OPT_ROWS},
    {"row-size", required_argument, NULL, OPT_ROW_SIZE},
    {"llama-lib", required_argument, NULL, OPT_LLAMA_LIB},
    {NULL, 0, NULL, 0}};

static int parse_options(int argc, char **argv, struct options *o)
{
    int option, code = KV_OK;
    uint32_t threads = 1;
    while (code == KV_OK && (option = getopt_long(argc, argv, ":", OPTIONS, NULL)) != -1) {
        switch (option) {
        case OPT_LIB: o->lib = optarg; break;
        case OPT_URI: o->uri = optarg; break;
        case OPT_NAME: o->name = optarg; break;
        case OPT_CONFIG: o->config = optarg; break;
        case OPT_MODEL: o->model = optarg; break;
        case OPT_LOGITS: o->logits = optarg; break;
        case OPT_COMPARE_PREFILL: o->compare_prefill = true; break;
        case OPT_VERBOSE: o->verbose = true; break;
        case OPT_FILE: o->file = optarg; break;
        case OPT_CHUNKS: o->chunks = optarg; break;
        case OPT_SYNC: o->sync = true; break;
        case OPT_ROWS: o->rows = optarg; break;
        case OPT_ROW_SIZE: o->row_size = optarg; break;
        case OPT_LLAMA_LIB: o->llama_lib = optarg; break;
        case OPT_ROUNDS:
            code = parse_number("rounds", optarg, 1, 1000, &o->rounds);
            break;
        case OPT_TOKENS:
            code = parse_number("tokens", optarg, 2, 1u << 20, &o->tokens);
            break;
        case OPT_CHUNK_TOKENS:
            code = parse_number("chunk-tokens", optarg, 1, MAX_CHUNK_TOKENS, &o->chunk_tokens);
            break;
        case OPT_THREADS:
            code = parse_number("threads", optarg, 1, 512, &threads);
            break;
        case ':':
            code = report(KV_CANNOT_RUN, "%s needs a value; see --help", argv[optind - 1]);
            break;
        default:
            code = report(KV_CANNOT_RUN, "%s is not an option; see --help", argv[optind - 1]);
            break;
        }
    }
    if (code == KV_OK && optind < argc) {
        code = report(KV_CANNOT_RUN, "'%s' is not an option; see --help", argv[optind]);
    }
    o->threads = (int)threads;
    return code;
}

/* Whether the command has the options that it needs; else says which. */
static int check_options(const char *command, const struct options *o)
{
    bool chunks = strcmp(command, "chunks") == 0;
    bool cached = strcmp(command, "cached") == 0;
    bool model = chunks || (o->model && o->tokens);
    bool place = cached ? o->config != NULL : o->uri && o->name;
    if (o->lib && model && place) {
        return KV_OK;
    }
    return report(KV_CANNOT_RUN, "%s needs %s; see --help", command,
                  chunks   ? "--lib, --uri and --name"
                  : cached ? "--lib, --config, --model and --tokens"
                           : "--lib, --uri, --name, --model and --tokens");
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0) {
            fputs(HELP, stdout);
            return KV_OK;
        }
    }
    const char *command = argc > 1 ? argv[1] : "";
    bool chunks = strcmp(command, "chunks") == 0;
    int (*run)(const struct options *, struct result *) =
        strcmp(command, "save") == 0      ? command_save
        : strcmp(command, "restore") == 0 ? command_restore
        : strcmp(command, "cached") == 0  ? command_cached
                                          : NULL;
    bool bench = strcmp(command, "bench") == 0;
    if (!chunks && !bench && !run) {
        return report(KV_CANNOT_RUN, "the first word must be save, restore, chunks, cached or bench; see "
                      "--help");
    }
    struct options o = {.chunk_tokens = 64, .rounds = 9, .rows = "llama", .row_size = "state"};
    /* getopt skips the first word, which is the command now. */
    int code = parse_options(argc - 1, argv + 1, &o);
    if (code == KV_OK) {
        code = check_options(command, &o);
    }
    if (code != KV_OK) {
        return code;
    }
    if (chunks) {
        return command_chunks(&o);
    }
    if (bench) {
        o.trusting = o.no_hint = true;
        return o.file && o.chunks ? command_bench(&o)
                                  : report(KV_CANNOT_RUN, "bench needs --file and --chunks; see "
                                           "--help");
    }
    struct result r = result_none();
    code = run(&o, &r);
    print_result(command, &o, &r);
    return code;
}
