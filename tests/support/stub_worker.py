"""A worker that trains nothing: what it does with its n-th row stands in STUB_ACTS."""

import json
import os
import sys
import time

acts = os.environ["STUB_ACTS"].split(",")
for _line, act in zip(sys.stdin, acts, strict=False):
    if act == "die":
        print("out of memory", file=sys.stderr)
        os._exit(3)
    if act == "hang":
        time.sleep(60)
    fields = {"error": act, "seconds": 0.5}
    print(json.dumps(fields), flush=True)
