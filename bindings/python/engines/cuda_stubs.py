"""Shared libraries in place of CUDA's, so that PyPI's torch is imported where there is no CUDA: installed with --no-deps it is 1.6 GB
in place of 6. Each function in them answers an error, torch says that there is no device, and runs on the CPU.

usage: cuda_stubs.py FOLDER
"""

import collections
import pathlib
import re
import subprocess
import sys
import sysconfig

NEEDED = re.compile(r"\(NEEDED\).*\[(.+)\]")
SYMBOL = re.compile(r"^\s*\d+: \S+\s+\d+ (\w+)\s+(\w+)\s+\w+\s+(\w+) (\S+)")
VERSION_FILE = re.compile(r"File: (\S+)")
VERSION_NAME = re.compile(r"Name: (\S+)\s+Flags")
TEXT = re.compile(r"(cuda|cudnn|cublas|cusparse|nccl|nvrtc)Get(Error|Status)(String|Name)|ncclGetLastError")
"""Functions that answer a text: torch reads it into the message of its exception. The driver's and CUPTI's answer a number."""


def output(*command: object) -> str:
    return subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True).stdout


class Wanted:
    """What torch's libraries ask of libraries that are not there."""

    def __init__(self, folder: pathlib.Path) -> None:
        libraries = [path for path in folder.iterdir() if ".so" in path.name and path.is_file()]
        installed = set(re.findall(r"^\s+(\S+) \(", output("ldconfig", "-p"), re.M)) | {"ld-linux-x86-64.so.2"}
        present = installed | {path.name for path in libraries}
        self.sonames: set[str] = set()
        self.version_of: dict[str, str] = {}
        self.by_version: dict[str, set[str]] = collections.defaultdict(set)
        plain: set[str] = set()
        defined: set[str] = set()
        for path in libraries:
            self.sonames |= set(NEEDED.findall(output("readelf", "-W", "-d", path))) - present
            self._versions(output("readelf", "-W", "-V", path))
            for line in output("readelf", "-W", "--dyn-syms", path).splitlines():
                if not (found := SYMBOL.match(line)):
                    continue
                _, binding, section, name = found.groups()
                name, _, version = name.partition("@")
                if section != "UND":
                    defined.add(name)
                elif version:
                    self.by_version[version.strip("@")].add(name)
                elif binding == "GLOBAL" and name.startswith(("cu", "nccl", "nv")):
                    plain.add(name)
        # Which library has a symbol without a version is written nowhere: each stub without versions has them all.
        self.plain = plain - defined

    def _versions(self, text: str) -> None:
        soname = ""
        for line in text.splitlines():
            if found := VERSION_FILE.search(line):
                soname = found[1]
            if (found := VERSION_NAME.search(line)) and soname:
                self.version_of.setdefault(soname, found[1])


def stub(name: str) -> str:
    if TEXT.fullmatch(name):
        return f'const char *{name}(void) {{ return "there is no CUDA here"; }}\n'
    # CUDA's number for "no device".
    return f"int {name}(void) {{ return 100; }}\n"


def main() -> None:
    to = pathlib.Path(sys.argv[1])
    to.mkdir(parents=True, exist_ok=True)
    wanted = Wanted(pathlib.Path(sysconfig.get_path("platlib")) / "torch/lib")
    for soname in sorted(wanted.sonames):
        version = wanted.version_of.get(soname)
        names = wanted.by_version[version] if version else wanted.plain
        source, script = to / "stub.c", to / "stub.map"
        source.write_text("".join(map(stub, sorted(names))))
        script.write_text(f"{version or 'STUB'} {{ global: *; }};\n")
        options = [f"-Wl,--version-script={script}"] if version else []
        output("cc", "-shared", "-fPIC", "-w", "-fno-builtin", source, *options, f"-Wl,-soname,{soname}", "-o", to / soname)
        source.unlink()
        script.unlink()
    print(f"{len(wanted.sonames)} stubs in {to}")


if __name__ == "__main__":
    main()
