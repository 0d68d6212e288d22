"""Writes the hand-made part of the corpus: small good files of every kind, and hostile ones. What a fuzzer found is named by its hash.

    python3 tests/fuzz/make_seeds.py
"""
import json
import os
import struct

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "corpus")
DEEP = "[" * 100_000


def keep(target, name, content):
    os.makedirs(os.path.join(HERE, target), exist_ok=True)
    with open(os.path.join(HERE, target, name), "wb") as out:
        out.write(content if isinstance(content, bytes) else content.encode())


# --- safetensors ------------------------------------------------------------------------------------------------------------------------
def safetensors(header, data=b"", claim=None):
    text = header if isinstance(header, bytes) else (header if isinstance(header, str) else json.dumps(header)).encode()
    return struct.pack("<Q", len(text) if claim is None else claim) + text + data


def entry(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


for name, content in {
    "good": safetensors({"__metadata__": {"format": "pt"}, "a": entry("F32", [2, 2], 0, 16), "b": entry("BF16", [3], 16, 22), "s": entry("I64", [], 22, 30)}, bytes(range(30))),
    "every_type": safetensors({t: entry(t, [1], o, o + n) for t, o, n in (("BOOL", 0, 1), ("U8", 1, 1), ("I8", 2, 1), ("F8_E4M3", 3, 1), ("F8_E5M2", 4, 1), ("F8_E8M0", 5, 1), ("I16", 6, 2), ("U16", 8, 2), ("F16", 10, 2), ("BF16", 12, 2), ("I32", 14, 4), ("U32", 18, 4), ("F32", 22, 4), ("I64", 26, 8), ("U64", 34, 8), ("F64", 42, 8))}, bytes(50)),
    "empty_header": safetensors("{}"),
    "empty_file": b"",
    "zero_elements": safetensors({"a": entry("F32", [0, 7], 0, 0)}),
    "header_beyond_file": safetensors("{}", claim=1 << 40),
    "header_of_all_ones": safetensors("{}", claim=(1 << 64) - 1),
    "header_wraps": safetensors("{}", claim=(1 << 64) - 8),
    "overlap": safetensors({"a": entry("U8", [4], 0, 4), "b": entry("U8", [4], 2, 6)}, bytes(6)),
    "gap": safetensors({"a": entry("U8", [1], 0, 1), "b": entry("U8", [1], 3, 4)}, bytes(4)),
    "hidden_bytes": safetensors({"a": entry("U8", [1], 0, 1)}, bytes(9)),
    "wrong_dtype_x_shape": safetensors({"a": entry("F64", [4], 0, 16)}, bytes(16)),
    "shape_overflows": safetensors({"a": entry("F32", [1 << 62, 1 << 62, 4], 0, 0)}),
    "shape_wraps_to_size": safetensors({"a": entry("U8", [1 << 32, 1 << 32], 0, 0)}),
    "shape_beyond_63_bits": safetensors('{"a":{"dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,0]}}'),
    "negative": safetensors('{"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,0]}}'),
    "offsets_reversed": safetensors({"a": entry("U8", [4], 4, 0)}, bytes(4)),
    "duplicate_name": safetensors('{"a":{"dtype":"U8","shape":[],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[],"data_offsets":[1,2]}}', bytes(2)),
    "duplicate_field": safetensors('{"a":{"dtype":"U8","dtype":"F32","shape":[],"data_offsets":[0,1]}}', bytes(1)),
    "unknown_type": safetensors({"a": entry("F31", [1], 0, 4)}, bytes(4)),
    "unknown_field": safetensors('{"a":{"dtype":"U8","shape":[],"data_offsets":[0,1],"x":[[[]]]}}', bytes(1)),
    "many_dimensions": safetensors({"a": entry("U8", [1] * 40, 0, 1)}, bytes(1)),
    "three_offsets": safetensors('{"a":{"dtype":"U8","shape":[],"data_offsets":[0,1,1]}}', bytes(1)),
    "nul_in_name": safetensors('{"a\\u0000b\\n":{"dtype":"U8","shape":[],"data_offsets":[0,1]}}', bytes(1)),
    "nul_bytes": safetensors(b"{\0\0}"),
    "not_utf8": safetensors(b'{"a\xff\xfe":{"dtype":"U8","shape":[],"data_offsets":[0,1]}}', bytes(1)),
    "lone_surrogate": safetensors('{"\\ud800":{"dtype":"U8","shape":[],"data_offsets":[0,1]}}', bytes(1)),
    "deep": safetensors(DEEP),
    "deep_field": safetensors('{"a":{"dtype":' + "[" * 1000),
    "metadata_nested": safetensors('{"__metadata__":{"a":{"b":"c"}}}'),
    "metadata_number": safetensors('{"__metadata__":{"a":1}}'),
    "long_name": safetensors({"n" * 5000: entry("F31", [1], 0, 4)}, bytes(4)),
    "huge_number": safetensors('{"a":{"dtype":"U8","shape":[1e999],"data_offsets":[0,99999999999999999999999999]}}'),
}.items():
    keep("safetensors", name, content)

index = {"metadata": {"total_size": 8}, "weight_map": {"a": "one.safetensors", "b": "one.safetensors"}}
for name, content in {
    "good": json.dumps(index),
    "no_map": "{}",
    "empty_map": '{"weight_map":{}}',
    "missing_tensor": '{"weight_map":{"a":"one.safetensors"}}',
    "extra_tensor": '{"weight_map":{"a":"one.safetensors","b":"one.safetensors","c":"one.safetensors"}}',
    "missing_shard": '{"weight_map":{"a":"two.safetensors"}}',
    "outside": '{"weight_map":{"a":"../shards/one.safetensors"}}',
    "absolute": '{"weight_map":{"a":"/etc/passwd"}}',
    "dotdot": '{"weight_map":{"a":".."}}',
    "itself": '{"weight_map":{"a":"model.safetensors.index.json"}}',
    "folder": '{"weight_map":{"a":"."}}',
    "nul_in_file": '{"weight_map":{"a":"one.safetensors\\u0000x"}}',
    "number": '{"weight_map":{"a":1}}',
    "list": '{"weight_map":[]}',
    "not_utf8": b'{"weight_map":{"\xff":"one.safetensors"}}',
    "deep": DEEP,
    "long_file": '{"weight_map":{"a":"' + "x" * 5000 + '"}}',
    "truncated": json.dumps(index)[:40],
}.items():
    keep("safetensors_index", name, content)


# --- GGUF -------------------------------------------------------------------------------------------------------------------------------
def text(s):
    s = s if isinstance(s, bytes) else s.encode()
    return struct.pack("<Q", len(s)) + s


U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
FIXED = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "?", U64: "Q", I64: "q", F64: "d"}


def value(kind, v):
    if kind == STRING:
        return text(v)
    if kind == ARRAY:
        of, items = v
        return struct.pack("<IQ", of, len(items)) + b"".join(value(of, i) for i in items)
    return struct.pack("<" + FIXED[kind], v)


def pair(key, kind, v):
    return text(key) + struct.pack("<I", kind) + value(kind, v)


def tensor(name, dims, kind, offset):
    return text(name) + struct.pack("<I", len(dims)) + b"".join(struct.pack("<Q", d) for d in dims) + struct.pack("<IQ", kind, offset)


def gguf(pairs=(), tensors=(), data=b"", version=3, counts=None, align=32):
    n, m = counts or (len(tensors), len(pairs))
    head = b"GGUF" + struct.pack("<IQQ", version, n, m) + b"".join(pairs) + b"".join(tensors)
    return head + bytes(-len(head) % align) + data


model = [pair("general.architecture", STRING, "qwen3"), pair("qwen3.embedding_length", U32, 16), pair("qwen3.block_count", U32, 1),
         pair("qwen3.attention.head_count", U32, 1), pair("qwen3.feed_forward_length", U32, 16), pair("qwen3.attention.key_length", U32, 16)]
words = ["<s>", "</s>", "a", "b", "ab", "\u0120"]
vocabulary = [pair("tokenizer.ggml.model", STRING, "gpt2"), pair("tokenizer.ggml.pre", STRING, "qwen2"), pair("tokenizer.ggml.tokens", ARRAY, (STRING, words)),
              pair("tokenizer.ggml.token_type", ARRAY, (I32, [3, 3, 1, 1, 1, 1])), pair("tokenizer.ggml.merges", ARRAY, (STRING, ["a b"])),
              pair("tokenizer.ggml.bos_token_id", U32, 0), pair("tokenizer.ggml.eos_token_id", U32, 1)]
embedding = tensor("token_embd.weight", [16, 6], 0, 0)
for name, content in {
    "good": gguf(model + vocabulary, [embedding], bytes(384)),
    "every_kind": gguf([pair(f"k{k}", k, 1) for k in FIXED] + [pair(f"a{k}", ARRAY, (k, [0, 1])) for k in FIXED] + [pair("s", STRING, "x")]),
    "blocks": gguf([], [tensor("q8", [32], 8, 0), tensor("q4_0", [32], 2, 64), tensor("q4_1", [32], 3, 96), tensor("q4_k", [256], 12, 128), tensor("q6_k", [256], 14, 288)], bytes(range(256)) * 2),
    "unknown_storage": gguf([], [tensor("x", [7, 9], 99, 0)], bytes(32)),
    "unknown_storage_huge": gguf([], [tensor("x", [1 << 62, 1 << 62], 99, 0)], bytes(32)),
    "empty_file": b"",
    "magic_alone": b"GGUF",
    "version_9": gguf(version=9),
    "big_endian": b"GGUF" + struct.pack(">IQQ", 3, 0, 0),
    "huge_counts": gguf(counts=((1 << 64) - 1, (1 << 64) - 1)),
    "huge_tensor_count": gguf(counts=(1 << 60, 0)),
    "string_beyond_file": b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1 << 63) + b"abc",
    "array_beyond_file": gguf([text("a") + struct.pack("<IIQ", ARRAY, U8, 1 << 62)]),
    "array_of_strings_beyond_file": gguf([text("a") + struct.pack("<IIQ", ARRAY, STRING, 1 << 61)]),
    "array_of_arrays": gguf([text("a") + struct.pack("<IIQ", ARRAY, ARRAY, 1)]),
    "unknown_kind": gguf([text("a") + struct.pack("<I", 77) + bytes(8)]),
    "duplicate_key": gguf([pair("a", U8, 1), pair("a", U8, 2)]),
    "duplicate_tensor": gguf([], [tensor("a", [1], 0, 0), tensor("a", [1], 0, 32)], bytes(64)),
    "overlap": gguf([], [tensor("a", [16], 0, 0), tensor("b", [16], 0, 32)], bytes(128)),
    "tensor_beyond_file": gguf([], [tensor("a", [1 << 20], 0, 0)], bytes(32)),
    "offset_wraps": gguf([], [tensor("a", [8], 0, (1 << 64) - 32)], bytes(64)),
    "shape_overflows": gguf([], [tensor("a", [1 << 33, 1 << 33], 0, 0)], bytes(64)),
    "shape_negative": gguf([], [tensor("a", [(1 << 64) - 1], 0, 0)], bytes(64)),
    "part_of_a_block": gguf([], [tensor("a", [31], 8, 0)], bytes(64)),
    "many_dimensions": gguf([], [tensor("a", [1] * 9, 0, 0)], bytes(64)),
    "claimed_dimensions": gguf([], [text("a") + struct.pack("<I", 0xFFFFFFFF)], bytes(64)),
    "alignment_0": gguf([pair("general.alignment", U32, 0)]),
    "alignment_3": gguf([pair("general.alignment", U32, 3)]),
    "alignment_huge": gguf([pair("general.alignment", U64, (1 << 64) - 1)]),
    "nul_and_not_utf8": gguf([pair(b"a\0\n\xff", STRING, b"\xff\0"), pair("general.architecture", STRING, b"q\xff\n")], [tensor(b"\xc3(", [1], 0, 0)], bytes(32)),
    "counts_of_layers": gguf(model[:2] + [pair("qwen3.block_count", U64, (1 << 64) - 1)] + model[3:], [embedding], bytes(384)),
    "vocabulary_types_short": gguf(vocabulary[:3] + [pair("tokenizer.ggml.token_type", ARRAY, (I32, [3]))]),
    "merges_of_nothing": gguf(vocabulary[:4] + [pair("tokenizer.ggml.merges", ARRAY, (STRING, ["", " ", "zz zz"]))]),
}.items():
    keep("gguf", name, content)


# --- tokenizers -------------------------------------------------------------------------------------------------------------------------
def tokenizer(**changes):
    base = {"version": "1.0", "added_tokens": [{"id": 6, "content": "<s>", "special": True}], "normalizer": None,
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}, "post_processor": None, "decoder": {"type": "ByteLevel"},
            "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "\u0120": 3, "1": 4, "\u0120a": 5}, "merges": ["a b", ["\u0120", "a"]]}}
    base.update(changes)
    return json.dumps(base)


def model_of(**changes):
    return {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"], **changes}


def split(pattern, behavior="Isolated", invert=False):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": invert}


template = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [6], "tokens": ["<s>"]}}}
for name, content in {
    "good": tokenizer(),
    "template": tokenizer(post_processor=template),
    "normalizers": tokenizer(normalizer={"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "NFKD"}, {"type": "Lowercase"}, {"type": "Replace", "pattern": {"Regex": "b+"}, "content": "a"}, {"type": "Prepend", "prepend": "a"}, {"type": "Strip"}]}),
    "splits": tokenizer(pre_tokenizer={"type": "Sequence", "pretokenizers": [split(r"\p{L}+|\s", b) for b in ("Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous")] + [{"type": "Digits", "individual_digits": True}, {"type": "ByteLevel"}]}),
    "fallback": json.dumps({"added_tokens": [], "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}, "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
                            "model": {"type": "BPE", "unk_token": "<unk>", "byte_fallback": True, "fuse_unk": True, "vocab": {"<unk>": 0, "<0x41>": 1, "a": 2, "\u2581": 3, "<0xFF>": 4}, "merges": []}}),
    "ignore_merges": tokenizer(model=model_of(ignore_merges=True)),
    "slow_pattern": tokenizer(pre_tokenizer={"type": "Sequence", "pretokenizers": [split(r"(\w+)+$"), split(r"(.*)*\d"), {"type": "ByteLevel"}]}),
    "empty_matches": tokenizer(pre_tokenizer={"type": "Sequence", "pretokenizers": [split("x*", "Isolated"), split("(?=a)", "Removed", True), {"type": "ByteLevel"}]}),
    "deep_pattern": tokenizer(pre_tokenizer=split("(" * 5000 + ")" * 5000)),
    "huge_repeat": tokenizer(pre_tokenizer=split("((((a{1,9999}){1,9999}){1,9999}){1,9999})")),
    "lookbehind": tokenizer(pre_tokenizer=split("(?<=a)b|(?<!a)c")),
    "recursion": tokenizer(pre_tokenizer=split("(a(?1)?b)")),
    "not_a_pattern": tokenizer(pre_tokenizer=split("[a")),
    "id_beyond_vocabulary": tokenizer(model=model_of(vocab={"a": 0, "b": 1, "ab": (1 << 24) - 1})),
    "id_negative": tokenizer(model=model_of(vocab={"a": -1})),
    "id_63_bits": tokenizer(model=model_of(vocab={"a": (1 << 63) - 1, "b": (1 << 64) - 1})),
    "id_twice": tokenizer(model=model_of(vocab={"a": 0, "b": 0})),
    "added_beyond_vocabulary": tokenizer(added_tokens=[{"id": (1 << 24) - 1, "content": "x"}]),
    "added_twice": tokenizer(added_tokens=[{"id": 6, "content": "x"}, {"id": 6, "content": "y"}]),
    "added_contains_added": tokenizer(added_tokens=[{"id": 6, "content": "<s>", "lstrip": True}, {"id": 7, "content": "<s><s>", "rstrip": True, "normalized": True}, {"id": 8, "content": "s", "single_word": True}]),
    "template_of_nothing": tokenizer(post_processor={**template, "special_tokens": {"<s>": {"ids": [99]}}}),
    "merge_of_nothing": tokenizer(model=model_of(merges=["a c", "a", "", " "])),
    "merge_to_nothing": tokenizer(model=model_of(vocab={"a": 0, "b": 1}, merges=["a b"])),
    "merge_cycle": tokenizer(model=model_of(vocab={"a": 0, "aa": 1, "aaa": 2, "aaaa": 3}, merges=["a a", "aa a", "a aa", "aa aa", "aaa a"])),
    "nul_in_token": tokenizer(model=model_of(vocab={"a": 0, "b\0": 1, "\n": 2}, merges=[])),
    "not_utf8": tokenizer().encode().replace(b'"ab"', b'"a\xff"'),
    "wordpiece": tokenizer(model={"type": "WordPiece", "vocab": {}}),
    "dropout": tokenizer(model=model_of(dropout=0.5)),
    "unknown_step": tokenizer(normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
    "deep": DEEP,
    "deep_sequence": tokenizer(normalizer=json.loads('{"type":"Sequence","normalizers":[' * 40 + "]}" * 40)),
    "empty": "",
    "null": "null",
    "truncated": tokenizer()[:200],
}.items():
    keep("tokenizer", name, content)
for name, content in {
    "good": "YQ== 0\nYg== 1\nYWI= 2\nIA== 3\n",
    "merges": "#version: 0.2\na b\n\u0120 a\n",
    "vocabulary": json.dumps({"a": 0, "b": 1, "ab": 2}),
    "id_beyond": json.dumps({"a": 0, "b": 1, "ab": 16777215}),
    "rank_beyond": "YQ== 16777215\n",
    "rank_twice": "YQ== 0\nYg== 0\n",
    "rank_negative": "YQ== -1\n",
    "rank_overflows": "YQ== 99999999999999999999\n",
    "rank_missing": "YQ==\n",
    "not_base64": "Y?== 0\n",
    "base64_cut": "Y 0\n",
    "no_newline": "YQ== 0",
    "carriage_return": "YQ== 0\r\nYg== 1\r\n",
    "not_utf8": b"\xff\xfe 0\n",
    "nul": b"\0\0\n\0 0\n",
    "empty": "",
    "long_token": "QUFB" * 800 + " 0\n",
    "one_merge_too_many": "a b c\n",
    "deep": "[" * 1000,
}.items():
    keep("rank_file", name, content)

# --- experiments ------------------------------------------------------------------------------------------------------------------------
small = """[model]
width = 64
layers = 2
heads = 4
kv_heads = 2
ffn_width = 128
context = 128
[tokenizer]
type = "bytes"
format = "plain"
"""
rl = '[[stage]]\ntype = "rl"\nsteps = 10\nsampling.max_new_tokens = 16\n'
quickstart = open(os.path.join(HERE, "../../../configs/quickstart.toml")).read()
for name, content in {
    "quickstart": quickstart,
    "good": small + rl,
    "sft": small + '[data]\npath = "x.jsonl"\n[[stage]]\ntype = "sft"\nsteps = 3\n',
    "export": small + rl + '[[stage]]\ntype = "export"\npath = "e\u0301"\n',
    "sweep": small + rl + "[sweep]\noptim.lr = [1e-3, 1e-4]\nrun.seed = [1, 2, 3]\n",
    "sweep_explodes": small + rl + "[sweep]\n" + "".join(f"{k} = [{','.join(map(str, range(1, 900)))}]\n" for k in ("run.seed", "rollout.workers", "optim.lr")),
    "json": json.dumps({"model": {"width": 64, "layers": 2, "heads": 4, "ffn_width": 128, "context": 128}, "tokenizer": {"type": "bytes", "format": "plain"}, "stage": [{"type": "rl", "steps": 10, "sampling": {"max_new_tokens": 16}}]}),
    "json_numbers": '{"run":{"seed":18446744073709551615},"optim":{"lr":1e999},"model":{"width":-9223372036854775808}}',
    "json_deep": "{\"a\":" + DEEP,
    "unknown_keys": "modle.width = 1\n[stagee]\nx = 1\n",
    "wrong_types": '[model]\nwidth = "a"\nlayers = 1.5\nheads = [1]\ncontext = 1979-05-27\n[run]\nseed = {}\n',
    "numbers": "[run]\nseed = 9223372036854775807\n[optim]\nlr = nan\nweight_decay = inf\nbetas = [-inf, 1e308]\n[model]\nwidth = 9223372036854775807\n",
    "units": '[rollout]\nkv_memory = "99999999999999999999GiB"\ndrain_deadline = "1e400s"\n[control]\nlease = "-5s"\nhead_wait = "9223372036854775807h"\n',
    "duplicate_key": "[run]\nseed = 1\nseed = 2\n",
    "duplicate_table": "[run]\n[run]\n",
    "many_errors": "a = \n" * 30,
    "many_lines": "\n" * 4000 + "a = 1\na = 2\n",
    "deep_array": "a = " + DEEP,
    "deep_inline": "a = " + "{a=" * 1000,
    "deep_key": ".".join("a" * 3000) + " = 1\n",
    "deep_header": "[" + ".".join("a" * 3000) + "]\n",
    "deep_value": "x = { " + ".".join("a" * 3000) + " = 1 }\n",
    "dots_in_strings": 'a = "' + "." * 200 + "\"\nb = '''\n" + "." * 200 + "\n'''\n# " + "." * 200 + "\n",
    "stages_wrong": "stage = 1\n[[stage.x]]\n",
    "stage_without_type": "[[stage]]\nsteps = 1\n",
    "nul": b"a = 1\0\n[run]\0",
    "not_utf8": b"[run]\nname = \"\xff\xfe\"\n",
    "bom": b"\xef\xbb\xbf[run]\nseed = 1\n",
    "control_characters": "[run]\nname = \"\\u0000\\u0007\\n\\u001b\"\n",
    "odd_names": small + rl + '[run]\nname = "../../x"\ndir = ""\n',
    "quoted_keys": '"" = 1\n"a.b"."c d" = 2\n\'stage\'.0.x = 3\n',
    "truncated": quickstart[: len(quickstart) // 2],
    "empty": "",
}.items():
    keep("config", name, content)

# --- JSONL ------------------------------------------------------------------------------------------------------------------------------
for name, content in {
    "text": '{"text":"hello"}\n{"text":"w\u00f6rld"}\n',
    "prompt": '{"prompt":"2+2=","completion":"4"}\n\n{"prompt":"a","completion":""}',
    "messages": json.dumps({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}]}) + "\n",
    "tasks": '{"prompt":"1+1=","answer":2}\n{"prompt":[{"role":"user","content":"x"}],"answer":"y"}\n',
    "too_long": '{"text":"' + "a" * 500 + '"}\n',
    "bad_line": '{"text":"a"}\n{text}\n{"text":"b"}\n',
    "two_values": '{"text":"a"} {"text":"b"}\n',
    "list": "[1,2]\n",
    "mixed": '{"text":"a"}\n{"prompt":"a","completion":"b"}\n',
    "all_kinds": '{"text":"a","prompt":"b","completion":"c","messages":[]}\n',
    "no_field": "{}\n",
    "wrong_types": '{"text":1}\n',
    "null_text": '{"text":null}\n',
    "empty_text": '{"text":""}\n',
    "no_assistant": '{"messages":[{"role":"user","content":"u"}]}\n',
    "no_messages": '{"messages":[]}\n',
    "odd_role": '{"messages":[{"role":"r\\n\\u0000","content":"u"}]}\n',
    "answer_huge": '{"prompt":"a","answer":1e308}\n{"prompt":"a","answer":123456789012345678901234567890}\n',
    "number_overflows": '{"prompt":"a","answer":1e999}\n',
    "control_tokens": '{"prompt":"<|im_start|>","completion":"<|im_end|><|endoftext|>"}\n',
    "nul": b'{"text":"a\0b"}\n\0\n',
    "nul_escaped": '{"text":"\\u0000"}\n',
    "not_utf8": b'{"text":"\xff"}\n',
    "surrogate": '{"text":"\\ud800"}\n',
    "bom": b'\xef\xbb\xbf{"text":"a"}\n',
    "carriage_returns": '{"text":"a"}\r\n\r\n{"text":"b"}\r\n',
    "no_newlines": "\n" * 3000,
    "deep": '{"text":' + DEEP + "\n",
    "empty": "",
}.items():
    keep("jsonl", name, content)

# --- control log, commit, model configuration, frames -----------------------------------------------------------------------------------
counts = {"next_prompt": 10, "pending": [8, 9], "dispatched": 10, "delivered": 8, "in_flight": 2, "duplicates": 0, "late": 0, "retries": 0,
          "cancelled": {r: 0 for r in ("attempts", "stale", "zero_signal", "rollback", "stopped", "finished")}}


def position(epoch, step):
    return {"stage": 0, "stage_step": step, "version": {"epoch": epoch, "step": step}}


records = [{"kind": "term", "term": 1}, {"kind": "wanted", "role": "rollout", "count": 2, "generation": 1}, {"kind": "epoch", "epoch": 0},
           {"kind": "committed", "position": position(0, 0)}, {"kind": "ordered", "epoch": 0, "step": 0, "prompts": [8]},
           {"kind": "agent", "pid": 77, "start_ticks": 5}, {"kind": "tally", "json": "{}"}, {"kind": "ended", "exit": "done"}]
for name, content in {
    "good": "\n".join(map(json.dumps, records)) + "\n",
    "progress": json.dumps({"kind": "progress", "position": position(0, 3), "ledger": counts}) + "\n" + json.dumps(records[4]),
    "term_falls": '{"kind":"term","term":2}\n{"kind":"term","term":1}\n',
    "term_falls_before_others": '{"kind":"term","term":2}\n{"kind":"term","term":1}\n{"kind":"term","term":3}\n',
    "term_of_all_ones": '{"kind":"term","term":18446744073709551615}\n',
    "epoch_falls": '{"kind":"epoch","epoch":3}\n{"kind":"epoch","epoch":1}\n{"kind":"epoch","epoch":4}\n',
    "epoch_too_wide": '{"kind":"epoch","epoch":4294967296}\n{"kind":"term","term":1}\n',
    "negative": '{"kind":"wanted","role":"rollout","count":-1,"generation":-1}\n{"kind":"term","term":1}\n',
    "fractions": '{"kind":"term","term":1.9}\n{"kind":"epoch","epoch":1e300}\n',
    "unknown_kind": '{"kind":"x\\n"}\n{"kind":"term","term":1}\n',
    "unknown_role": '{"kind":"wanted","role":"king","count":1,"generation":1}\n{"kind":"term","term":1}\n',
    "no_kind": "{}\n{}\n",
    "list": "[]\n[]\n",
    "ledger_unbalanced": json.dumps({"kind": "progress", "position": position(0, 3), "ledger": {**counts, "delivered": 1 << 63}}) + "\n{}\n",
    "ledger_descends": json.dumps({"kind": "progress", "position": position(0, 3), "ledger": {**counts, "pending": [9, 8]}}) + "\n{}\n",
    "prompts_twice": json.dumps({"kind": "progress", "position": position(0, 3), "ledger": counts}) + '\n{"kind":"ordered","epoch":0,"step":3,"prompts":[8,8,8,9,77]}\n',
    "deep": DEEP + "\n{}\n",
    "deep_tally": '{"kind":"tally","json":' + "[" * 500 + "]" * 500 + "}\n{}\n",
    "not_utf8": b'{"kind":"tally","json":"\xff"}\n{}\n',
    "nul": b'{"kind":"tally","json":"\0"}\n\0\n',
    "raw_torn": '={"kind":"term","term":1}',
    "raw_wrong_checksum": '=0123456789abcdef {"kind":"term","term":1}\n0123456789abcdef {}\n',
    "raw_short": "=a\nb\n",
    "raw_blank_lines": "=\n\n\n",
    "empty": "",
}.items():
    keep("control_log", name, content)

layout = {"bytes": 128, "payload_begin": 320, "tensors": [{"name": "w", "dtype": "F32", "shape": [2, 2], "offset": 0, "bytes": 16, "xxh3": "0" * 16},
                                                         {"name": "v", "dtype": "BF16", "shape": [], "offset": 64, "bytes": 2, "xxh3": "f" * 16}]}


def commit(state=None, **changes):
    return json.dumps({"format": "troupe-commit-1", "epoch": 1, "step": 2, "term": 3, "stage": 0, "seed": 7, "run_id": "r", "config_digest": "c", "model_digest": "m",
                       "optimizer": {"t": 2}, "schedule": None, "data_cursor": [1], "extra": {}, "blobs": ["ledger"],
                       "files": [{"name": "state.safetensors", "bytes": 448, "xxh3": "1" * 16}, {"name": "ledger.blob", "bytes": 2, "xxh3": "2" * 16}],
                       "state": {**layout, **(state or {})}, **changes})


def one(**changes):
    return {"tensors": [{**layout["tensors"][0], **changes}]}


for name, content in {
    "good": commit(),
    "layout": json.dumps(layout),
    "ledger": json.dumps(counts),
    "ledger_wraps": json.dumps({**counts, "dispatched": 9, "delivered": (1 << 64) - 1, "in_flight": 10, "next_prompt": 1 << 63, "pending": list(range(10))}),
    "overlap": commit({"tensors": [layout["tensors"][0], {**layout["tensors"][1], "offset": 0}]}),
    "unaligned": commit(one(offset=8)),
    "beyond_region": commit(one(offset=1 << 62)),
    "wrong_size": commit(one(bytes=15)),
    "shape_overflows": commit(one(shape=[1 << 61, 1 << 61])),
    "shape_negative": commit(one(shape=[-2])),
    "shape_huge": commit(one(shape=[(1 << 64) - 1])),
    "no_checksum": commit({"tensors": [{k: v for k, v in layout["tensors"][0].items() if k != "xxh3"}]}),
    "bad_checksum": commit(one(xxh3="-000000000000001")),
    "duplicate_name": commit({"tensors": [layout["tensors"][0], {**layout["tensors"][0], "offset": 64}]}),
    "reserved_name": commit(one(name="__metadata__")),
    "name_not_ascii": commit(one(name="w\u00e9\n\0")),
    "unknown_type": commit(one(dtype="F31")),
    "region_huge": commit({"bytes": 1 << 62}),
    "payload_beyond": commit({"payload_begin": (1 << 64) - 1}),
    "files_missing": commit(files=[]),
    "file_elsewhere": commit(files=[{"name": "../../x", "bytes": 448, "xxh3": "1" * 16}]),
    "blob_elsewhere": commit(blobs=["../x"]),
    "blob_twice": commit(blobs=["a", "a"]),
    "epoch_too_wide": commit(epoch=1 << 32),
    "other_format": commit(format="troupe-commit-2\n"),
    "optimizer_odd": commit(optimizer=[1e308, -0.0, 1e-320, 18446744073709551615, "\u2028\ud7ff"]),
    "deep": DEEP,
    "deep_part": commit(extra=json.loads("[" * 60 + "]" * 60)),
    "deep_raw": "={\"extra\":" + DEEP + "]" * 100_000 + "}",
    "raw": "=" + commit(),
    "not_utf8": commit().encode().replace(b'"r"', b'"\xff"'),
    "list": "[]",
    "empty": "",
}.items():
    keep("commit", name, content)

golden = os.path.join(HERE, "../../golden/model")
qwen = json.load(open(os.path.join(golden, "qwen3/yarn_untied/config.json")))
llama = json.load(open(os.path.join(golden, "llama3/base/config.json")))
for name, content in {
    "qwen3": json.dumps(qwen),
    "llama3": json.dumps(llama),
    "rope_parameters": json.dumps({**{k: v for k, v in qwen.items() if not k.startswith("rope")}, "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5}}),
    "partial_rotary": json.dumps({**qwen, "rope_scaling": None, "partial_rotary_factor": 0.5}),
    "rotary_huge": json.dumps({**qwen, "partial_rotary_factor": 1e300}),
    "rotary_negative": json.dumps({**qwen, "partial_rotary_factor": -1e300}),
    "layers_huge": json.dumps({**qwen, "num_hidden_layers": (1 << 63) - 1}),
    "layers_most": json.dumps({**qwen, "num_hidden_layers": 4096}),
    "sizes_most": json.dumps({**qwen, "vocab_size": 1 << 24, "hidden_size": 65536, "num_hidden_layers": 4096, "num_attention_heads": 4096, "num_key_value_heads": 4096, "head_dim": 256, "intermediate_size": 1 << 20}),
    "width_negative": json.dumps({**qwen, "hidden_size": -(1 << 63), "head_dim": None}),
    "heads_zero": json.dumps({**qwen, "num_attention_heads": 0, "num_key_value_heads": 0}),
    "unsigned": json.dumps({**qwen, "vocab_size": (1 << 64) - 1, "bos_token_id": (1 << 64) - 1}),
    "fractions": json.dumps({**qwen, "vocab_size": 1.5}),
    "yarn_odd": json.dumps({**qwen, "rope_scaling": {"rope_type": "yarn", "factor": 1e308, "mscale": 1e308, "mscale_all_dim": -1e308, "beta_fast": 0, "beta_slow": -1, "original_max_position_embeddings": 1}}),
    "llama3_odd": json.dumps({**qwen, "rope_scaling": {"rope_type": "llama3", "factor": 1e308, "low_freq_factor": 1e-308, "high_freq_factor": 1e308, "original_max_position_embeddings": (1 << 63) - 1}}),
    "theta_huge": json.dumps({**qwen, "rope_theta": 1e308}),
    "other_family": json.dumps({**qwen, "model_type": "gpt2\n"}),
    "layer_types_number": json.dumps({**qwen, "layer_types": 7}),
    "layer_types_object": json.dumps({**qwen, "layer_types": {"a": "full_attention"}}),
    "layer_types_deep": '{"model_type":"qwen3","layer_types":[' + DEEP + "]" * 100_000 + "]}",
    "vocab_size_deep": '{"model_type":"qwen3","vocab_size":' + DEEP + "]" * 100_000 + "}",
    "eos_list": json.dumps({**qwen, "eos_token_id": [1, 2, -3]}),
    "eos_odd": json.dumps({**qwen, "eos_token_id": ["a"]}),
    "long_string": json.dumps({**qwen, "vocab_size": "\u20ac" * 200}),
    "list": "[]",
    "not_utf8": b'{"model_type":"\xff"}',
    "deep": DEEP,
    "empty": "",
}.items():
    keep("model_config", name, content)

frame = {"run_id": "r", "run_folder": "/r", "term": 1, "epoch": 0, "name": "rollout/0", "role": "rollout", "index": 0, "incarnation": 1, "node": "n", "head_host": "127.0.0.1",
         "head_port": 7700, "certificate": "c", "key": "k", "authority": "a", "lease_ms": 5000, "head_wait_ms": 60000, "experiment": "{}"}
for name, content in {
    "frame": json.dumps(frame),
    "port_too_wide": json.dumps({**frame, "head_port": 70000}),
    "port_negative": json.dumps({**frame, "head_port": -1}),
    "term_fraction": json.dumps({**frame, "term": 1e300}),
    "term_negative": json.dumps({**frame, "term": -1}),
    "index_wide": json.dumps({**frame, "index": 1 << 40}),
    "lease_nan": json.dumps({**frame, "lease_ms": None}),
    "surrogate": json.dumps(frame).replace('"r"', '"\\ud800"'),
    "missing": json.dumps({k: v for k, v in frame.items() if k != "experiment"}),
    "deep": DEEP,
    "deep_experiment": '{"experiment":' + DEEP,
    "status": '{"command":"status"}',
    "scale": '{"command":"scale","role":"rollout","count":4}',
    "command_number": '{"command":7}',
    "command_missing": "{}",
    "role_list": '{"command":"scale","role":[1],"count":1}',
    "role_unknown": '{"command":"scale","role":"king\\n\\u0000","count":1}',
    "count_huge": '{"command":"scale","role":"rollout","count":18446744073709551615}',
    "list": "[]",
    "two_lines": '{"command":"status"}\n{"command":"stop"}',
    "not_utf8": b'{"command":"\xff"}',
    "nul": b"\0",
    "empty": "",
}.items():
    keep("frame", name, content)

# --- messages between actors: numbers big-endian, lengths before strings and lists ------------------------------------------------------
for name, content in {
    "zeros": bytes(400),
    "ones": b"\xff" * 400,
    "small_numbers": bytes(i % 4 for i in range(400)),
    "length_of_all_ones": b"\xff\xff\xff\xff\xff\xff\xff\x7f" + bytes(64),
    "name_and_numbers": b"\x09rollout/1" + struct.pack(">IQIQI", 1, 7, 0, 3, 2) + bytes(128),
    "empty": b"",
    **{f"noise_{i}": bytes((i * 131 + k * k * 7 + k * (i + 3)) % 256 for k in range(40 * (i + 1))) for i in range(6)},
}.items():
    keep("message", name, content)
