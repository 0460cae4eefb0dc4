"""Mutations of files, and children in which a crash or a hang is seen instead of suffered."""

import faulthandler
import multiprocessing
import random
import signal


def mutated(data, rng, others=()):
    """The bytes with one random fault: flipped, overwritten, zeroed, cut, grown, moved or from elsewhere."""
    data = bytearray(data)
    at, length = rng.randrange(len(data) + 1), min(rng.choice([1, 1, 8, 64, 4096]), len(data))
    kind = rng.choice(["flip", "write", "zero", "cut", "insert", "drop", "append", "swap", "splice"])
    if kind == "flip" and data:
        data[at % len(data)] ^= 1 << rng.randrange(8)
    elif kind == "write":
        data[at : at + length] = rng.randbytes(length)
    elif kind == "zero":
        data[at : at + length] = bytes(length)
    elif kind == "cut":
        del data[at:]
    elif kind == "insert":
        data[at:at] = rng.randbytes(length)
    elif kind == "drop":
        del data[at : at + length]
    elif kind == "append":
        data += rng.randbytes(length)
    elif kind == "swap":
        to = rng.randrange(len(data) + 1)
        data[at : at + length], data[to : to + length] = data[to : to + length], data[at : at + length]
    elif others:
        other = rng.choice(others)
        data[at : at + length] = other[at : at + length]
    return bytes(data)


def in_children(act, seeds, *, batch=50, seconds=120):
    """act(seed) for every seed, in forked children; the seeds whose child crashed or hung, with why.

    A child takes `batch` seeds; what act raises is a failure too, with its text.
    """
    context, failures = multiprocessing.get_context("fork"), []
    seeds = list(seeds)
    while seeds:
        part, seeds = seeds[:batch], seeds[batch:]
        receive, send = context.Pipe(duplex=False)
        child = context.Process(target=_child, args=(act, part, send))
        child.start()
        send.close()
        done = []
        try:
            while len(done) < len(part) and _comes(receive, seconds):
                done.append(receive.recv())
        except EOFError:
            pass
        if len(done) < len(part):
            child.kill()
            child.join()
            name = signal.Signals(-child.exitcode).name if child.exitcode < 0 else child.exitcode
            failures.append((part[len(done)], f"the process ended: {name} (SIGKILL: it hung)"))
            seeds = part[len(done) + 1 :] + seeds
        child.join()
        failures += [found for found in done if found[1]]
    return failures


def _comes(receive, seconds):
    """Whether something arrives within so many seconds in which this process was not suspended."""
    return any(receive.poll(1) for _ in range(seconds))


def _child(act, seeds, send):
    faulthandler.disable()  # the parent tells
    for seed in seeds:
        try:
            act(random.Random(seed))
        except BaseException as error:
            send.send((seed, f"{type(error).__name__}: {error}"))
        else:
            send.send((seed, ""))
