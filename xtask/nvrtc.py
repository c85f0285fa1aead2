"""Compiles every *.cu of a folder with NVRTC: nvrtc.py LIBRARY FOLDER every|turns ARCHITECTURE...

"every": each file for each architecture. "turns": each kernel body once for all architectures, other files for one of them in turn.
Files with instructions of warpgroups are for sm_90a only.
"""

import ctypes
import multiprocessing
import os
import pathlib
import re
import sys

OPTIONS = ["--std=c++17", "--diag-suppress=177", "--ptxas-options=-v"]


def compile_file(job):
    """(file, architecture, succeeded, log)"""
    library, file, arch = job
    nvrtc = ctypes.CDLL(library)
    program = ctypes.c_void_p()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), file.read_bytes(), file.name.encode(), 0, None, None)
    options = [option.encode() for option in [f"--gpu-architecture={arch}", *OPTIONS]]
    code = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    size = ctypes.c_size_t()
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return file.name, arch, code == 0, log.value.decode(errors="replace")


def suiting(file, architectures):
    return [arch for arch in architectures if arch == "sm_90a" or b"wgmma" not in file.read_bytes()]


def in_turns(files, architectures):
    """(file, architecture)"""
    bodies = set()
    for i, file in enumerate(files):
        body = re.search(r"^    (\w+)\(in, pass, ", file.read_text(), re.MULTILINE).group(1)
        suit = suiting(file, architectures)
        others = suit if body not in bodies else [suit[i % len(suit)]]
        bodies.add(body)
        yield from ((file, arch) for arch in others)


def main():
    library, folder, order, *architectures = sys.argv[1:]
    files = sorted(pathlib.Path(folder).glob("*.cu"))
    every = ((file, arch) for file in files for arch in suiting(file, architectures))
    chosen = every if order == "every" else in_turns(files, architectures)
    jobs = [(library, file, arch) for file, arch in chosen]
    failed, spilled = 0, 0
    with multiprocessing.Pool(len(os.sched_getaffinity(0))) as pool:
        for name, arch, done, log in pool.imap(compile_file, jobs, chunksize=8):
            # C7514 and its like: the compiler waits after every product of a warpgroup.
            if not done or "warning" in log or "serialized" in log:
                failed += 1
                print(f"{arch} {name}:\n{log}")
            spills = re.search(r"(\d+) bytes spill stores", log)
            if spills and int(spills.group(1)):
                spilled += 1
                print(f"{arch} {name}: {spills.group(0)}")
    counts = f"{len(files)} functions, {len(jobs)} times for {', '.join(architectures)}"
    print(f"{counts}: {failed} failed, {spilled} spill registers")
    sys.exit(1 if failed or not jobs else 0)


if __name__ == "__main__":
    main()
