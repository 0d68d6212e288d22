"""Loads a saved tokenizer.json with PyPI `tokenizers` and compares it with cases {"cases": [{name, text, ids, decoded}]}.
Prints one line per difference (ten at most); silent when all agree. Usage: oracle.py FOLDER CASES.json"""
import json
import sys

from tokenizers import Tokenizer

tokenizer = Tokenizer.from_file(sys.argv[1] + "/tokenizer.json")
differences = 0
for case in json.load(open(sys.argv[2], encoding="utf-8"))["cases"]:
    ids = tokenizer.encode(case["text"], add_special_tokens=False).ids
    decoded = tokenizer.decode(case["ids"], skip_special_tokens=False)
    if ids != case["ids"] or decoded != case["decoded"]:
        differences += 1
        if differences <= 10:
            print(case["name"], ascii(case["text"])[:60], "want", case["ids"][:16], "got", ids[:16], ascii(decoded)[:60])
    if "template_ids" in case and tokenizer.encode(case["text"]).ids != case["template_ids"]:
        print(case["name"], "with template:", tokenizer.encode(case["text"]).ids[:16], "want", case["template_ids"][:16])
        differences += 1
sys.exit(1 if differences else 0)
