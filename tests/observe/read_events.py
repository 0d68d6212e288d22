"""Prints every scalar of a folder of event files as tensorboard reads it: JSON {tag: [[step, wall time, value], ...]}. Usage: read_events.py FOLDER"""
import json
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

events = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0})
events.Reload()
tags = events.Tags()
others = {kind: names for kind, names in tags.items() if names and kind != "scalars"}
assert not others, others
json.dump({tag: [[e.step, e.wall_time, e.value] for e in events.Scalars(tag)] for tag in tags["scalars"]}, sys.stdout)
