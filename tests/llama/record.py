"""What recorder.c wrote: what a server asked for (front), and what was run for it (back).

Reading it checks that each output that the server asked for is the one that the
library asked for, of the same sequence and position, and that every token below
it was computed or loaded, with no other token in its place.
"""

import collections

from llama_server import require


# Bytes of the part of a state that cannot be shortened, where all of it can.
NOTHING = 8


class Sequence:
    """The tokens of one sequence. `known`: they are what computing them from the first on gives."""

    def __init__(self, tokens=(), hashes=(), known=True):
        self.tokens, self.known = list(tokens), known
        # Of the beginnings that end with each token.
        self.hashes = list(hashes)
        # Where positions were taken out, and how many: the rest moves there next.
        self.hole = None

    def copy(self):
        return Sequence(self.tokens, self.hashes, self.known)


class Record:
    """A process. `states` has the sequences by the hashes of their states, of the processes before too, and `computed` the beginnings
    that were computed."""

    def __init__(self, path, states, computed):
        self.states, self.computed = states, computed
        self.sides = {side: collections.defaultdict(Sequence) for side in ("front", "back")}
        self.last, self.counts, self.pending, self.odd = {}, collections.Counter(), None, None
        # By context: its model's file. Not all parameters tell states apart.
        self.model = {}
        with open(path) as lines:
            for line in lines:
                side, context, what, *rest = line.split()
                getattr(self, what)(side, context, rest, line)

    def context(self, side, context, rest, _line):
        self.model[context] = hash(" ".join(rest[1:]))
        self.counts["contexts"] += side == "back"

    def process(self, side, context, rest, line):
        status, count, *rows = map(int, rest)
        require(f"a batch was not followed: {line[:100]}", count >= 0)
        rows = [rows[at:at + 4] for at in range(0, 4 * count, 4)]
        if status:
            self.counts["refused batches"] += 1
            return
        self.counts[f"{side} tokens"] += count
        self.last[side, context] = [(seq, pos) for _, seq, pos, _ in rows]
        new = []
        for token, seq, pos, output in rows:
            sequence = self.sides[side][context, seq]
            require(f"{side}: position {pos} of sequence {seq} follows {len(sequence.tokens)}", pos == len(sequence.tokens))
            before = sequence.hashes[-1] if sequence.hashes else self.model[context]
            sequence.tokens.append(token)
            sequence.hashes.append(hash((before, token)))
            if side == "front" and sequence.known:
                new.append(sequence.hashes[-1])
                # It was computed before, and nobody asks for its logits: a cache could have it.
                self.counts["reusable"] += not output and new[-1] in self.computed
        self.computed.update(new)

    def logits(self, side, context, rest, line):
        index, found = int(rest[0]), rest[1]
        rows = self.last[side, context]
        require(f"{side} has no output {index}", -len(rows) <= index < len(rows))
        if side == "back":
            self.pending = (context, *rows[index], found)
            return
        # The inner function is asked first, and written first.
        require(f"nothing was asked for behind: {line}", self.pending is not None)
        seq, pos = rows[index]
        require(f"asked for {rows[index]}, got {self.pending}", self.pending == (context, seq, pos, found))
        self.pending = None
        front, back = (self.sides[side][context, seq].tokens[:pos + 1] for side in ("front", "back"))
        require(f"sequence {seq} has other tokens below position {pos}", front == back)
        self.counts["outputs"] += 1

    def clear(self, side, context, _rest, _line):
        for key in [key for key in self.sides[side] if key[0] == context]:
            del self.sides[side][key]

    def rm(self, side, context, rest, line):
        seq, first, end, done = map(int, rest)
        if not done:
            return
        for key in [key for key in self.sides[side] if key[0] == context and seq in (key[1], -1)]:
            sequence = self.sides[side][key]
            length = len(sequence.tokens)
            first_, end_ = max(first, 0), length if end < 0 else min(end, length)
            if first_ == 0 and end_ >= length:
                del self.sides[side][key]
            elif first_ < end_:
                if end_ < length:
                    # A context shift: the rest is moved next.
                    sequence.hole, sequence.known = (first_, end_ - first_), False
                del sequence.tokens[first_:end_], sequence.hashes[first_:end_]

    def add(self, side, context, rest, line):
        seq, first, _end, delta = map(int, rest)
        sequence = self.sides[side][context, seq]
        require(f"positions move that follow no hole: {line}", sequence.hole is not None and delta == -sequence.hole[1])
        require(f"others move than those behind the hole: {line}", first == sum(sequence.hole))
        sequence.hole = None
        self.counts["context shifts"] += side == "back"

    def cp(self, side, context, rest, line):
        source, target, first, end = map(int, rest)
        require(f"a part was copied: {line}", first <= 0 and end < 0)
        self.sides[side][context, target] = self.sides[side][context, source].copy()

    def get(self, side, context, rest, _line):
        seq, flags, _bytes, found = rest
        sequence = self.sides[side][context, int(seq)]
        if side == "back":
            require(f"the library took a state of what is not known to be a beginning: {self.odd}", self.odd is None)
            self.odd = None if sequence.known else found
        elif self.odd == found:
            # The server asked for it.
            self.odd = None
        self.states[flags, found] = sequence.copy()

    def set(self, side, context, rest, line):
        seq, flags, size, found, read = rest
        require(f"a state was refused: {line}", read == size)
        require(f"a state that nobody has written: {line}", (flags, found) in self.states)
        self.counts[f"{side} states"] += 1
        if flags != "0" and int(size) <= NOTHING:
            return
        state = self.states[flags, found]
        own = self.sides[side][context, int(seq)]
        if flags == "0":
            self.sides[side][context, int(seq)] = state.copy()
        elif own.tokens[:len(state.tokens)] != state.tokens:
            # llama-server 0.7.0 keeps a checkpoint of one token when a slot begins anew, and later puts it below another prompt.
            # It asks for that itself (front); the sequence must not be followed from there.
            self.counts[f"{side} checkpoints of another prompt"] += 1
            self.sides[side][context, int(seq)] = Sequence(state.tokens, state.hashes, known=False)
