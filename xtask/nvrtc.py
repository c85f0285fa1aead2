"""Compiles every *.cu of a folder through NVRTC: nvrtc.py LIBRARY FOLDER ARCHITECTURE..."""

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


def main():
    library, folder, *architectures = sys.argv[1:]
    files = sorted(pathlib.Path(folder).glob("*.cu"))
    jobs = [(library, file, arch) for arch in architectures for file in files]
    failed, spilled = 0, 0
    with multiprocessing.Pool(len(os.sched_getaffinity(0))) as pool:
        for name, arch, done, log in pool.imap(compile_file, jobs, chunksize=8):
            if not done or "warning" in log:
                failed += 1
                print(f"{arch} {name}:\n{log}")
            spills = re.search(r"(\d+) bytes spill stores", log)
            if spills and int(spills.group(1)):
                spilled += 1
                print(f"{arch} {name}: {spills.group(0)}")
    print(f"{len(files)} functions for {', '.join(architectures)}: {failed} failed, {spilled} spill registers")
    sys.exit(1 if failed or not jobs else 0)


if __name__ == "__main__":
    main()
